//! Tests of the driver.

use super::super::driver::Driver;
use super::*;
use std::time::Duration;

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "not in time: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_does_the_work_that_the_ledger_assigns_to_it_and_no_other() {
    let mut bench = Bench::new();
    let driver = Driver::new(bench.context.clone(), Box::new(|| Some(FIRST)));
    let driving = tokio::spawn(driver.run());
    for id in ["batch_1", "batch_2"] {
        bench.batch(id, &file_of(2)).await;
    }
    let assign = |batch: &str, member| {
        let batch = batch.to_owned();
        bench.cluster.op(OpKind::AssignBatch(op::AssignBatch { batch, member }));
    };
    assign("batch_2", SECOND);
    assign("batch_1", FIRST);
    until("the batch runs", || bench.view("batch_1").status.name() == "in_progress").await;
    assert_eq!(bench.view("batch_2").status.name(), "validating");
    let slot = bench.register();
    let held = bench.claim(slot, 2).remove(0);
    bench.complete("batch_1", slot, &held, &[0, 1]).await;
    let (batch, member) = ("batch_1".into(), FIRST);
    bench.cluster.op(OpKind::AssignBatch(op::AssignBatch { batch, member }));
    until("the batch has ended", || bench.view("batch_1").status.name() == "completed").await;
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_failed_is_tried_again() {
    let bench = Bench::new();
    bench.batch("batch_1", &file_of(2)).await;
    bench.assign("batch_1", FIRST);
    bench.cluster.answer_only(0);
    let driver = Driver::new(bench.context.clone(), Box::new(|| Some(FIRST)));
    let driving = tokio::spawn(driver.run());
    until("the segment is stored", || {
        std::fs::exists(bench.dir.path().join("store/runs/default/batch_1")).unwrap_or(false)
    })
    .await;
    bench.cluster.answer_only(u64::MAX);
    until("the batch runs", || bench.view("batch_1").status.name() == "in_progress").await;
    driving.abort();
}
