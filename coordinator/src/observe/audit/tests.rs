//! The layer around a service that refuses, answers, or never answers.

use super::*;
use crate::config::Audit;
use crate::grpc::middleware::MiddlewareLayer;
use crate::grpc::position_layer::PositionLayer;
use crate::leader::fair_room::FairRoom;
use crate::leader::proposer::LogPosition;
use rollout_proto::{Identity, Role};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(super) fn log(dir: &Path) -> Arc<AuditLog> {
    let file = Some(dir.join("audit.log"));
    Arc::new(AuditLog::open("c1", &Audit { file, ..Audit::default() }).expect("open"))
}

pub(super) fn request(method: &str) -> http::Request<()> {
    let mut request = http::Request::new(());
    *request.uri_mut() = format!("/rollout.v1.{method}").parse().expect("a path");
    let identity = Identity::new(Role::Client, "bob", vec![]).expect("an identity");
    let addr = "127.0.0.1:9".parse().expect("an address");
    request.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
    request
}

pub(super) fn answer(error: Option<RpcError>) -> http::Response<()> {
    match error {
        Some(error) => Status::from(error).into_http(),
        None => http::Response::new(()),
    }
}

/// The lines in the file after a request whose handler ends like this.
async fn audit_lines(method: &str, error: Option<RpcError>) -> Vec<Value> {
    let dir = tempfile::tempdir().expect("a directory");
    let inner = tower::service_fn(move |_: http::Request<()>| {
        let error = error.clone();
        async move {
            in_namespace("team-a");
            about("run", "eval");
            log_position::applied(3, LogPosition { index: 17, position: 0 });
            Ok::<_, Infallible>(answer(error))
        }
    });
    let mut service =
        MiddlewareLayer(PositionLayer::InAnswers).layer(AuditLayer(log(dir.path())).layer(inner));
    service.call(request(method)).await.expect("an answer");
    lines(dir.path())
}

fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("audit.log")).expect("the file");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn names_and_messages_of_megabytes_are_truncated() {
    let dir = tempfile::tempdir().expect("a directory");
    let long = "\u{e9}".repeat(8 << 20);
    let inner = tower::service_fn(move |_: http::Request<()>| {
        in_namespace(&long);
        about("run", &long);
        let error = RpcError::new(ErrorCode::RunNotFound, format!("no run {long}"));
        async move { Ok::<_, Infallible>(answer(Some(error))) }
    });
    let mut service =
        MiddlewareLayer(PositionLayer::InAnswers).layer(AuditLayer(log(dir.path())).layer(inner));
    service.call(request("Runs/CreateRun")).await.expect("an answer");
    let written = std::fs::metadata(dir.path().join("audit.log")).expect("the file").len();
    assert!(written < 8 << 10, "{written} bytes");
    assert_eq!(lines(dir.path())[0]["code"], ErrorCode::RunNotFound.code());
}

#[tokio::test]
async fn a_line_has_the_caller_the_request_and_the_outcome() {
    let line = &audit_lines("Runs/CreateRun", None).await[0];
    for (key, value) in [
        ("member", "c1"),
        ("identity", "client/bob"),
        ("role", "client"),
        ("address", "127.0.0.1:9"),
        ("method", "Runs/CreateRun"),
        ("namespace", "team-a"),
        ("subject", "run/eval"),
        ("index", "17"),
        ("outcome", "applied"),
    ] {
        assert_eq!(line[key], value, "{line}");
    }
    assert!(line["code"].is_null() && line["time"].is_string());

    let refused = RpcError::new(ErrorCode::RunSpecConflict, "another spec");
    let line = &audit_lines("Runs/CreateRun", Some(refused)).await[0];
    assert_eq!((&line["outcome"], &line["code"]), (&json!("refused"), &json!("RO-2002")));
    let unknown = RpcError::new(ErrorCode::NoQuorum, "nobody knows");
    assert_eq!(audit_lines("Runs/CreateRun", Some(unknown)).await[0]["outcome"], "unknown");
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_named_only_by_its_proved_identity() {
    let unenrolled = |name: &'static str| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = tower::service_fn(move |_: http::Request<()>| async move {
            about("token", "rack-7");
            if name.is_empty() {
                let error = RpcError::new(ErrorCode::TokenRefused, "no such token");
                return Ok::<_, Infallible>(answer(Some(error)));
            }
            proved_identity("token", "rack-7");
            about("worker", name);
            Ok(answer(None))
        });
        let mut request = request("Enrolment/Enrol");
        let addr = "127.0.0.1:9".parse().expect("an address");
        let identity = Identity::unenrolled();
        request.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
        let mut service = AuditLayer(log(dir.path())).layer(inner);
        service.call(request).await.expect("an answer");
        lines(dir.path()).remove(0)
    };
    let enrolled = unenrolled("gpu-1").await;
    assert_eq!(enrolled["identity"], "token/rack-7", "{enrolled}");
    assert_eq!(enrolled["subject"], "worker/gpu-1", "{enrolled}");
    let refused = unenrolled("").await;
    assert_eq!(refused["identity"], "newcomer/?", "{refused}");
    assert_eq!(
        (&refused["code"], &refused["subject"]),
        (&json!("RO-3009"), &json!("token/rack-7"))
    );
}

