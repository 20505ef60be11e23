use crate::openai::files::tests::{Answer, Bench};
use axum::body::Body;
use axum::http::Request;
use rollout_ledger::{BatchError, BatchTask, KeyLimits, OpKind, op};
use serde_json::{Value, json};

const ENDPOINT: &str = "/v1/chat/completions";
/// The caller of [`Bench::new`].
const KEY: &str = "default0";

fn request(file: &str) -> Value {
    json!({ "input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h" })
}

/// The request with other fields.
fn with(file: &str, fields: Value) -> Value {
    let mut request = request(file);
    for (field, value) in fields.as_object().expect("fields") {
        request[field] = value.clone();
    }
    request
}

fn id_of(batch: &Value) -> String {
    batch["id"].as_str().expect("an id").to_owned()
}

/// A cluster whose workers serve the endpoint, and a file for batches.
async fn served() -> (Bench, String) {
    let bench = Bench::new();
    bench.cluster.register_routes("default", "/v1/chat/completions /v1/completions");
    let file = bench.file(b"{\"custom_id\":\"1\"}\n").await;
    (bench, file)
}

impl Bench {
    async fn batch(&self, request: Value) -> Value {
        let answer = self.post("/v1/batches", request).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()
    }

    async fn with_key(&self, key: &str, request: Value) -> Answer {
        let sent = Request::post("/v1/batches")
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        self.send(sent.body(Body::from(request.to_string())).expect("a request")).await
    }

    async fn cancel_batch(&self, id: &str) -> Answer {
        self.send(
            Request::post(format!("/v1/batches/{id}/cancel"))
                .body(Body::empty())
                .expect("a request"),
        )
        .await
    }

    /// Ends the batch as a member does that finds a wrong line.
    fn fail_batch(&self, id: &str) {
        let batch = id.to_owned();
        self.cluster.op(OpKind::AssignBatch(op::AssignBatch { batch: batch.clone(), member: 1 }));
        let tasks: Vec<BatchTask> = self.cluster.api().ledger(|l| l.batch_tasks_of(1));
        let fence = tasks.iter().find(|task| task.batch == id).expect("work").fence;
        let errors = vec![BatchError {
            code: "invalid_json_line".into(),
            message: "It is not JSON.".into(),
            param: None,
            line: Some(1),
        }];
        self.cluster.op(OpKind::FailBatch(op::FailBatch { batch, fence, errors }));
    }
}

#[tokio::test]
async fn a_batch_is_created_retrieved_and_listed() {
    let (bench, file) = served().await;
    let fields = json!({
        "metadata": { "team": "a" },
        "output_expires_after": { "anchor": "created_at", "seconds": 3600 },
        "rollout": { "priority": 7 },
        "a_field_of_tomorrow": [1],
    });
    let batch = bench.batch(with(&file, fields)).await;
    let id = id_of(&batch);
    assert!(id.starts_with("batch_"), "{id}");
    for (field, value) in [
        ("object", json!("batch")),
        ("endpoint", json!(ENDPOINT)),
        ("input_file_id", json!(file)),
        ("completion_window", json!("24h")),
        ("status", json!("validating")),
        ("metadata", json!({ "team": "a" })),
        ("request_counts", json!({ "total": 0, "completed": 0, "failed": 0 })),
    ] {
        assert_eq!(batch[field], value, "{field}");
    }
    let created_at = batch["created_at"].as_u64().expect("a time");
    assert_eq!(batch["expires_at"], created_at + 24 * 60 * 60);
    assert_eq!(bench.get(&format!("/v1/batches/{id}")).await.json(), batch);
    let list = bench.get("/v1/batches").await.json();
    assert_eq!(
        list,
        json!({
            "object": "list", "data": [batch], "first_id": id, "last_id": id, "has_more": false,
        })
    );
    let view = bench.cluster.api().ledger(|l| l.batch_view(&id)).expect("a batch");
    assert_eq!((view.key.as_str(), view.spec.output_ttl_ms), (KEY, 3_600_000));
    assert_eq!(view.spec.options_json, r#"{"priority":7}"#);
    assert_eq!(bench.delete(&file).await.error(), (409, "file_in_use".to_owned()));
}

#[tokio::test]
async fn lists_have_the_newest_batch_first_and_continue_after_an_id() {
    let (bench, file) = served().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(id_of(&bench.batch(request(&file)).await));
    }
    ids.reverse();
    let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = bench.get(&format!("/v1/batches?limit=2{after}")).await.json();
        let data = page["data"].as_array().expect("a list");
        seen.extend(data.iter().map(id_of));
        after = format!("&after={}", page["last_id"].as_str().expect("an id"));
        pages += 1;
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!((pages, seen), (3, ids));
    for (query, status, param) in [
        ("limit=0", 400, "limit"),
        ("limit=101", 400, "limit"),
        ("after=7", 404, "after"),
        ("after=batch_none", 404, "after"),
    ] {
        let answer = bench.get(&format!("/v1/batches?{query}")).await;
        assert_eq!(answer.status, status, "{query}");
        assert_eq!(answer.json()["error"]["param"], param, "{query}");
    }
    let team = bench.team().get("/v1/batches").await.json();
    assert_eq!((&team["data"], &team["first_id"]), (&json!([]), &Value::Null));
}

