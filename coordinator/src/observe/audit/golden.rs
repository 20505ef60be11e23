//! A line of each shape, in one chain.
//!
//! *Invariant:* programs read these lines, and `rolloutctl audit verify` their chain, so a field that appears, goes or
//! changes shows in `testdata/audit.txt`. Absent: which request has which line, which `tests` has.

use super::tests::{answer, log, request};
use super::*;
use crate::grpc::middleware::MiddlewareLayer;
use crate::grpc::position_layer::PositionLayer;
use crate::leader::proposer::LogPosition;
use rollout_ledger::id::SessionId;
use rollout_proto::Identity;
use rollout_recorded::check;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Has a request answered by a handler that notes something and refuses it, or not.
async fn audited(log: &Arc<AuditLog>, request: http::Request<()>, ends: fn() -> Option<RpcError>) {
    let inner = tower::service_fn(move |_: http::Request<()>| async move {
        Ok::<_, Infallible>(answer(ends()))
    });
    let mut service =
        MiddlewareLayer(PositionLayer::InAnswers).layer(AuditLayer(log.clone()).layer(inner));
    service.call(request).await.expect("an answer");
}

fn unenrolled(method: &str) -> http::Request<()> {
    let mut request = request(method);
    let addr = "127.0.0.1:9".parse().expect("an address");
    request.extensions_mut().insert(PeerInfo::uncertified(Identity::unenrolled(), addr));
    request
}

fn applied() -> Option<RpcError> {
    in_namespace("team-a");
    about("run", "eval");
    requested(Some(RequestId { session: SessionId(300), seq: 7, ack_upto: 6 }));
    log_position::applied(3, LogPosition { index: 17, position: 0 });
    None
}

fn enrolled() -> Option<RpcError> {
    proved_identity("token", "rack-7");
    about("worker", "gpu-1");
    None
}

fn forbidden_dry_run() -> Option<RpcError> {
    dry_run_of("/rollout.v1.Cluster/SetSetting");
    Some(RpcError::new(ErrorCode::PermissionDenied, "not for clients"))
}

/// The lines, once there are so many: some are written in tasks of their own.
async fn lines(dir: &Path, count: usize) -> Vec<String> {
    let all = async {
        loop {
            let text = std::fs::read_to_string(dir.join("audit.log")).expect("the file");
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if lines.len() >= count && text.ends_with('\n') {
                return lines;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.expect("the lines")
}

/// Without what is another value each time.
fn timeless(line: &str) -> String {
    let mut line: Map<String, Value> = serde_json::from_str(line).expect("JSON");
    for key in ["time", "durationMs", "prev"] {
        if let Some(value) = line.get_mut(key).filter(|value| !value.is_null()) {
            *value = format!("<{key}>").into();
        }
    }
    Value::Object(line).to_string()
}

#[tokio::test]
async fn a_line_of_each_shape_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path());
    let mut shapes = Vec::new();
    let refused = || Some(RpcError::new(ErrorCode::RunSpecConflict, "another spec"));
    let unknown = || Some(RpcError::new(ErrorCode::NoQuorum, "no majority answered"));
    let forbidden = || Some(RpcError::new(ErrorCode::PermissionDenied, "not for clients"));
    let no_token = || Some(RpcError::new(ErrorCode::TokenRefused, "no such token"));
    type Case = (&'static str, http::Request<()>, fn() -> Option<RpcError>);
    let cases: [Case; 7] = [
        ("applied", request("Runs/CreateRun"), applied),
        ("refused", request("Runs/CreateRun"), refused),
        ("unknown", request("Runs/CreateRun"), unknown),
        ("forbidden", request("Runs/ListRuns"), forbidden),
        ("a forbidden dry run", request("DryRuns/DryRun"), forbidden_dry_run),
        ("enrolled by a token", unenrolled("Enrolment/Enrol"), enrolled),
        ("a stranger", unenrolled("Enrolment/Enrol"), no_token),
    ];
    for (shape, request, ends) in cases {
        audited(&log, request, ends).await;
        shapes.push(shape);
    }
    let ann = Identity::new(Role::Client, "ann", vec![]).expect("an identity");
    log.clone().on_revoked()(&ann, "10.0.0.7:5000".parse().expect("an address"));
    shapes.push("a handshake with a revoked certificate");
    lines(dir.path(), shapes.len()).await;
    let inner = tower::service_fn(|_: http::Request<()>| async {
        in_namespace("team-a");
        std::future::pending::<Result<http::Response<()>, Infallible>>().await
    });
    let call = AuditLayer(log.clone()).layer(inner).call(request("Members/AddMember"));
    assert!(call.now_or_never().is_none(), "it has no answer");
    shapes.push("a caller that did not wait");
    let lines = lines(dir.path(), shapes.len()).await;
    assert_eq!(lines.len(), shapes.len(), "{lines:?}");
    let (mut text, mut prev) = (String::new(), Value::Null);
    for (shape, line) in shapes.into_iter().zip(&lines) {
        let fields: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(fields["prev"], prev, "{shape} breaks the chain");
        prev = chain::hash(line.as_bytes()).into();
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{shape}\n{}\n", timeless(line));
    }
    let _ = writeln!(text, "the hash of a line\n{{}} {}", chain::hash(b"{}"));
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/audit.txt"), &text);
}
