//! Who may change a batch: only the member to which it was assigned last.

use super::*;
use crate::openai::batch::BatchCursor;
use crate::openai::batch_view::BatchWork;

fn stale(status: &str) -> OpenAiRefusal {
    OpenAiRefusal::BatchFenceStale { status: status.into() }
}

#[test]
fn no_row_runs_before_the_whole_file_is_valid() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    for have in 0..3 {
        bench.granted(segments("batch_1", fence, have, &[8]));
        assert!(!bench.ledger.has_work_for(slot), "a segment is not the whole file");
        assert_eq!((bench.view("batch_1").total, bench.view("batch_1").run), (0, None));
    }
    bench.granted(start("batch_1", fence, &[8; 3]));
    assert!(bench.ledger.has_work_for(slot));
    let view = bench.view("batch_1");
    assert_eq!((view.total, view.completed, view.failed), (24, 0, 0));
    assert_eq!((view.in_progress_ms, view.model.as_str()), (Some(WALL + bench.now), "m"));
    bench.run_rows(slot, 24, 0);
    assert_eq!(bench.status("batch_1"), BatchStatus::Finalizing);
}

#[test]
fn the_next_owner_continues_after_the_last_segment() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let first = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", first, 0, &[8]));
    bench.granted(segments("batch_1", first, 1, &[8]));
    let second = bench.assign("batch_1", SECOND);
    assert!(second > first);
    let cursor = BatchCursor { offset: 160, lines: 16, rows: 16 };
    assert_eq!(bench.task("batch_1").work, BatchWork::Validate(cursor));
    assert_eq!(bench.ledger.batch_segments("batch_1"), [segment(0, 8), segment(1, 8)]);
    bench.granted(segments("batch_1", second, 2, &[8]));
    bench.granted(start("batch_1", second, &[8; 3]));
    assert!(bench.ledger.batch_segments("batch_1").is_empty(), "the run has them");
}

#[test]
fn an_owner_that_was_replaced_changes_nothing() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let zombie = bench.assign("batch_1", FIRST);
    let owner = bench.assign("batch_1", SECOND);
    for late in [
        segments("batch_1", zombie, 0, &[8]),
        start("batch_1", zombie, &[8]),
        fail("batch_1", zombie),
        finish(&bench, "batch_1", zombie, BatchStatus::Completed),
        segments("batch_1", BatchFence::default(), 0, &[8]),
    ] {
        assert_eq!(bench.openai_refusal(late), stale("validating"));
    }
    // The same member, assigned again, has another fence.
    let again = bench.assign("batch_1", SECOND);
    assert_eq!(bench.openai_refusal(fail("batch_1", owner)), stale("validating"));
    bench.granted(fail("batch_1", again));
}

#[test]
fn the_fence_of_the_validation_ends_with_it() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    bench.granted(start("batch_1", fence, &[8]));
    bench.run_rows(slot, 8, 0);
    let early = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    assert_eq!(bench.openai_refusal(early), stale("finalizing"));
}

#[test]
fn a_repeat_of_an_owners_operation_is_granted_and_changes_nothing() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    let twice = |bench: &mut Bench, kind: OpKind| {
        bench.granted(kind.clone());
        let before = bench.ledger.state_records();
        bench.granted(kind);
        assert_eq!(bench.ledger.state_records(), before);
    };
    twice(&mut bench, segments("batch_1", fence, 0, &[8, 4]));
    twice(&mut bench, start("batch_1", fence, &[8, 4]));
    bench.run_rows(slot, 12, 0);
    let fence = bench.assign("batch_1", FIRST);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    twice(&mut bench, end);
    bench.create("batch_2");
    let fence = bench.assign("batch_2", FIRST);
    twice(&mut bench, fail("batch_2", fence));
}

#[test]
fn segments_that_do_not_continue_the_input_are_refused() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    for (have, rows) in [(2, vec![8]), (0, vec![7])] {
        let why = bench.refused(segments("batch_1", fence, have, &rows));
        assert!(matches!(why, Rejection::SegmentConflict { have: 1, .. }), "{why:?}");
    }
    let OpKind::AddBatchSegments(mut still) = segments("batch_1", fence, 1, &[8]) else {
        panic!("segments");
    };
    still.offset = 80;
    let why = bench.refused(OpKind::AddBatchSegments(still));
    assert!(matches!(why, Rejection::Invalid(_)), "{why:?}");
    let why = bench.refused(start("batch_1", fence, &[9]));
    assert_eq!(why, Rejection::InputMismatch { rows: 8 });
}

#[test]
fn output_that_a_dead_member_did_not_write_is_written_by_the_next_owner() {
    let mut bench = Bench::new();
    let slot = bench.register();
    bench.started("batch_1", 8);
    bench.run_rows(slot, 8, 0);
    let work = BatchWork::Finish(BatchStatus::Completed);
    assert_eq!((bench.task("batch_1").owner, bench.task("batch_1").work), (None, work));
    let dead = bench.assign("batch_1", FIRST);
    let owner = bench.assign("batch_1", SECOND);
    let late = finish(&bench, "batch_1", dead, BatchStatus::Completed);
    assert_eq!(bench.openai_refusal(late), stale("finalizing"));
    assert!(bench.ledger.api_file("file-o1").is_none());
    let end = finish(&bench, "batch_1", owner, BatchStatus::Completed);
    bench.granted(end);
    let file = bench.ledger.api_file("file-o1").expect("the output");
    assert_eq!(file.spec.purpose, FilePurpose::BatchOutput);
    assert!(bench.ledger.batch_tasks().is_empty());
}

#[test]
fn only_batches_with_work_are_assigned() {
    let mut bench = Bench::new();
    bench.started("batch_1", 8);
    assert!(bench.ledger.batch_tasks().is_empty(), "the workers have the rows");
    assert_eq!(bench.openai_refusal(assign("batch_1", FIRST)), stale("in_progress"));
    let unknown = OpenAiRefusal::BatchUnknown("batch_9".into());
    assert_eq!(bench.openai_refusal(assign("batch_9", FIRST)), unknown);
    bench.granted(cancel("batch_1"));
    bench.assign("batch_1", FIRST);
}

#[test]
fn a_restored_cluster_assigns_all_work_anew() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let before = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", before, 0, &[8]));
    let restored = bench.ledger.clone().restored([2; 16], WALL);
    restored.check_invariants().expect("they hold");
    let task = restored.batch_tasks().pop().expect("work");
    assert_eq!((task.owner, restored.batch_segments("batch_1").len()), (None, 1));
}
