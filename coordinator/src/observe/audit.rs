//! The audit log: who did what. It has one line for each request that changes something or that its caller may not
//! make, with the certificate's identity and the outcome. It also has one line for each handshake that is refused
//! because the certificate is revoked ([`handshakes`]).
//!
//! *Invariant:* a line is in the file before the answer leaves. If the caller did not wait, the line is written as soon
//! as the outcome is known. The options of a method in its .proto file say whether it is audited ([`Method`]). Only some
//! requests of callers without a proven identity have a line ([`unauthenticated`]). A line that cannot be written goes
//! to the log and is counted. Each request reserves room for its line before its service sees it ([`line_room`]), so
//! the lines that wait for the file are bounded, and none is dropped for want of room.
//!
//! Absent: the regular traffic of workers and training processes, which the events cover; requests that
//! this member did not decide because another one leads; the content of requests.

mod chain;
#[cfg(test)]
mod golden;
mod handshakes;
mod http_call;
mod line_room;
mod refusals;
mod sink;
mod unauthenticated;

use crate::leader::fair_room::Permit;
use crate::observe::log_position;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_ledger::RequestId;
use rollout_proto::{ErrorCode, Method, Outcome, PeerInfo, Role, RpcError, trace};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tonic::{Code, Status};
use tower::{Layer, Service};

pub(crate) use http_call::{HttpCall, HttpError};
pub(crate) use sink::AuditLog;

tokio::task_local! {
    static NOTED: Arc<Mutex<AuditNotes>>;
}

/// What handlers add to the line of their request.
#[derive(Clone, Debug, Default)]
struct AuditNotes {
    namespace: String,
    /// `run/nightly`, `worker/gpu-7`.
    subject: String,
    request: Option<RequestId>,
    /// The identity that a request without a certificate has proved: `token/rack-7`.
    proved_identity: Option<String>,
    /// The method of the request that a dry run checks: `Runs/DeleteRun`.
    dry_run_of: Option<&'static str>,
    /// The id of a request of the HTTP API, as in the header `x-request-id`.
    http_request: Option<String>,
}

fn note(add: impl FnOnce(&mut AuditNotes)) {
    // Requests that are not audited, and work outside of requests, note nothing.
    let _ = NOTED.try_with(|noted| add(&mut noted.lock()));
}

/// The longest name or message that a line keeps. Names are noted before they are checked, and a caller that could
/// write megabytes with each request would push all other lines out of the audit log.
const TEXT_BYTES_MAX: usize = 1024;

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// `Runs/CreateRun` of `/rollout.v1.Runs/CreateRun`.
pub(crate) fn method_of(path: &str) -> &str {
    path.strip_prefix("/rollout.v1.").unwrap_or(path)
}

/// Notes the namespace of the request.
pub(crate) fn in_namespace(namespace: &str) {
    note(|noted| cut(namespace).clone_into(&mut noted.namespace));
}

/// Notes the object of the request.
pub(crate) fn about(kind: &str, name: &str) {
    note(|noted| noted.subject = format!("{kind}/{}", cut(name)));
}

/// Notes the identity that a caller without a certificate has proved by other means.
pub(crate) fn proved_identity(kind: &str, name: &str) {
    note(|noted| noted.proved_identity = Some(format!("{kind}/{}", cut(name))));
}

/// Notes the path of the method whose request this one checks.
pub(crate) fn dry_run_of(path: &'static str) {
    note(|noted| noted.dry_run_of = Some(method_of(path)));
}

/// Notes the id of the request.
pub(crate) fn requested(id: Option<RequestId>) {
    note(|noted| noted.request = id);
}

/// The layer, for the services of one member.
#[derive(Clone)]
pub(crate) struct AuditLayer(pub(crate) Arc<AuditLog>);

impl<S> Layer<S> for AuditLayer {
    type Service = Audited<S>;

    fn layer(&self, inner: S) -> Audited<S> {
        Audited { log: self.0.clone(), inner }
    }
}

/// A service whose requests are audited.
#[derive(Clone)]
pub(crate) struct Audited<S> {
    log: Arc<AuditLog>,
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for Audited<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let path = request.uri().path();
        let mut open = Open {
            log: self.log.clone(),
            peer: request.extensions().get::<PeerInfo>().cloned(),
            method: cut(method_of(path)).to_owned(),
            noted: Arc::default(),
            begun: Instant::now(),
            audited: Method::find(path).is_some_and(|method| method.audited),
            decided: false,
            trace_id: String::new(),
            room: None,
        };
        if open.audited && !open.take_room() {
            let refused: Self::Response = open.refuse().into_http();
            return std::future::ready(Ok(refused)).boxed();
        }
        let answer = self.inner.call(request);
        async move {
            open.trace_id = trace::current().map(|t| t.trace_id()).unwrap_or_default();
            let response = NOTED.scope(open.noted.clone(), answer).await;
            let status = match &response {
                Ok(response) => Status::from_header_map(response.headers()),
                Err(_) => None,
            };
            let refused = status.filter(|status| status.code() != Code::Ok);
            open.write_line(&Ending::of_rpc(refused.as_ref())).await;
            response
        }
        .boxed()
    }
}

