//! A worker that is told to stop finishes what runs, gives back the rest and leaves.

use anyhow::Result;
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use std::time::Duration;

fn worker(fleet: &Fleet, name: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = 20\nlatency_ms_max = 60\n\
         side_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

#[test]
fn a_worker_drains_when_idle_and_when_busy_and_no_row_runs_twice() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1");
    fleet.start_worker("w1", &options)?;
    eventually("the worker is registered", Duration::from_secs(30), || fleet.rows_done_by("w1"));
    let status = fleet.worker_process("w1").terminate(Duration::from_secs(20))?;
    assert!(status.success(), "an idle worker ends with {status}{}", fleet.logs());
    assert_eq!(fleet.rows_done_by("w1"), None, "it has deregistered");

    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "drained", 3000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 300 && c.running >= 32);
    let status = fleet.worker_process("w1").terminate(Duration::from_secs(30))?;
    assert!(status.success(), "a busy worker ends with {status}{}", fleet.logs());
    let left = batch.until(&fleet, "nobody holds a row", |c| c.running == 0);
    assert!(left.pending > 0 && left.pending + left.done == 3000, "{left:?}");
    let options = worker(&fleet, "w2");
    fleet.start_worker("w2", &options)?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side"), fleet.path("w2.side")])?;
    assert_eq!(executions.started, 3000, "a row was run twice");
    fleet.passed()
}
