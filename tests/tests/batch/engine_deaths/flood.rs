//! A run in which every row kills its engine stops with a reason, and the other runs finish.

use crate::engine_deaths::{submit, worker};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually_or_show};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
const DEADLY: u64 = 10_000;
/// Each row kills two engines or more before it fails for good: each slot has dozens of deaths, and a few could cordon
/// it.
const FAILURES_MAX: u64 = 200;
/// One of five is as many as the ledger may cordon.
const SLOTS: u32 = 5;

/// How many slots of a namespace are cordoned.
fn cordoned(fleet: &Fleet, namespace: &str) -> Option<usize> {
    let list = ["--timeout", "5s", "--namespace", namespace, "worker", "list"];
    let list = fleet.ctl_json(&list).ok()?;
    let slots = list["workers"].as_array()?.iter().flat_map(|w| w["slots"].as_array());
    Some(slots.flatten().filter(|slot| slot["cordoned"] == true).count())
}

fn described(fleet: &Fleet, run: &str) -> Option<Value> {
    Some(fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?["run"].clone())
}

/// Waits until the run is paused, and checks meanwhile how many slots are cordoned. Returns the reason.
fn until_paused(fleet: &Fleet, run: &str) -> String {
    eventually_or_show("the run is paused", PATIENCE, |seen| {
        for (namespace, most) in [("default", 1), ("team", 0)] {
            let cordoned = cordoned(fleet, namespace)?;
            assert!(cordoned <= most, "{cordoned} slots of {namespace} are cordoned");
        }
        let run = described(fleet, run)?;
        *seen = run.to_string();
        (run["state"] == "paused").then(|| run["reason"].as_str().map(str::to_owned))?
    })
}

#[test]
fn ten_thousand_rows_that_kill_every_engine_stop_their_own_run_and_no_other() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let made = fleet.ctl(&["namespace", "set-quota", "team", "--create"])?;
    ensure!(made.status.success(), "{made:?}");
    let deadly: Vec<(u64, &str)> = (0..DEADLY).map(|row| (row, "MOCK_CRASH")).collect();
    let lines = format!("[run]\nfailures_max = {FAILURES_MAX}\n");
    let mut flood = Batch::submit_asking(&fleet, "flood", DEADLY, &deadly, &lines)?;
    let mut beside = submit(&fleet, "beside", 1000, &[])?;
    // A worker serves one namespace: the other namespace has its own workers, and the same leader.
    let mut team = Batch::submit(&fleet, "team", 1000, "[cluster]\nnamespace = \"team\"\n")?;
    for batch in [&flood, &beside] {
        batch.until(&fleet, "the input is there", |c| c.pending == batch.rows);
    }
    let options = worker(&fleet, "w1", SLOTS, "");
    fleet.start_worker("w1", &options)?;
    let WorkerOptions { engine, head } = worker(&fleet, "t1", 2, "");
    fleet.start_worker(
        "t1",
        &WorkerOptions { engine, head: format!("namespace = \"team\"\n{head}") },
    )?;

    let reason = until_paused(&fleet, "flood");
    let expected = format!("rows failed for good, more than failures_max = {FAILURES_MAX}");
    ensure!(reason.contains(&expected), "{reason}");
    beside.finish(&fleet)?;
    team.finish(&fleet)?;
    let counts = beside.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (1000, 0), "{counts:?}");
    let counts = flood.counts(&fleet).context("counts")?;
    ensure!(counts.done == 0 && counts.failed > FAILURES_MAX, "{counts:?}");
    let cancelled = fleet.ctl(&["run", "cancel", "flood", "--yes"])?;
    ensure!(cancelled.status.success(), "{cancelled:?}");
    let status = flood.process().wait(PATIENCE)?;
    ensure!(status.code() == Some(1), "{status}: {}", flood.process().log_tail());
    // The damage to the engines is over: a later run gets all of them.
    let mut after = submit(&fleet, "after", 200, &[])?;
    after.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
