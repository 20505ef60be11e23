use super::*;
use crate::config::Audit;
use crate::openai::test_cluster::{TestCluster, key};
use http_body_util::BodyExt;
use rollout_ledger::KeyRole;
use serde_json::Value;
use tower::ServiceExt;

/// The API of one member, without its port.
struct Served {
    cluster: TestCluster,
    gate: Arc<Gate>,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Audit { file: Some(dir.path().join("audit.log")), ..Audit::default() };
        let audit = Arc::new(AuditLog::open("c1", &config).expect("open"));
        let cluster = TestCluster::new();
        cluster.add_key("abcdefgh", "default", KeyRole::Client);
        let gate = Gate::new(cluster.api(), audit);
        Self { cluster, gate, _dir: dir }
    }

    async fn ask(&self, method: &str, path: &str, key_id: &str) -> (Response<()>, Value) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {}", key(key_id)));
        let request = request.header("openai-organization", "org-1").body(Body::empty());
        let router = router(self.gate.clone());
        let response = router.oneshot(request.expect("a request")).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let json = serde_json::from_slice(&bytes).expect("JSON");
        (Response::from_parts(parts, ()), json)
    }
}

type Response<T> = axum::http::Response<T>;

#[tokio::test]
async fn a_caller_sees_the_models_of_its_namespace() {
    let served = Served::new();
    served.cluster.register_worker("default", &["org/big", "small@v2"]);
    let (response, list) = served.ask("GET", "/v1/models", "abcdefgh").await;
    assert_eq!(response.status(), 200);
    assert_eq!(list["object"], "list");
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["org/big", "small"]);
    for (field, value) in [("object", "model"), ("owned_by", "rollout")] {
        assert_eq!(list["data"][0][field], value);
    }
    assert!(list["data"][0]["created"].as_u64().is_some_and(|at| at > 0));
    let (response, model) = served.ask("GET", "/v1/models/org/big", "abcdefgh").await;
    assert_eq!((response.status().as_u16(), &model), (200, &list["data"][0]));
    let (response, error) = served.ask("GET", "/v1/models/none", "abcdefgh").await;
    assert_eq!((response.status().as_u16(), &error["error"]["code"]), (404, &"not_found".into()));
    served.cluster.add_key("other123", "team", KeyRole::Viewer);
    let (_, list) = served.ask("GET", "/v1/models", "other123").await;
    assert_eq!(list["data"], Value::Array(Vec::new()), "another namespace");
}

#[tokio::test]
async fn every_answer_has_an_id_and_every_error_the_form_of_openai() {
    let served = Served::new();
    let mut ids = std::collections::BTreeSet::new();
    for (method, path, key_id, status, code) in [
        ("GET", "/v1/models", "abcdefgh", 200, None),
        ("GET", "/v1/nothing", "abcdefgh", 404, Some("unknown_url")),
        ("GET", "/", "abcdefgh", 404, Some("unknown_url")),
        ("DELETE", "/v1/models", "abcdefgh", 405, Some("method_not_allowed")),
        ("GET", "/v1/models", "unknown1", 401, Some("invalid_api_key")),
        ("GET", "/v1/nothing", "unknown1", 401, Some("invalid_api_key")),
    ] {
        let (response, body) = served.ask(method, path, key_id).await;
        assert_eq!(response.status(), status, "{method} {path}: {body}");
        assert_eq!(body["error"]["code"].as_str(), code, "{method} {path}");
        let id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
        assert!(id.starts_with("req_") && id.len() == 28, "{id}");
        ids.insert(id);
        if code.is_some() {
            assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string());
        }
    }
    assert_eq!(ids.len(), 6);
}

#[tokio::test]
async fn a_viewer_changes_nothing_and_a_member_without_a_leader_says_when_to_ask_again() {
    let served = Served::new();
    served.cluster.add_key("viewer12", "default", KeyRole::Viewer);
    let (response, body) = served.ask("POST", "/v1/nothing", "viewer12").await;
    assert_eq!(
        (response.status().as_u16(), &body["error"]["type"]),
        (403, &"permission_error".into())
    );
    served.cluster.lose_contact();
    let (response, body) = served.ask("GET", "/v1/models", "abcdefgh").await;
    assert_eq!((response.status().as_u16(), &body["error"]["code"]), (503, &"no_leader".into()));
    assert_eq!(response.headers()["retry-after-ms"], "300");
}

#[tokio::test]
async fn a_key_over_its_rate_is_told_when_to_ask_again() {
    let served = Served::new();
    served.cluster.add_key_with_rate("limited1", "default", 1);
    assert_eq!(served.ask("GET", "/v1/models", "limited1").await.0.status(), 200);
    let (response, body) = served.ask("GET", "/v1/models", "limited1").await;
    assert_eq!(
        (response.status().as_u16(), &body["error"]["code"]),
        (429, &"rate_limit_exceeded".into())
    );
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(served.ask("GET", "/v1/models", "abcdefgh").await.0.status(), 200, "another key");
}

#[tokio::test]
async fn requests_beyond_the_bound_are_refused_and_finished_ones_leave_their_places() {
    let served = Served::new();
    let places = served.gate.room.clone().acquire_many_owned(REQUESTS_MAX as u32 - 1).await;
    let router = router(served.gate.clone());
    let request = Request::builder().uri("/v1/models");
    let request = request.header("authorization", format!("Bearer {}", key("abcdefgh")));
    let request = request.body(Body::empty()).expect("a request");
    let unread = router.oneshot(request).await.expect("an answer");
    let (response, body) = served.ask("GET", "/v1/models", "abcdefgh").await;
    assert_eq!((response.status().as_u16(), &body["error"]["code"]), (503, &"overloaded".into()));
    drop(unread);
    assert_eq!(served.ask("GET", "/v1/models", "abcdefgh").await.0.status(), 200);
    drop(places);
}
