//! How batches end, and that an end is final.

use super::*;

/// Checks that nothing changes a batch that has ended.
fn is_final(bench: &mut Bench, id: &str, fence: BatchFence) {
    let view = bench.view(id);
    assert_eq!(view.completed + view.failed, view.total);
    assert!(view.ended_ms.is_some() && view.ended_index > 0);
    for other in
        [BatchStatus::Completed, BatchStatus::Expired, BatchStatus::Cancelled, BatchStatus::Failed]
    {
        let OpKind::FinishBatch(mut finish) = finish(bench, id, fence, other) else {
            panic!("finish");
        };
        finish.output = Some(output("file-late", bench.now));
        bench.openai_refusal(OpKind::FinishBatch(finish));
    }
    let OpKind::FailBatch(mut fail) = fail(id, fence) else { panic!("fail") };
    fail.errors.push(error(9));
    bench.openai_refusal(OpKind::FailBatch(fail));
    bench.openai_refusal(segments(id, fence, 5, &[8]));
    bench.openai_refusal(start(id, fence, &[8]));
    bench.openai_refusal(assign(id, SECOND));
    if view.status == BatchStatus::Cancelled {
        bench.granted(cancel(id));
    } else {
        let status = view.status.to_string();
        assert_eq!(bench.openai_refusal(cancel(id)), OpenAiRefusal::BatchEnded { status });
    }
    assert_eq!(bench.view(id), view);
}

#[test]
fn a_batch_is_completed_with_the_counts_of_its_run() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.started("batch_1", 8);
    bench.now += 500;
    bench.run_rows(slot, 8, 3);
    let finalizing = Some(WALL + bench.now);
    let view = bench.view("batch_1");
    assert_eq!((view.status, view.finalizing_ms), (BatchStatus::Finalizing, finalizing));
    let fence = bench.assign("batch_1", FIRST);
    bench.now += 500;
    let end = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.granted(end);
    let view = bench.view("batch_1");
    assert_eq!((view.status, view.total), (BatchStatus::Completed, 8));
    assert_eq!((view.completed, view.failed), (5, 3));
    assert_eq!((view.finalizing_ms, view.ended_ms), (finalizing, Some(WALL + bench.now)));
    assert_eq!(view.output_file.as_deref(), Some("file-o1"));
    assert_eq!(view.error_file.as_deref(), Some("file-e1"));
    assert_eq!(view.usage.expect("tokens").output_tokens, 4);
    is_final(&mut bench, "batch_1", fence);
}

#[test]
fn an_invalid_file_ends_a_batch_as_failed_with_its_errors() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    bench.granted(fail("batch_1", fence));
    let view = bench.view("batch_1");
    assert_eq!((view.status, &view.errors[..]), (BatchStatus::Failed, &[error(3)][..]));
    assert_eq!((view.total, view.run, bench.users()), (0, None, 0));
    assert!(bench.ledger.batch_segments("batch_1").is_empty());
    assert!(bench.ledger.run_views("").is_empty(), "no row has run");
    is_final(&mut bench, "batch_1", fence);
}

#[test]
fn a_batch_whose_window_has_passed_expires_and_keeps_its_finished_rows() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.now += 20_000;
    let created = bench.now;
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    // Validation takes a part of the window.
    bench.now += 10_000;
    bench.granted(start("batch_1", fence, &[8]));
    bench.run_rows(slot, 5, 1);
    bench.tick_to(created + WINDOW_MS - 1);
    assert_eq!(bench.status("batch_1"), BatchStatus::InProgress);
    bench.tick_to(created + WINDOW_MS);
    let view = bench.view("batch_1");
    assert_eq!(view.status, BatchStatus::Finalizing);
    assert_eq!(view.expires_ms, Some(WALL + created + WINDOW_MS));
    let fence = bench.assign("batch_1", FIRST);
    let wrong = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.openai_refusal(wrong);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Expired);
    bench.granted(end);
    let view = bench.view("batch_1");
    assert_eq!((view.status, view.total), (BatchStatus::Expired, 8));
    assert_eq!((view.completed, view.failed), (4, 4), "rows that never ran count as failed");
    is_final(&mut bench, "batch_1", fence);
}

