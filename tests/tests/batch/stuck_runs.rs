//! The status, an alarm and the doctor report a run that no worker can run; a list reports a namespace that does not
//! exist.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually_or_show, free_addr};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until `status` gives this reason for the one stuck run.
fn until_stuck(fleet: &Fleet, why: &str) {
    eventually_or_show("the run is stuck", PATIENCE, |seen| {
        let status = fleet.ctl_json(&["status"]).ok()?;
        *seen = status.to_string();
        let run = status["stuckRuns"].as_array()?.first()?;
        let told = run["why"].as_str()?.contains(why) && run["name"] == "waits";
        (told && run["pending"] == "20").then_some(())
    });
}

fn alarms(fleet: &Fleet) -> Result<Vec<Value>> {
    let list = fleet.ctl_json(&["alarm", "list"])?;
    list["alarms"].as_array().cloned().context("no alarms")
}

#[test]
fn a_run_without_a_worker_and_one_without_an_engine_are_seen_and_so_is_their_end() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    ensure!(fleet.ctl_json(&["status"])?["stuckRuns"] == serde_json::json!([]));
    let mut batch = Batch::submit(&fleet, "waits", 20, "")?;
    until_stuck(&fleet, "no worker is registered");
    let alarms_now = alarms(&fleet)?;
    ensure!(alarms_now.iter().any(|alarm| alarm["kind"] == "RUN_STUCK"), "{alarms_now:?}");

    let rows = ["item", "list", "waits", "--state", "pending", "--limit", "2", "--no-headers"];
    let rows = fleet.ctl(&rows)?;
    let shown = String::from_utf8_lossy(&rows.stdout);
    let pending = shown.lines().filter(|line| line.contains("pending")).count();
    ensure!(rows.status.success() && pending == 2 && !shown.contains("STRIKES"), "{rows:?}");

    // A ready worker with an unreachable engine cannot run the rows.
    let nobody = free_addr()?;
    let engine = format!("kind = \"openai\"\nbase_url = \"http://{nobody}\"\n");
    fleet.start_worker("w1", &WorkerOptions { engine, ..WorkerOptions::default() })?;
    until_stuck(&fleet, "Connection refused");
    let listed = fleet.ctl(&["alarm", "list", "--exit-code"])?;
    ensure!(!listed.status.success(), "{listed:?}");
    let doctor = fleet.ctl(&["doctor"])?;
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(found.contains("run waits is stuck"), "{found}");

    fleet.start_worker("w2", &WorkerOptions::default())?;
    batch.finish(&fleet)?;
    // A member checks at most once a second.
    eventually_or_show("no run is stuck", PATIENCE, |seen| {
        let status = fleet.ctl_json(&["status"]).ok()?;
        *seen = status.to_string();
        (status["stuckRuns"] == serde_json::json!([])).then_some(())
    });
    ensure!(alarms(&fleet)?.iter().all(|alarm| alarm["kind"] != "RUN_STUCK"));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_list_of_a_namespace_that_is_not_there_is_refused_and_not_empty() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    for list in ["run", "worker", "dataset", "job", "rendezvous", "checkpoint"] {
        let out = fleet.ctl(&["--namespace", "nope", list, "list"])?;
        let stderr = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.code() == Some(4) && stderr.contains("RO-2008"), "{list}: {stderr}");
        let out = fleet.ctl(&[list, "list"])?;
        ensure!(out.status.success(), "{list}: {out:?}");
    }
    fleet.passed()
}
