//! Rows that fail: which policy applies, what the user sees, and how they are retried.

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);

/// A mock worker of one slot; `lines` are added to its engine.
fn worker(lines: &str) -> WorkerOptions {
    let engine = format!("kind = \"mock\"\nslots = 1\nconcurrency = 8\n{lines}");
    WorkerOptions { engine, head: String::new() }
}

fn rows_of(items: &[Value]) -> Vec<&str> {
    items.iter().filter_map(|item| item["row"].as_str()).collect()
}

fn state_of(fleet: &Fleet, run: &str) -> Option<String> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?;
    Some(run["run"]["state"].as_str()?.to_owned())
}

fn until_state(fleet: &Fleet, run: &str, state: &str) {
    eventually(&format!("{run} is {state}"), PATIENCE, || {
        state_of(fleet, run).filter(|now| now == state)
    });
}

/// Runs `rolloutctl`, which must fail with this exit status, and returns what it prints.
fn refused(fleet: &Fleet, args: &[&str], code: i32) -> Result<String> {
    let out = fleet.ctl(args)?;
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(out.status.code() == Some(code), "{args:?}: {:?} {stderr}", out.status.code());
    Ok(stderr)
}

#[test]
fn failures_max_pauses_a_run_and_keeps_what_is_done_and_a_retry_after_repair_heals_it() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker("fail_rows = [3, 7, 11]\n"))?;
    let mut batch = Batch::submit(&fleet, "hurt", 200, "[run]\nfailures_max = 2\n")?;
    let paused = eventually("the run is paused", PATIENCE, || {
        let run = fleet.ctl_json(&["run", "describe", "hurt"]).ok()?;
        (run["run"]["state"] == "paused").then_some(run)
    });
    let reason = paused["run"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("more than failures_max = 2"), "{reason}");
    let counts = batch.until(&fleet, "nobody holds a row", |c| c.running == 0);
    ensure!(counts.failed == 3 && counts.done > 0, "{counts:?}");

    let failed = fleet.items("hurt", "failed")?;
    ensure!(rows_of(&failed) == ["3", "7", "11"], "{failed:?}");
    ensure!(failed[0]["history"][0]["class"] == "invalid_row", "{failed:?}");
    let item = fleet.ctl_json(&["item", "describe", "hurt", "7"])?;
    ensure!(item["state"] == "failed" && item["history"][0]["worker"] == "w1", "{item}");
    ensure!(item["history"][0]["ruling"] == "final", "{item}");
    let said = refused(&fleet, &["item", "describe", "hurt", "200"], 4)?;
    ensure!(said.contains("RO-2012"), "{said}");
    let both = fleet.ctl(&["item", "describe", "hurt", "200", "7", "-o", "json"])?;
    let printed = String::from_utf8_lossy(&both.stdout);
    ensure!(both.status.code() == Some(4) && printed.contains("invalid_row"), "{printed}");

    // Repair the cause: start a worker whose engine does not fail these rows.
    fleet.worker_process("w1").terminate(Duration::from_secs(30))?;
    fleet.start_worker("w2", &worker(""))?;
    let one = fleet.ctl_json(&["item", "retry", "hurt", "7", "8"])?;
    ensure!(one["rows"] == "1" && one["paused"] == true, "only what failed: {one}");
    let all = fleet.ctl_json(&["run", "retry", "hurt", "--failed"])?;
    ensure!(all["rows"] == "2", "{all}");
    let item = fleet.ctl_json(&["item", "describe", "hurt", "7"])?;
    ensure!(item["state"] == "pending" && item["strikes"] == 0, "{item}");
    ensure!(item["history"].as_array().is_some_and(|h| h.len() == 1), "history stays: {item}");
    ensure!(fleet.ctl(&["run", "resume", "hurt"])?.status.success());
    batch.finish(&fleet)?;
    ensure!(fleet.items("hurt", "failed")?.is_empty());
    ensure!(fleet.items("hurt", "done")?.len() == 200);
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_transient_failure_has_as_many_strikes_as_its_run_allows_and_a_finished_run_runs_again()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(""))?;
    let bad = [(5, "MOCK_FAIL_TRANSIENT"), (9, "MOCK_FAIL_INVALID"), (12, "MOCK_FAIL_OOM")];
    let batch = Batch::submit_asking(&fleet, "mixed", 40, &bad, "[run]\nattempts_max = 2\n")?;
    batch.until(&fleet, "rows wait", |c| c.waiting > 0 || c.failed == 3);
    until_state(&fleet, "mixed", "finished");
    let failed = fleet.items("mixed", "failed")?;
    ensure!(rows_of(&failed) == ["5", "9", "12"], "{failed:?}");
    let strikes: Vec<_> = failed.iter().map(|item| item["strikes"].as_u64()).collect();
    ensure!(strikes == [Some(2), Some(0), Some(3)], "by class: {strikes:?}");
    let history = |row: &str| -> Result<Vec<String>> {
        let item = fleet.ctl_json(&["item", "describe", "mixed", row])?;
        let tries = item["history"].as_array().cloned().unwrap_or_default();
        Ok(tries.iter().map(|t| t["ruling"].as_str().unwrap_or_default().to_owned()).collect())
    };
    ensure!(history("5")? == ["strike", "final"]);
    ensure!(history("12")? == ["strike", "strike", "final"]);

    let again = fleet.ctl_json(&["run", "retry", "mixed", "--failed"])?;
    ensure!(again["rows"] == "3" && again["paused"] == false, "{again}");
    eventually("the finished run ran again", PATIENCE, || {
        let item = fleet.ctl_json(&["item", "describe", "mixed", "5"]).ok()?;
        (item["history"].as_array()?.len() == 4 && item["state"] == "failed").then_some(())
    });
    until_state(&fleet, "mixed", "finished");
    ensure!(history("5")? == ["strike", "final", "strike", "final"], "the history is kept");
    let said = refused(&fleet, &["run", "retry", "nobody", "--failed"], 4)?;
    ensure!(said.contains("RO-2001"), "{said}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_cordon_stops_grants_outlives_a_failover_and_a_restart_and_is_lifted() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker("latency_ms_min = 20\nlatency_ms_max = 40\n"))?;
    eventually("the worker is registered", PATIENCE, || fleet.rows_done_by("w1"));
    let cordon = ["worker", "cordon", "w1", "--reason", "a fan is broken"];
    let said = fleet.ctl_json(&cordon)?;
    ensure!(said["cordoned"] == true, "{said}");
    let said = refused(&fleet, &["worker", "cordon", "w9"], 4)?;
    ensure!(said.contains("RO-3008"), "{said}");
    let said = refused(&fleet, &["worker", "cordon", "w1", "--slot", "4"], 1)?;
    ensure!(said.contains("slot"), "{said}");

    let mut batch = Batch::submit(&fleet, "held", 300, "")?;
    let blocked = |fleet: &Fleet| {
        eventually("the run says that it is blocked", PATIENCE, || {
            let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "held"]).ok()?;
            let why = run["run"]["blocked"].as_str().unwrap_or_default();
            (run["run"]["counts"]["rows"] == "300" && why.contains("a fan is broken")).then_some(())
        })
    };
    blocked(&fleet);
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    blocked(&fleet);
    fleet.start_member(&leader)?;
    fleet.worker_process("w1").kill();
    fleet.start_worker("w1", &worker(""))?;
    eventually("the worker is back, and cordoned", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let slot = list["workers"][0]["slots"][0].clone();
        (slot["cordoned"] == true && slot["cordonReason"] == "a fan is broken").then_some(())
    });
    blocked(&fleet);
    let counts = batch.counts(&fleet).unwrap_or_default();
    ensure!(counts.done == 0 && counts.running == 0, "{counts:?}");

    let said = fleet.ctl_json(&["worker", "uncordon", "w1"])?;
    ensure!(said["cordoned"] == false, "{said}");
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