#[tokio::test]
async fn many_unauthenticated_callers_leave_room_for_audit_lines_about_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let inner = tower::service_fn(|request: http::Request<()>| async move {
        let known = request.extensions().get::<PeerInfo>().map(|peer| peer.identity.role);
        let refused = (known == Some(Role::Unenrolled))
            .then(|| RpcError::new(ErrorCode::PermissionDenied, "who are you"));
        Ok::<_, Infallible>(answer(refused))
    });
    let mut service = AuditLayer(log(dir.path())).layer(inner);
    for method in ["Cluster/Status", "Enrolment/Enrol"].into_iter().cycle().take(1000) {
        let mut request = request(method);
        let addr = "127.0.0.1:9".parse().expect("an address");
        let identity = Identity::unenrolled();
        request.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
        service.call(request).await.expect("an answer");
    }
    service.call(request("Runs/CreateRun")).await.expect("an answer");
    let lines = lines(dir.path());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["identity"], &lines[0]["untold"]), (&json!("newcomer/?"), &json!(0)));
    assert_eq!(lines[1]["identity"], "client/bob");
}

#[test]
fn the_next_line_about_strangers_says_how_many_had_none() {
    let (calls, begun) = (unauthenticated::UnauthenticatedCalls::default(), Instant::now());
    assert_eq!(calls.line_due(begun), Some(0));
    for ms in [0, 1, 9_999] {
        assert_eq!(calls.line_due(begun + Duration::from_millis(ms)), None);
    }
    assert_eq!(calls.line_due(begun + unauthenticated::LINE_EVERY), Some(3));
    assert_eq!(calls.line_due(begun + unauthenticated::LINE_EVERY), None);
}

#[tokio::test]
async fn a_path_of_kilobytes_makes_no_long_line() {
    let path = format!("None/{}", "x".repeat(60_000));
    let forbidden = RpcError::new(ErrorCode::PermissionDenied, "no");
    let lines = audit_lines(&path, Some(forbidden)).await;
    let method = lines[0]["method"].as_str().expect("a method");
    assert_eq!(method.len(), TEXT_BYTES_MAX);
}

#[tokio::test]
async fn reads_and_requests_for_another_leader_have_no_line_and_forbidden_requests_do() {
    assert!(audit_lines("Runs/ListRuns", None).await.is_empty());
    assert!(audit_lines("Worker/Work", None).await.is_empty());
    let elsewhere = RpcError::new(ErrorCode::NotLeader, "c2 leads");
    assert!(audit_lines("Runs/CreateRun", Some(elsewhere)).await.is_empty());
    let forbidden = || Some(RpcError::new(ErrorCode::PermissionDenied, "no"));
    for method in ["Runs/ListRuns", "Worker/Work", "Members/RemoveMember"] {
        let lines = audit_lines(method, forbidden()).await;
        assert_eq!(lines.len(), 1, "{method}");
        assert_eq!(lines[0]["code"], "RO-3002");
    }
}

