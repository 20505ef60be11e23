//! Audit lines of requests of the HTTP API, whose callers have API keys instead of certificates.
//!
//! *Invariant:* as for gRPC: a request that may change something takes room for its line before it is executed, and
//! the line is written before the answer leaves. The member that the caller has reached writes the line, whichever
//! member leads, because only that one knows the caller's address.

use super::{AuditLog, Ending, Open};
use crate::observe::audit::{NOTED, note};
use axum::response::Response;
use http::StatusCode;
use rollout_proto::{Identity, PeerInfo, trace};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request.
pub(crate) struct HttpCall {
    /// The key's identity; [`Identity::unenrolled`] if the request proves none.
    pub(crate) identity: Identity,
    pub(crate) addr: SocketAddr,
    /// `POST /v1/files`, with names of parameters instead of values.
    pub(crate) method: String,
    /// The id in the header `x-request-id` of the answer.
    pub(crate) id: String,
    /// Whether it may change something.
    pub(crate) changes: bool,
}

/// The error of an answer, as an extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct HttpError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl AuditLog {
    /// Runs a request, and writes its line if it gets one. Returns `None`, and runs nothing, if there is no room for
    /// the line.
    pub(crate) async fn http(
        self: &Arc<Self>,
        call: HttpCall,
        answer: impl Future<Output = Response>,
    ) -> Option<Response> {
        let mut open = Open {
            log: self.clone(),
            peer: Some(PeerInfo::uncertified(call.identity, call.addr)),
            method: call.method,
            noted: Arc::default(),
            begun: Instant::now(),
            audited: call.changes,
            decided: false,
            trace_id: trace::current().map(|t| t.trace_id()).unwrap_or_default(),
            room: None,
        };
        if open.audited && !open.take_room() {
            drop(open.refuse());
            return None;
        }
        let noting = async {
            note(|noted| noted.http_request = Some(call.id));
            answer.await
        };
        let response = NOTED.scope(open.noted.clone(), noting).await;
        open.write_line(&ending(&response)).await;
        Some(response)
    }
}

fn ending(response: &Response) -> Ending {
    let status = response.status();
    let error = response.extensions().get::<HttpError>().cloned();
    let error = error.map(|HttpError { code, message }| (code, message));
    let outcome = match status {
        status if status.is_server_error() => "unknown",
        status if status.is_client_error() => "refused",
        _ => "applied",
    };
    let forbidden = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    Ending { outcome, error, forbidden, elsewhere: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Audit;
    use crate::observe::audit;
    use axum::response::IntoResponse;
    use rollout_proto::Role;
    use serde_json::Value;

    fn call(identity: Identity, changes: bool) -> HttpCall {
        HttpCall {
            identity,
            addr: "10.0.0.7:5000".parse().expect("an address"),
            method: "POST /v1/files".into(),
            id: "req_1".into(),
            changes,
        }
    }

    fn refusal(status: StatusCode, code: &'static str) -> Response {
        let mut response = status.into_response();
        response.extensions_mut().insert(HttpError { code, message: "why".into() });
        response
    }

    #[tokio::test]
    async fn a_change_has_a_line_with_its_key_and_a_read_has_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("audit.log");
        let config = Audit { file: Some(file.clone()), ..Audit::default() };
        let log = Arc::new(AuditLog::open("c1", &config).expect("open"));
        let key = Identity {
            role: Role::Client,
            name: "key:abcdefgh".into(),
            namespaces: vec!["team".into()],
        };
        let changed = async {
            audit::in_namespace("team");
            audit::about("file", "file-1");
            StatusCode::OK.into_response()
        };
        log.http(call(key.clone(), true), changed).await.expect("room");
        let read = async { StatusCode::OK.into_response() };
        log.http(call(key.clone(), false), read).await.expect("room");
        let refused = async { refusal(StatusCode::FORBIDDEN, "permission_denied") };
        log.http(call(key, false), refused).await.expect("room");
        for _ in 0..100 {
            let refused = async { refusal(StatusCode::UNAUTHORIZED, "invalid_api_key") };
            log.http(call(Identity::unenrolled(), false), refused).await.expect("room");
        }
        let text = std::fs::read_to_string(&file).expect("the file");
        let lines: Vec<Value> =
            text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        assert_eq!(lines.len(), 3, "the callers without a key have one line: {text}");
        for (name, value) in [
            ("identity", "client/key:abcdefgh"),
            ("address", "10.0.0.7:5000"),
            ("method", "POST /v1/files"),
            ("namespace", "team"),
            ("subject", "file/file-1"),
            ("httpRequest", "req_1"),
            ("outcome", "applied"),
        ] {
            assert_eq!(lines[0][name], value, "{text}");
        }
        assert_eq!(
            (&lines[1]["code"], &lines[1]["outcome"]),
            (&"permission_denied".into(), &"refused".into())
        );
        assert_eq!(lines[2]["code"], "invalid_api_key");
    }
}
