use super::*;
use rollout_ledger::BatchSpec;
use serde_json::{Value, json};

const CREATED_MS: u64 = 1_700_000_000_000;

/// A batch in validation.
fn view() -> BatchView {
    BatchView {
        id: "batch_1".into(),
        namespace: "default".into(),
        key: "abcdefgh".into(),
        spec: BatchSpec {
            endpoint: "/v1/completions".into(),
            input_file: "file-1".into(),
            completion_window: "24h".into(),
            window_ms: 86_400_000,
            ..BatchSpec::default()
        },
        model: String::new(),
        status: BatchStatus::Validating,
        errors: Vec::new(),
        output_file: None,
        error_file: None,
        total: 0,
        completed: 0,
        failed: 0,
        usage: None,
        run: None,
        created_ms: CREATED_MS + 900,
        in_progress_ms: None,
        expires_ms: Some(CREATED_MS + 86_400_900),
        finalizing_ms: None,
        cancelling_ms: None,
        ended_ms: None,
        ended_index: 0,
    }
}

/// A batch that has ended.
fn ended(status: BatchStatus, completed: u64, failed: u64) -> BatchView {
    BatchView {
        status,
        total: completed + failed,
        completed,
        failed,
        output_file: (completed > 0).then(|| "file-o".into()),
        error_file: (failed > 0).then(|| "file-e".into()),
        ended_ms: Some(CREATED_MS + 5000),
        ..view()
    }
}

fn json_of(view: BatchView) -> Value {
    serde_json::to_value(BatchObject::from(view)).expect("JSON")
}

#[test]
fn a_new_batch_has_every_field_and_null_where_nothing_has_happened() {
    let wanted = json!({
        "id": "batch_1", "object": "batch", "endpoint": "/v1/completions", "model": null, "errors": null,
        "input_file_id": "file-1", "completion_window": "24h", "status": "validating",
        "output_file_id": null, "error_file_id": null, "created_at": 1_700_000_000, "in_progress_at": null,
        "expires_at": 1_700_086_400, "finalizing_at": null, "completed_at": null, "failed_at": null,
        "expired_at": null, "cancelling_at": null, "cancelled_at": null,
        "request_counts": { "total": 0, "completed": 0, "failed": 0 }, "usage": null, "metadata": null,
    });
    assert_eq!(json_of(view()), wanted);
}

#[test]
fn the_end_of_a_batch_has_the_time_of_its_status_only() {
    let times = ["completed_at", "failed_at", "expired_at", "cancelled_at"];
    for (status, time) in [
        (BatchStatus::Completed, "completed_at"),
        (BatchStatus::Failed, "failed_at"),
        (BatchStatus::Expired, "expired_at"),
        (BatchStatus::Cancelled, "cancelled_at"),
    ] {
        let batch = json_of(ended(status, 1, 1));
        assert_eq!(batch["status"], status.name());
        for name in times {
            let wanted = if name == time { json!(1_700_000_005) } else { Value::Null };
            assert_eq!(batch[name], wanted, "{name} of {status}");
        }
    }
}

#[test]
fn metadata_model_and_usage_are_those_of_the_batch() {
    let mut view = ended(BatchStatus::Completed, 2, 0);
    view.spec.metadata = [("team".to_owned(), "a".to_owned())].into();
    view.model = "m".into();
    view.usage = Some(BatchUsage {
        input_tokens: 3,
        cached_tokens: 1,
        output_tokens: 4,
        reasoning_tokens: 2,
    });
    let batch = json_of(view);
    assert_eq!((&batch["metadata"], &batch["model"]), (&json!({ "team": "a" }), &json!("m")));
    let usage = json!({
        "input_tokens": 3, "input_tokens_details": { "cached_tokens": 1 },
        "output_tokens": 4, "output_tokens_details": { "reasoning_tokens": 2 }, "total_tokens": 7,
    });
    assert_eq!(batch["usage"], usage);
    assert_eq!(batch["request_counts"], json!({ "total": 2, "completed": 2, "failed": 0 }));
}

#[test]
fn a_failed_batch_lists_what_is_wrong_with_its_file() {
    let error = BatchError {
        code: "duplicate_custom_id".into(),
        message: "The custom_id is that of line 2.".into(),
        param: Some("custom_id".into()),
        line: Some(7),
    };
    let view = BatchView { errors: vec![error], ..ended(BatchStatus::Failed, 0, 0) };
    let data = json!([{
        "code": "duplicate_custom_id", "message": "The custom_id is that of line 2.",
        "param": "custom_id", "line": 7,
    }]);
    assert_eq!(json_of(view)["errors"], json!({ "object": "list", "data": data }));
}

#[test]
fn a_batch_without_any_result_says_why_its_output_file_is_null() {
    for status in [BatchStatus::Completed, BatchStatus::Expired, BatchStatus::Cancelled] {
        let batch = json_of(ended(status, 0, 3));
        assert_eq!(
            (&batch["output_file_id"], &batch["error_file_id"]),
            (&Value::Null, &json!("file-e"))
        );
        let error = &batch["errors"]["data"][0];
        assert_eq!(error["code"], NO_REQUEST_SUCCEEDED);
        assert_eq!((&error["line"], &error["param"]), (&Value::Null, &Value::Null));
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("(3)") && message.contains("error_file_id"), "{message}");
    }
    let running = BatchView { ended_ms: None, ..ended(BatchStatus::InProgress, 0, 3) };
    for view in [
        running,
        ended(BatchStatus::Completed, 1, 2),
        // No request ran, and there is no file: it was cancelled in validation.
        ended(BatchStatus::Cancelled, 0, 0),
    ] {
        assert_eq!(json_of(view)["errors"], Value::Null);
    }
}