#[tokio::test]
async fn a_request_whose_caller_did_not_wait_has_an_unknown_outcome() {
    let dir = tempfile::tempdir().expect("a directory");
    let inner = tower::service_fn(|_: http::Request<()>| async {
        in_namespace("team-a");
        std::future::pending::<Result<http::Response<()>, Infallible>>().await
    });
    let mut service = AuditLayer(log(dir.path())).layer(inner);
    let call = service.call(request("Members/AddMember"));
    assert!(tokio::time::timeout(Duration::from_millis(20), call).await.is_err());
    let line = loop {
        if let Some(line) = lines(dir.path()).pop() {
            break line;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((&line["outcome"], &line["namespace"]), (&json!("unknown"), &json!("team-a")));
}

#[tokio::test]
async fn every_request_with_an_unknown_outcome_has_its_line() {
    const MANY: usize = 3 * refusals::LINES_MAX as usize;
    let dir = tempfile::tempdir().expect("a directory");
    let inner = tower::service_fn(|request: http::Request<()>| async move {
        if request.uri().path().ends_with("AddMember") {
            std::future::pending::<()>().await;
        }
        let error = RpcError::new(ErrorCode::NoQuorum, "nobody knows");
        Ok::<_, Infallible>(answer(Some(error)))
    });
    let mut service = AuditLayer(log(dir.path())).layer(inner);
    for _ in 0..MANY {
        service.call(request("Runs/CreateRun")).await.expect("an answer");
        // Its caller disconnects at once.
        let call = service.call(request("Members/AddMember"));
        assert!(call.now_or_never().is_none(), "it has no answer");
    }
    let written = || {
        let text = std::fs::read_to_string(dir.path().join("audit.log")).expect("the file");
        text.matches('\n').count()
    };
    let all = async {
        while written() < 2 * MANY {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.expect("a line for each");
    assert!(lines(dir.path()).iter().all(|line| line["outcome"] == "unknown"));
}

#[tokio::test]
async fn lines_of_disconnected_callers_are_bounded_and_further_requests_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = Some(dir.path().join("audit.log"));
    let mut log = AuditLog::open("c1", &Audit { file, ..Audit::default() }).expect("open");
    log.room = FairRoom::new(4);
    log.admin_room = FairRoom::new(4);
    let (log, served) = (Arc::new(log), Arc::new(AtomicUsize::new(0)));
    let counted = served.clone();
    let inner = tower::service_fn(move |_: http::Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<http::Response<()>, Infallible>>()
    });
    let mut service = AuditLayer(log.clone()).layer(inner);
    // No other task runs meanwhile, so no line is written.
    let mut refused = Vec::new();
    for _ in 0..10 {
        let call = service.call(request("Members/AddMember"));
        if let Some(answer) = call.now_or_never() {
            let status = Status::from_header_map(answer.expect("an answer").headers());
            refused.push(RpcError::from_status(&status.expect("a status")));
        }
    }
    assert_eq!((served.load(Ordering::Relaxed), refused.len()), (3, 7));
    for error in &refused {
        assert_eq!(error.code, ErrorCode::Overloaded, "{error:?}");
        assert_eq!(error.outcome, Outcome::NotApplied, "{error:?}");
    }
    // The rest is for others.
    let mut others = request("Members/AddMember");
    let identity = Identity::new(Role::Client, "ann", vec![]).expect("an identity");
    let addr = "127.0.0.1:9".parse().expect("an address");
    others.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
    assert!(service.call(others).now_or_never().is_none());
    // Callers that fill the room do not keep an administrator out.
    let mut admins = request("Members/AddMember");
    let identity = Identity::new(Role::Admin, "alice", vec![]).expect("an identity");
    admins.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
    assert!(service.call(admins).now_or_never().is_none());
    let written = async {
        while log.room.left() < 4 || log.admin_room.left() < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written).await.expect("all lines are written");
    assert_eq!(lines(dir.path()).len(), 5, "one for each that was served");
    assert!(service.call(request("Members/AddMember")).now_or_never().is_none(), "there is room");
    assert_eq!(log.refusals.line_due("client/bob", Instant::now()), Some(7), "they are counted");
}
