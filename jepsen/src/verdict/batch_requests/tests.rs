//! Short histories of a batch of forty rows, correct and wrong.

use super::*;

const NUMBER: u64 = 3;
const ROWS: u64 = 40;

fn answered_op(f: &str, value: Value, called_at: u64) -> Operation {
    let input = match f {
        "submit" => Value::List(vec![Value::Int(NUMBER as i64), Value::Int(ROWS as i64)]),
        _ => Value::Nil,
    };
    let outcome = Outcome::Answered { value, at: called_at + 1, line: 0, position: None };
    let (f, key) = (f.into(), Some("batch-3".into()));
    Operation { process: 0, request: None, f, key, input, called_at, line: 0, outcome }
}

fn counts_of(running: i64, done: i64, failed: i64) -> Value {
    let left = ROWS as i64 - running - done - failed;
    Value::List([ROWS as i64, left, 0, running, done, failed].map(Value::Int).to_vec())
}

/// An output in which each row of these is done, in that part.
fn lines(rows: std::ops::Range<i64>, part: &str) -> Value {
    let line = |row| {
        Value::List(vec![Value::Int(row), Value::text("done"), Value::text("…"), Value::text(part)])
    };
    Value::List(rows.map(line).collect())
}

fn alarms(story: &[Operation]) -> Vec<String> {
    judged(story).violations
}

fn wrong(story: &[Operation], says: &str) {
    let found = alarms(story);
    assert!(found.iter().any(|alarm| alarm.contains(says)), "{says}: {found:?}");
}

fn with(mut story: Vec<Operation>, more: Operation) -> Vec<Operation> {
    story.push(more);
    story
}

fn cancelled() -> Vec<Operation> {
    vec![
        answered_op("submit", Value::text("enough"), 10),
        answered_op("progress", counts_of(6, 4, 0), 20),
        answered_op("cancel", counts_of(0, 5, 0), 30),
        answered_op("kept", counts_of(0, 5, 0), 40),
        answered_op("partial", lines(0..5, "p"), 50),
    ]
}

#[test]
fn a_cancelled_batch_keeps_what_was_done_and_takes_nothing_after() {
    assert_eq!(alarms(&cancelled()), Vec::<String>::new());
    for (more, says) in [
        (answered_op("kept", counts_of(0, 6, 0), 60), "and later (6, 0)"),
        (answered_op("kept", counts_of(0, 4, 0), 60), "and later (4, 0)"),
        (answered_op("progress", counts_of(2, 5, 0), 60), "under way"),
        (answered_op("partial", lines(0..6, "p"), 60), "exported with 6 and 0"),
        (answered_op("partial", lines(0..4, "p"), 60), "exported with 4 and 0"),
        (answered_op("resume", Value::Nil, 60), "a resume was not refused"),
        (answered_op("retry", Value::Int(0), 60), "a retry was not refused"),
        (answered_op("cancel", Value::Nil, 5), "answered nil"),
    ] {
        wrong(&with(cancelled(), more), says);
    }
    // Asked before it was cancelled, answered after.
    let early = with(cancelled(), answered_op("kept", counts_of(3, 5, 0), 29));
    assert_eq!(alarms(&early), Vec::<String>::new());
}

#[test]
fn a_deleted_batch_goes_and_never_comes_back() {
    let described = |state: &str, at| answered_op("described", Value::text(state), at);
    let deleted = || {
        vec![
            answered_op("submit", Value::Nil, 10),
            answered_op("export", lines(0..40, "p"), 20),
            answered_op("delete", Value::Nil, 30),
            described("RUN_STATE_DELETING", 40),
            described("none", 50),
        ]
    };
    assert_eq!(alarms(&with(deleted(), described("none", 60))), Vec::<String>::new());
    wrong(&with(deleted(), described("RUN_STATE_FINISHED", 45)), "after it was deleted");
    wrong(&with(deleted(), described("RUN_STATE_DELETING", 60)), "after it was gone");
    let before = with(deleted(), described("RUN_STATE_FINISHED", 25));
    assert_eq!(alarms(&before), Vec::<String>::new());
}

#[test]
fn rows_that_are_tried_again_are_those_that_failed_and_change_nothing_that_was_done() {
    let failing_rows =
        (0..ROWS).filter(|row| ExpectedOutcome::of(NUMBER, *row).class().is_some()).count() as i64;
    let retried = |again, part: &str| {
        vec![
            answered_op("submit", Value::Nil, 10),
            answered_op("export", lines(0..30, "p"), 20),
            answered_op("retry", Value::Int(again), 30),
            answered_op("export", lines(0..30, part), 50),
        ]
    };
    assert_eq!(alarms(&retried(failing_rows, "p")), Vec::<String>::new());
    wrong(&retried(failing_rows + 1, "p"), "rows are tried again");
    wrong(&retried(-1, "p"), "rows are tried again");
    wrong(
        &retried(failing_rows, "q"),
        "row 0 was (\"done\", \"p\"), and is Some((\"done\", \"q\"))",
    );
    let mut lost = retried(failing_rows, "p");
    lost[3] = answered_op("export", lines(1..30, "p"), 50);
    wrong(&lost, "row 0 was (\"done\", \"p\"), and is None");
}

#[test]
fn rows_that_are_done_no_more_are_found_and_failed_ones_unless_they_are_tried_again() {
    let story = |done, failed| {
        vec![
            answered_op("submit", Value::Nil, 10),
            answered_op("progress", counts_of(0, 9, 2), 20),
            answered_op("progress", counts_of(0, done, failed), 30),
        ]
    };
    assert_eq!(alarms(&story(9, 2)), Vec::<String>::new());
    wrong(&story(8, 3), "and later (8, 3)");
    wrong(&story(10, 1), "and later (10, 1)");
    let again = with(story(10, 1), answered_op("retry", Value::Int(1), 25));
    assert_eq!(alarms(&again), Vec::<String>::new());
}

#[test]
fn a_run_without_batch_requests_reports_that() {
    let counts = judged(&cancelled()).counts;
    assert_eq!(counts.iter().map(|count| count.1).collect::<Vec<_>>(), [1, 0, 0]);
}
