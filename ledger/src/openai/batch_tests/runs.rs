//! The runs of batches, lists of batches, and how long their records are kept.

use super::*;
use crate::kernel::limits;

fn retry(run: RunNo) -> OpKind {
    OpKind::RetryRows(op::RetryRows { run, rows: None })
}

fn delete(run: RunNo) -> OpKind {
    OpKind::DeleteRun(op::DeleteRun { run })
}

fn due(bench: &Bench) -> usize {
    let due = bench.ledger.forgettable(LedgerMs(u64::MAX), 1, 1);
    due.seal.len() + due.delete.len()
}

#[test]
fn the_rows_of_a_batch_stay_until_its_output_is_written_and_run_only_once() {
    let mut bench = Bench::new();
    let slot = bench.register();
    let run = bench.started("batch_1", 8);
    let batch = || "batch_1".to_owned();
    bench.run_rows(slot, 4, 2);
    // While the batch runs, an operator may retry rows.
    assert_eq!(bench.granted(retry(run)), Reply::Retried { rows: 2 });
    bench.run_rows(slot, 6, 1);
    assert_eq!(bench.status("batch_1"), BatchStatus::Finalizing);
    let in_use = OpenAiRefusal::RunOfOpenBatch { batch: batch() };
    let is_final = OpenAiRefusal::RunOfBatch { batch: batch() };
    assert_eq!(bench.openai_refusal(delete(run)), in_use);
    assert_eq!(bench.openai_refusal(retry(run)), is_final);
    assert_eq!(due(&bench), 0);
    let fence = bench.assign("batch_1", FIRST);
    let end = finish(&bench, "batch_1", fence, BatchStatus::Completed);
    bench.granted(end);
    assert_eq!(bench.openai_refusal(retry(run)), is_final);
    assert_eq!(due(&bench), 1);
    let view = bench.view("batch_1");
    bench.granted(delete(run));
    bench.granted(OpKind::ForgetRun(op::ForgetRun { run }));
    assert_eq!(bench.view("batch_1"), view, "the record of a batch outlives its run");
}

#[test]
fn the_name_and_the_folder_of_a_batchs_run_are_its_own_from_the_beginning() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let (namespace, name) = ("default".to_owned(), "batch_1".to_owned());
    let create = || {
        OpKind::CreateRun(op::CreateRun {
            namespace: namespace.clone(),
            name: name.clone(),
            spec: Box::new(run_spec()),
            folder: "batch_1/mine".into(),
        })
    };
    assert_eq!(bench.refused(create()), Rejection::SpecConflict);
    assert!(bench.ledger.has_folder("default", "batch_1/0123-1"));
    assert!(!bench.ledger.has_folder("default", "batch_1/mine"));
    let fence = bench.assign("batch_1", FIRST);
    bench.granted(segments("batch_1", fence, 0, &[8]));
    bench.granted(start("batch_1", fence, &[8]));
    assert_eq!(bench.refused(create()), Rejection::SpecConflict);
    assert!(bench.ledger.has_folder("default", "batch_1/0123-1"));
    bench.create("batch_2");
    bench.granted(cancel("batch_2"));
    assert!(!bench.ledger.has_folder("default", "batch_2/0123-1"), "its objects are orphans");
}

#[test]
fn a_page_begins_after_a_batch_and_the_newest_come_first() {
    let mut bench = Bench::new();
    for n in 1..=5 {
        bench.create(&format!("batch_{n}"));
    }
    let page = |bench: &Bench, after: Option<&str>| {
        let (page, more) = bench.ledger.batch_views("default", after, 2).expect("a batch");
        (page.into_iter().map(|view| view.id).collect::<Vec<_>>(), more)
    };
    let ids = |of: [u8; 2]| of.map(|n| format!("batch_{n}")).to_vec();
    assert_eq!(page(&bench, None), (ids([5, 4]), true));
    bench.create("batch_6");
    assert_eq!(page(&bench, Some("batch_4")), (ids([3, 2]), true), "new ones shift nothing");
    assert_eq!(page(&bench, Some("batch_2")), (vec!["batch_1".to_owned()], false));
    assert_eq!(page(&bench, Some("batch_3")), (ids([2, 1]), false));
    assert_eq!(bench.ledger.batch_views("default", Some("batch_9"), 2), None);
    assert_eq!(bench.ledger.batch_views("team", Some("batch_1"), 2), None);
    assert_eq!(bench.ledger.batch_views("team", None, 2), Some((Vec::new(), false)));
}

#[test]
fn the_record_of_a_batch_is_kept_as_long_as_its_output() {
    let mut bench = Bench::new();
    let day = limits::IDEMPOTENCY_MS;
    let mut first = decl("batch_1");
    first.spec.output_ttl_ms = 2 * day;
    bench.granted(made(first));
    bench.create("batch_2");
    bench.granted(cancel("batch_1"));
    let ended = bench.now;
    assert_eq!(bench.ledger.next_deadline(), Some(LedgerMs(ended + 2 * day)));
    bench.tick_to(ended + 2 * day - 1);
    assert!(bench.ledger.batch_view("batch_1").is_some());
    bench.tick_to(ended + 2 * day);
    assert!(bench.ledger.batch_view("batch_1").is_none());
    assert!(bench.ledger.batch_view("batch_2").is_some(), "it has not ended");
}
