//! A lease lives as long as its session: what a silent worker keeps, for how long, and what it finds when it comes
//! back in time, late, or never.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const ROWS: u64 = 16;
/// Rows that a slot runs at once.
const RUNNING: u64 = 4;

/// A worker with one slot that holds many more rows than it runs.
fn worker(fleet: &Fleet, name: &str, latency_ms: u64) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = {RUNNING}\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    WorkerOptions { engine, head: "[credit]\nrows = 1024\n".into() }
}

/// A fleet that keeps a silent worker's started rows for this long.
fn fleet(grace: &'static str) -> Result<Fleet> {
    Fleet::start(FleetOptions { member_lines: vec![("worker", grace)], ..FleetOptions::default() })
}

fn state_of(fleet: &Fleet, name: &str) -> Option<String> {
    let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
    let workers = list["workers"].as_array()?;
    let worker = workers.iter().find(|w| w["name"] == name);
    Some(worker.and_then(|w| w["state"].as_str()).unwrap_or("gone").to_owned())
}

fn until(fleet: &Fleet, name: &str, state: &str) {
    eventually(&format!("{name} is {state}"), PATIENCE, || {
        state_of(fleet, name).filter(|now| now == state)
    });
}

/// Waits for the worker's next heartbeat.
fn heartbeat(fleet: &Fleet, name: &str) {
    let mut last = 0.0;
    eventually("a heartbeat", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let silent =
            list["workers"].as_array()?.iter().find(|w| w["name"] == name)?["silentSeconds"]
                .as_f64()?;
        let heard = silent < last;
        last = silent;
        heard.then_some(())
    });
}

/// One worker holds every row of a run and is stopped while it runs the first of them.
fn stopped(fleet: &mut Fleet, name: &str, rows: u64) -> Result<Batch> {
    // Long enough that no row ends, and no other starts, before the stop.
    let options = worker(fleet, "w1", 8000);
    fleet.start_worker("w1", &options)?;
    let batch = Batch::submit(fleet, name, rows, "")?;
    batch.until(fleet, "one worker holds every row", |c| c.running == rows);
    let side = fleet.path("w1.side");
    eventually("the first rows run", PATIENCE, || {
        let text = std::fs::read_to_string(&side).unwrap_or_default();
        (text.lines().filter(|line| line.ends_with("started")).count() as u64 == RUNNING)
            .then_some(())
    });
    // Heartbeats report running rows: the second one from now was sent after their start.
    heartbeat(fleet, "w1");
    heartbeat(fleet, "w1");
    fleet.worker_process("w1").signal(libc::SIGSTOP)?;
    Ok(batch)
}

/// Executions of each row, over both workers.
fn executions(fleet: &Fleet, workers: &[&str]) -> Result<u64> {
    let files: Vec<_> = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    Ok(Executions::read(&files)?.started)
}