#[tokio::test]
async fn faults_of_a_request_are_answered_at_once() {
    let (bench, file) = served().await;
    let other = bench.create(&[("purpose", None, b"user_data"), ("file", Some("a"), b"2")]).await;
    let other = other.json()["id"].as_str().expect("an id").to_owned();
    let many: Value =
        (0..17).map(|n| (n.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    let (long_key, long_value) = (json!({ "k".repeat(65): "v" }), json!({ "k": "é".repeat(513) }));
    let late = json!({ "anchor": "created_at", "seconds": 60 });
    let anchor = json!({ "anchor": "now", "seconds": 3600 });
    for (fields, code, param) in [
        (json!({ "endpoint": null }), "missing_required_parameter", "endpoint"),
        (json!({ "input_file_id": null }), "missing_required_parameter", "input_file_id"),
        (json!({ "completion_window": null }), "missing_required_parameter", "completion_window"),
        (json!({ "input_file_id": 7 }), "invalid_value", "input_file_id"),
        (json!({ "input_file_id": "file-none" }), "invalid_value", "input_file_id"),
        (json!({ "input_file_id": other }), "invalid_value", "input_file_id"),
        (json!({ "endpoint": "/v1/embeddings" }), "invalid_url", "endpoint"),
        (json!({ "endpoint": "" }), "invalid_value", "endpoint"),
        (json!({ "completion_window": "a day" }), "invalid_value", "completion_window"),
        (json!({ "metadata": [] }), "invalid_value", "metadata"),
        (json!({ "metadata": { "k": 1 } }), "invalid_value", "metadata"),
        (json!({ "metadata": many }), "invalid_value", "metadata"),
        (json!({ "metadata": long_key }), "invalid_value", "metadata"),
        (json!({ "metadata": long_value }), "invalid_value", "metadata"),
        (json!({ "metadata": { "rollout.key": "" } }), "invalid_value", "metadata"),
        (json!({ "output_expires_after": 7 }), "invalid_value", "output_expires_after"),
        (json!({ "output_expires_after": late }), "invalid_value", "output_expires_after.seconds"),
        (json!({ "output_expires_after": anchor }), "invalid_value", "output_expires_after.anchor"),
        (json!({ "stream": true }), "streaming_unsupported", "stream"),
        (json!({ "rollout": { "weight": 0 } }), "invalid_value", "rollout"),
        (json!({ "rollout": { "speed": 1 } }), "invalid_value", "rollout"),
    ] {
        let answer = bench.post("/v1/batches", with(&file, fields.clone())).await;
        assert_eq!(answer.error(), (400, code.to_owned()), "{fields}");
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
    let answer = bench.post("/v1/batches", json!([])).await;
    assert_eq!(answer.error(), (400, "invalid_json".to_owned()));
    let team = bench.team().post("/v1/batches", request(&file)).await;
    assert_eq!(team.error(), (400, "invalid_url".to_owned()), "workers of one namespace");
    assert_eq!(bench.get("/v1/batches").await.json()["data"], json!([]));
}

#[tokio::test]
async fn an_error_repeats_only_a_part_of_a_long_field() {
    let (bench, file) = served().await;
    let long = "é".repeat(10_000);
    let mut unknown = json!({});
    unknown[&long] = json!(1);
    for fields in [
        json!({ "rollout": unknown }),
        json!({ "endpoint": long }),
        json!({ "input_file_id": long }),
    ] {
        let answer = bench.post("/v1/batches", with(&file, fields)).await;
        assert!(answer.status == 400 && answer.body.len() < 600, "{:?}", answer.body);
    }
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_batch_and_another_one_with_its_key_is_refused() {
    let (bench, file) = served().await;
    let own = with(&file, json!({ "metadata": { "rollout.key": "nightly" } }));
    let first = bench.batch(own.clone()).await;
    assert_eq!(bench.batch(own.clone()).await, first);
    let keyed = bench.with_key("k1", request(&file)).await.json();
    assert_ne!(id_of(&keyed), id_of(&first));
    assert_eq!(bench.with_key("k1", request(&file)).await.json(), keyed);
    // Unknown fields do not make it another request.
    let more = with(&file, json!({ "unknown": 1 }));
    assert_eq!(bench.with_key("k1", more).await.json(), keyed);
    let reused = (422, "idempotency_key_reused".to_owned());
    let other = with(&file, json!({ "completion_window": "1h" }));
    assert_eq!(bench.with_key("k1", other.clone()).await.error(), reused);
    let mut other = own.clone();
    other["completion_window"] = json!("1h");
    assert_eq!(bench.post("/v1/batches", other).await.error(), reused);
    let long = "k".repeat(256);
    for key in ["", &long] {
        let answer = bench.with_key(key, request(&file)).await;
        assert_eq!(answer.error(), (400, "invalid_value".to_owned()));
    }
    let list = bench.get("/v1/batches").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_repeat_gets_its_batch_although_a_new_request_would_be_refused() {
    let (bench, file) = served().await;
    let first = bench.with_key("k1", request(&file)).await.json();
    let id = id_of(&first);
    bench.fail_batch(&id);
    assert_eq!(bench.delete(&file).await.status, 200);
    // The worker comes back with another engine.
    bench.cluster.register_routes("default", "/v1/embeddings");
    let repeat = bench.with_key("k1", request(&file)).await.json();
    assert_eq!((id_of(&repeat), &repeat["status"]), (id, &json!("failed")));
    let new = bench.with_key("k2", request(&file)).await;
    assert_eq!(new.error(), (400, "invalid_url".to_owned()));
}

#[tokio::test]
async fn cancelling_is_idempotent_and_an_end_stays() {
    let (bench, file) = served().await;
    let id = id_of(&bench.batch(request(&file)).await);
    let cancelled = bench.cancel_batch(&id).await.json();
    assert_eq!(cancelled["status"], "cancelled", "no row has run");
    assert!(cancelled["cancelled_at"].is_u64() && cancelled["cancelling_at"].is_u64());
    assert_eq!(bench.cancel_batch(&id).await.json(), cancelled, "a repeat");
    let failed = id_of(&bench.batch(request(&file)).await);
    bench.fail_batch(&failed);
    let answer = bench.cancel_batch(&failed).await;
    assert_eq!(answer.error(), (409, "batch_state_conflict".to_owned()));
    assert_eq!(answer.headers["x-should-retry"], "false");
    let batch = bench.get(&format!("/v1/batches/{failed}")).await.json();
    assert_eq!(
        (&batch["status"], &batch["errors"]["data"][0]["line"]),
        (&json!("failed"), &json!(1))
    );
    assert!(batch["failed_at"].is_u64(), "{batch}");
    assert_eq!(bench.delete(&file).await.status, 200, "no open batch uses it");
}

#[tokio::test]
async fn a_caller_of_another_namespace_does_not_see_that_a_batch_exists() {
    let (bench, file) = served().await;
    let id = id_of(&bench.batch(request(&file)).await);
    let (team, unknown) = (bench.team(), "batch_0123");
    for (theirs, none) in [
        (
            team.get(&format!("/v1/batches/{id}")).await,
            team.get(&format!("/v1/batches/{unknown}")).await,
        ),
        (team.cancel_batch(&id).await, team.cancel_batch(unknown).await),
        (
            team.get(&format!("/v1/batches?after={id}")).await,
            team.get(&format!("/v1/batches?after={unknown}")).await,
        ),
    ] {
        assert_eq!(theirs.error(), (404, "not_found".to_owned()));
        assert_eq!(theirs.json().to_string().replace(&id, unknown), none.json().to_string());
    }
    assert_eq!(bench.get(&format!("/v1/batches/{id}")).await.json()["status"], "validating");
}

#[tokio::test]
async fn a_key_may_have_as_many_open_batches_as_its_limit() {
    let (bench, file) = served().await;
    let limits = KeyLimits { open_batches: 1, ..KeyLimits::default() };
    bench.cluster.op(crate::openai::test_cluster::create_key(
        KEY,
        "default",
        rollout_ledger::KeyRole::Client,
        limits,
    ));
    let first = id_of(&bench.batch(request(&file)).await);
    let answer = bench.post("/v1/batches", request(&file)).await;
    assert_eq!(answer.error(), (429, "batch_limit_exceeded".to_owned()));
    assert_eq!(answer.headers["x-should-retry"], "false");
    bench.cancel_batch(&first).await;
    bench.batch(request(&file)).await;
}