/// How a request ended.
struct Ending {
    outcome: &'static str,
    /// The code and the message of a refusal or failure.
    error: Option<(&'static str, String)>,
    /// The caller may not make the request.
    forbidden: bool,
    /// Another member decides.
    elsewhere: bool,
}

impl Ending {
    fn of_rpc(refused: Option<&Status>) -> Self {
        let Some(error) = refused.map(RpcError::from_status) else {
            return Self { outcome: "applied", error: None, forbidden: false, elsewhere: false };
        };
        let outcome = match error.outcome {
            Outcome::NotApplied => "refused",
            Outcome::Applied => "applied",
            Outcome::Unknown => "unknown",
        };
        let forbidden = matches!(
            error.code,
            ErrorCode::PermissionDenied
                | ErrorCode::Unauthenticated
                | ErrorCode::CertificateRevoked
        );
        // The leader decides those, or the next one will.
        let elsewhere = matches!(
            error.code,
            ErrorCode::NotLeader | ErrorCode::NoLeader | ErrorCode::NotBootstrapped
        );
        Self { outcome, error: Some((error.code.code(), error.message)), forbidden, elsewhere }
    }

    /// There was no answer: the caller did not wait for one.
    fn unknown() -> Self {
        Self { outcome: "unknown", error: None, forbidden: false, elsewhere: false }
    }
}

/// A request in progress.
struct Open {
    log: Arc<AuditLog>,
    peer: Option<PeerInfo>,
    method: String,
    noted: Arc<Mutex<AuditNotes>>,
    begun: Instant,
    audited: bool,
    decided: bool,
    trace_id: String,
    /// Room for its line.
    room: Option<Permit>,
}

impl Open {
    /// Writes the request's line, if it gets one.
    async fn write_line(&mut self, ending: &Ending) {
        self.decided = true;
        if let Some(line) = self.line(ending)
            && let Some(room) = self.room_for_line()
        {
            // In a task of its own, so that the line is written even if the caller disconnects now.
            let log = self.log.clone();
            let _ = tokio::spawn(async move { log.write_in(room, line).await }).await;
        }
    }

    /// The request's line, if it gets one.
    fn line(&self, ending: &Ending) -> Option<Map<String, Value>> {
        if ending.elsewhere || !(self.audited || ending.forbidden) {
            return None;
        }
        let mut line = self.fields(ending);
        if ending.error.is_some() && self.is_unauthenticated() {
            line.insert(
                "untold".into(),
                self.log.unauthenticated_calls.line_due(Instant::now())?.into(),
            );
        } else if ending.outcome == "refused" {
            self.bound(&mut line)?;
        }
        Some(line)
    }

    /// `None` if the caller has used up its lines for refused requests. A request with an unknown outcome is not
    /// counted, because it may have been applied.
    fn bound(&self, line: &mut Map<String, Value>) -> Option<()> {
        let whose = line.get("identity").and_then(Value::as_str).unwrap_or_default();
        let unlogged = self.log.refusals.line_due(whose, Instant::now())?;
        if unlogged > 0 {
            line.insert("untold".into(), unlogged.into());
        }
        Some(())
    }

    /// Whether the caller has no proven identity.
    fn is_unauthenticated(&self) -> bool {
        let unenrolled = |peer: &PeerInfo| peer.identity.role == Role::Unenrolled;
        self.peer.as_ref().is_none_or(unenrolled) && self.noted.lock().proved_identity.is_none()
    }

    fn fields(&self, ending: &Ending) -> Map<String, Value> {
        let Ending { outcome, error, .. } = ending;
        let noted = self.noted.lock().clone();
        let identity = self.peer.as_ref().map(|peer| &peer.identity);
        let request = noted.request.map(|r| format!("{}.{}", r.session.0, r.seq));
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let line = json!({
            "time": now,
            "member": self.log.member(),
            "identity": noted.proved_identity.clone().or_else(|| identity.map(ToString::to_string)),
            "role": identity.map(|identity| identity.role.as_str()),
            "address": self.peer.as_ref().map(|peer| peer.addr.to_string()),
            "method": self.method,
            "namespace": named(&noted.namespace),
            "subject": named(&noted.subject),
            "request": request,
            "index": log_position::index_of_operation().map(|index| index.to_string()),
            "outcome": outcome,
            "code": error.as_ref().map(|(code, _)| code),
            "message": error.as_ref().map(|(_, message)| cut(message)),
            "traceId": named(&self.trace_id),
            "durationMs": self.begun.elapsed().as_millis() as u64,
        });
        let mut fields = match line {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        if let Some(method) = noted.dry_run_of {
            fields.insert("dryRunOf".into(), method.into());
        }
        if let Some(id) = noted.http_request {
            fields.insert("httpRequest".into(), id.into());
        }
        fields
    }
}

impl Drop for Open {
    /// The caller disconnected before there was an answer. The request may still take effect.
    fn drop(&mut self) {
        if self.decided || !self.audited {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut line = self.fields(&Ending::unknown());
        if self.is_unauthenticated() {
            let Some(unlogged) = self.log.unauthenticated_calls.line_due(Instant::now()) else {
                return;
            };
            line.insert("untold".into(), unlogged.into());
        }
        line.insert("message".into(), "the caller did not wait for the answer".into());
        // invariant: it took room before its service saw it.
        let Some(room) = self.room.take() else { return };
        let log = self.log.clone();
        runtime.spawn(async move { log.write_in(room, line).await });
    }
}

#[cfg(test)]
mod tests;
