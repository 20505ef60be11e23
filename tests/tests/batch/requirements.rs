//! A run's requirements: only workers that meet them get its rows, and unmet requirements are reported.

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn worker(gpu: &str) -> WorkerOptions {
    let engine = format!("kind = \"mock\"\nconcurrency = 8\nlabels = {{ gpu = {gpu:?} }}\n");
    WorkerOptions { engine, head: String::new() }
}

/// Waits until the run reports that it waits for this.
fn lacks(fleet: &Fleet, run: &str, what: &str) {
    eventually(&format!("{run} says: {what}"), PATIENCE, || {
        let out = fleet.ctl(&["--timeout", "5s", "run", "describe", run]).ok()?;
        String::from_utf8_lossy(&out.stdout).contains(what).then_some(())
    });
}

#[test]
fn a_run_waits_for_a_worker_that_has_what_it_requires() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker("NVIDIA A100 80GB"))?;
    let lines = "[workers]\nrequire = { gpu = \"H100\", agent = \">=0.0.1\" }\n";
    let mut batch = Batch::submit(&fleet, "picky", 200, lines)?;
    lacks(&fleet, "picky", "has gpu H100 (here NVIDIA A100 80GB)");
    // A run without requirements is served meanwhile, and the other run gets no row done.
    Batch::submit(&fleet, "plain", 200, "")?.finish(&fleet)?;
    ensure!(batch.counts(&fleet).is_some_and(|c| c.done == 0 && c.running == 0), "a row ran");
    fleet.start_worker("w2", &worker("NVIDIA H100 80GB HBM3"))?;
    batch.finish(&fleet)?;
    ensure!(fleet.rows_done_by("w1") == Some(200), "w1 ran rows of both");
    ensure!(fleet.rows_done_by("w2") == Some(200), "w2 ran others");

    let lines = "[workers]\nrequire = { agent = \">=99\" }\n";
    let _never = Batch::submit(&fleet, "never", 10, lines)?;
    lacks(&fleet, "never", "has agent >=99 (here 0.");
    fleet.verify()?;
    fleet.passed()
}
