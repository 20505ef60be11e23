//! Tests of the output files.

use super::*;
use rollout_ledger::BatchUsage;

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["custom_id"].as_str().expect("an id")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_row_has_one_line_in_the_order_of_the_input() {
    let mut bench = Bench::new();
    bench.started("batch_1", &file_of(6)).await;
    let slot = bench.register();
    let held = bench.claim(slot, 6).remove(0);
    // In another order than the input's, and in several parts.
    bench.complete("batch_1", slot, &held, &[4, 5]).await;
    let answer = r#"{"response":{"status_code":400,"request_id":"r","body":{"error":{}}}}"#;
    bench.fail(slot, &held, 3, ("ENGINE_REFUSED_ROW", answer));
    bench.complete("batch_1", slot, &held, &[0, 2]).await;
    bench.fail(slot, &held, 1, ("INVALID", "no luck"));
    bench.assemble("batch_1").await;
    let view = bench.view("batch_1");
    assert_eq!(view.status.name(), "completed");
    assert_eq!((view.total, view.completed, view.failed), (6, 4, 2));
    let usage =
        BatchUsage { input_tokens: 8, cached_tokens: 4, output_tokens: 12, reasoning_tokens: 0 };
    assert_eq!(view.usage, Some(usage));
    let output = bench.lines(&view.output_file.expect("results")).await;
    assert_eq!(ids(&output), ["row-0", "row-2", "row-4", "row-5"]);
    for line in &output {
        assert_eq!((&line["response"]["status_code"], &line["error"]), (&json!(200), &Value::Null));
        assert!(line["id"].as_str().is_some_and(|id| id.starts_with("batch_req_")), "{line}");
    }
    let errors = bench.lines(&view.error_file.expect("failures")).await;
    assert_eq!(ids(&errors), ["row-1", "row-3"]);
    let error = json!({ "code": "INVALID", "message": "no luck (attempts: 1)" });
    assert_eq!((&errors[0]["response"], &errors[0]["error"]), (&Value::Null, &error));
    assert_eq!(errors[1]["response"]["status_code"], 400, "an answer other than 2xx");
    assert_eq!(errors[1]["error"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_failures_has_no_error_file() {
    let mut bench = Bench::new();
    bench.started("batch_1", &file_of(2)).await;
    let slot = bench.register();
    let held = bench.claim(slot, 2).remove(0);
    bench.complete("batch_1", slot, &held, &[0, 1]).await;
    bench.assemble("batch_1").await;
    let view = bench.view("batch_1");
    assert_eq!((view.output_file.is_some(), view.error_file), (true, None));
}

/// Ends a batch of four rows before its last three have run, and compares the files.
async fn check_unfinished(end: impl FnOnce(&Bench), status: &str, code: &str) {
    let mut bench = Bench::new();
    bench.started("batch_1", &file_of(4)).await;
    let slot = bench.register();
    let held = bench.claim(slot, 2).remove(0);
    bench.complete("batch_1", slot, &held, &[0]).await;
    end(&bench);
    bench.assemble("batch_1").await;
    let view = bench.view("batch_1");
    assert_eq!(view.status.name(), status);
    assert_eq!((view.total, view.completed, view.failed), (4, 1, 3));
    assert_eq!(ids(&bench.lines(&view.output_file.expect("a result")).await), ["row-0"]);
    let errors = bench.lines(&view.error_file.expect("the others")).await;
    assert_eq!(ids(&errors), ["row-1", "row-2", "row-3"]);
    assert!(errors.iter().all(|line| line["error"]["code"] == code), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_did_not_run_before_the_window_ended_have_lines_that_say_so() {
    let expire = |bench: &Bench| bench.cluster.pass(WINDOW_MS + 1);
    check_unfinished(expire, "expired", "batch_expired").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_did_not_run_before_the_cancellation_have_lines_that_say_so() {
    let cancel = |bench: &Bench| {
        let batch = "batch_1".to_owned();
        drop(bench.cluster.op(OpKind::CancelBatch(op::CancelBatch { batch })));
    };
    check_unfinished(cancel, "cancelled", "batch_cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_for_an_end_that_the_batch_does_not_get_is_removed() {
    let bench = Bench::new();
    bench.started("batch_1", &file_of(2)).await;
    bench.cluster.pass(WINDOW_MS + 1);
    let task = bench.assign("batch_1", FIRST);
    let BatchWork::Finish(ends_as) = task.work else { panic!("the run has not ended") };
    let cancel = op::CancelBatch { batch: "batch_1".into() };
    bench.cluster.op(OpKind::CancelBatch(cancel));
    let before = bench.context.api.store.list("files").await.expect("listed").len();
    let error = assembly::assemble(&bench.context, &task, ends_as).await.expect_err("another end");
    assert!(matches!(error, WorkError::Lost), "{error}");
    let removed = async {
        while bench.context.api.store.list("files").await.expect("listed").len() > before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(super::drivers::PATIENCE, removed).await.expect("the files are removed");
    bench.assemble("batch_1").await;
    assert_eq!(bench.view("batch_1").status.name(), "cancelled");
}