#[test]
fn a_window_that_passes_during_validation_expires_the_batch_once_it_has_started() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    bench.tick_to(1000 + 2 * WINDOW_MS);
    assert_eq!(bench.status("batch_1"), BatchStatus::Validating);
    bench.granted(start("batch_1", fence, &[8]));
    bench.tick_to(bench.now + 1);
    let fence = bench.assign("batch_1", FIRST);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Expired);
    bench.granted(end);
    assert_eq!((bench.view("batch_1").total, bench.view("batch_1").failed), (8, 8));
}

#[test]
fn a_batch_in_validation_is_cancelled_at_once() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    bench.granted(cancel("batch_1"));
    let view = bench.view("batch_1");
    assert_eq!((view.status, view.cancelling_ms), (BatchStatus::Cancelled, view.ended_ms));
    assert_eq!((view.run, bench.users()), (None, 0));
    is_final(&mut bench, "batch_1", fence);
}

#[test]
fn a_cancelled_batch_keeps_its_finished_rows_and_never_completes() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.started("batch_1", 8);
    bench.run_rows(slot, 5, 0);
    bench.granted(cancel("batch_1"));
    let at = bench.view("batch_1").cancelling_ms;
    assert_eq!((bench.status("batch_1"), at), (BatchStatus::Cancelling, Some(WALL + bench.now)));
    assert!(!bench.ledger.has_work_for(slot));
    bench.now += 100;
    bench.granted(cancel("batch_1"));
    assert_eq!(bench.view("batch_1").cancelling_ms, at, "a repeat changes nothing");
    let fence = bench.assign("batch_1", FIRST);
    let status = "cancelling".to_owned();
    for wrong in [BatchStatus::Completed, BatchStatus::Expired] {
        let (status, ends_as) = (status.clone(), wrong.to_string());
        let end = finish(&bench, "batch_1", fence, wrong);
        let why = OpenAiRefusal::BatchOtherEnd { status, ends_as };
        assert_eq!(bench.openai_refusal(end), why);
    }
    let end = finish(&bench, "batch_1", fence, BatchStatus::Cancelled);
    bench.granted(end);
    let view = bench.view("batch_1");
    assert_eq!((view.completed, view.failed, view.cancelling_ms), (5, 3, at));
    is_final(&mut bench, "batch_1", fence);
}

#[test]
fn a_cancellation_that_races_with_the_last_row_wins_until_the_batch_has_ended() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.started("batch_1", 8);
    bench.run_rows(slot, 8, 0);
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(cancel("batch_1"));
    assert_eq!(bench.status("batch_1"), BatchStatus::Cancelling);
    let late = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.openai_refusal(late);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Cancelled);
    bench.granted(end);
    let view = bench.view("batch_1");
    assert_eq!((view.status, view.completed), (BatchStatus::Cancelled, 8));
    assert!(view.finalizing_ms.is_some() && view.cancelling_ms.is_some());
}

#[test]
fn an_operator_who_cancels_the_run_cancels_the_batch() {
    let mut bench = Bench::new();
    let run = bench.started("batch_1", 8);
    let (action, reason) = (crate::RunAction::Cancel, "stop".into());
    bench.granted(OpKind::ControlRun(op::ControlRun { run, action, reason }));
    let view = bench.view("batch_1");
    let at = Some(WALL + bench.now);
    assert_eq!((view.status, view.cancelling_ms), (BatchStatus::Cancelling, at));
    bench.granted(cancel("batch_1"));
    let fence = bench.assign("batch_1", FIRST);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Cancelled);
    bench.granted(end);
}

#[test]
fn output_whose_content_was_begun_too_long_ago_is_refused_and_can_be_written_again() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.started("batch_1", 8);
    bench.run_rows(slot, 8, 0);
    let fence = bench.assign("batch_1", FIRST);
    let late = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.tick_to(bench.now + crate::limits::CONTENT_WRITE_MS_MAX + 1);
    assert_eq!(bench.openai_refusal(late), OpenAiRefusal::ContentStale);
    let OpKind::FinishBatch(mut same) = finish(&bench, "batch_1", fence, BatchStatus::Completed)
    else {
        panic!("finish");
    };
    same.errors = same.output.clone();
    let why = bench.openai_refusal(OpKind::FinishBatch(same));
    assert_eq!(why, OpenAiRefusal::FileConflict("file-o1".into()));
    let end = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.granted(end);
}