#[test]
fn a_worker_back_in_time_keeps_what_it_had_started_and_starts_nothing_that_it_has_lost()
-> Result<()> {
    let mut fleet = fleet("started_grace_ms = 600000")?;
    let mut batch = stopped(&mut fleet, "in-time", ROWS)?;
    until(&fleet, "w1", "suspect");
    let left = batch.until(&fleet, "what was not started is pending", |c| c.pending > 0);
    ensure!((left.pending, left.running) == (ROWS - RUNNING, RUNNING), "{left:?}");
    fleet.start_worker("w2", &worker(&fleet, "w2", 5))?;
    batch.until(&fleet, "the other has done the rest", |c| c.done == ROWS - RUNNING);
    fleet.worker_process("w1").signal(libc::SIGCONT)?;
    batch.finish(&fleet)?;
    until(&fleet, "w1", "ready");
    ensure!(executions(&fleet, &["w1", "w2"])? == ROWS, "a row ran twice");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_that_is_silent_through_a_change_of_leader_keeps_what_it_had_started() -> Result<()> {
    let mut fleet = fleet("started_grace_ms = 600000")?;
    let mut batch = stopped(&mut fleet, "failover", ROWS)?;
    // The next leader has no report of what this worker runs.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    until(&fleet, "w1", "suspect");
    fleet.start_worker("w2", &worker(&fleet, "w2", 5))?;
    until(&fleet, "w2", "ready");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!(left.running >= RUNNING, "rows that it had started went to another worker: {left:?}");
    fleet.worker_process("w1").signal(libc::SIGCONT)?;
    batch.finish(&fleet)?;
    ensure!(executions(&fleet, &["w1", "w2"])? == ROWS, "a row ran twice");
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_back_too_late_has_its_results_refused_and_nothing_is_accepted_twice() -> Result<()> {
    let mut fleet = fleet("started_grace_ms = 1000")?;
    let mut batch = stopped(&mut fleet, "too-late", ROWS)?;
    until(&fleet, "w1", "gone");
    fleet.start_worker("w2", &worker(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    fleet.worker_process("w1").signal(libc::SIGCONT)?;
    until(&fleet, "w1", "ready");
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (ROWS, 0), "{counts:?}");
    ensure!(executions(&fleet, &["w1", "w2"])? == ROWS + RUNNING, "it started what it had lost");
    ensure!(fleet.rows_done_by("w1") == Some(0), "a late result was accepted");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_late_result_is_accepted_until_another_worker_gets_the_row() -> Result<()> {
    // The rows that it has not started take as long as those that it has.
    const ROWS: u64 = 2 * RUNNING;
    let mut fleet = fleet("started_grace_ms = 1000")?;
    let mut batch = stopped(&mut fleet, "alone", ROWS)?;
    until(&fleet, "w1", "gone");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.pending, left.running) == (ROWS, 0), "{left:?}");
    fleet.worker_process("w1").signal(libc::SIGCONT)?;
    batch.finish(&fleet)?;
    ensure!(executions(&fleet, &["w1"])? == ROWS, "what it had started ran again");
    fleet.passed()
}

#[test]
fn a_worker_that_never_returns_loses_everything_after_the_grace() -> Result<()> {
    let mut fleet = fleet("started_grace_ms = 1000")?;
    let mut batch = stopped(&mut fleet, "never", ROWS)?;
    fleet.worker_process("w1").kill();
    fleet.start_worker("w2", &worker(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    ensure!(executions(&fleet, &["w2"])? == ROWS);
    fleet.passed()
}

#[test]
fn rows_that_wait_long_in_a_queue_are_not_stopped_within_their_own_time() -> Result<()> {
    let mut fleet = fleet("started_grace_ms = 600000")?;
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 1\nlatency_ms_min = 1400\nlatency_ms_max = 1400\n\
         side_file = {side:?}\n"
    );
    // It asks for every row at once, and three of them take longer than a grant lasts.
    let options = WorkerOptions { engine, head: "[credit]\nrows = 1024\n".into() };
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "queue", 6, "[run]\nattempt_timeout_ms = 2000\n")?;
    batch.finish(&fleet)?;
    ensure!(executions(&fleet, &["w1"])? == 6, "rows were stopped that had time left");
    fleet.passed()
}

#[test]
fn a_row_that_takes_too_long_is_stopped_and_fails_after_its_strikes_alone() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name, 5);
        fleet.start_worker(name, &options)?;
    }
    let lines = "[run]\nattempt_timeout_ms = 1500\nattempts_max = 2\n";
    let mut batch = Batch::submit_asking(&fleet, "slow", 200, &[(5, "MOCK_HANG")], lines)?;
    let status = batch.process().wait(PATIENCE).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let failed = fleet.items("slow", "failed")?;
    ensure!(failed.len() == 1 && failed[0]["row"] == "5", "{failed:?}");
    let item = fleet.ctl_json(&["item", "describe", "slow", "5"])?;
    let history = item["history"].as_array().context("history")?;
    let codes: Vec<&Value> = history.iter().map(|h| &h["code"]).collect();
    ensure!(codes == ["ATTEMPT_TIMEOUT", "ATTEMPT_TIMEOUT"], "{history:?}");
    ensure!(batch.counts(&fleet).context("counts")?.done == 199);
    fleet.passed()
}
