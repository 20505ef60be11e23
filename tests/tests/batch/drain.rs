//! A draining worker finishes what it can, returns the rest and leaves; rows that it still holds at its deadline go
//! to other workers.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

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

/// A worker with one slot of eight rows, each of which takes this long.
fn steady(fleet: &Fleet, name: &str, latency_ms: u64) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

/// A worker as the operator sees it while it is registered.
fn seen(fleet: &Fleet, name: &str) -> Option<Value> {
    let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
    let workers = list["workers"].as_array()?;
    Some(workers.iter().find(|w| w["name"] == name).cloned().unwrap_or_default())
}

fn until_gone(fleet: &Fleet, name: &str) {
    eventually("the worker is gone", PATIENCE, || seen(fleet, name).filter(Value::is_null));
}

#[test]
fn an_operators_drain_ends_a_worker_and_its_rows_end_elsewhere() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 30))?;
    let mut batch = Batch::submit(&fleet, "moved", 600, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 50 && c.running >= 8);
    let said = fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "30s", "--wait"])?;
    ensure!(said["gone"] == true, "{said}");
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    let gone = fleet.ctl(&["-q", "worker", "drain", "w1"])?;
    ensure!(String::from_utf8_lossy(&gone.stderr).starts_with("error:"), "why it failed: {gone:?}");
    let left = batch.until(&fleet, "nobody holds a row", |c| c.running == 0);
    ensure!(left.pending > 0 && left.pending + left.done == 600, "{left:?}");
    for args in [&["worker", "drain", "w1"][..], &["worker", "drain", "nobody"]] {
        let out = fleet.ctl(args)?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(out.status.code() == Some(4) && said.contains("RO-3008"), "{args:?}: {said}");
    }
    fleet.start_worker("w2", &steady(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side"), fleet.path("w2.side")])?;
    ensure!(executions.started == 600, "{} executions", executions.started);
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_harder_notice_in_mid_drain_shortens_it_and_what_runs_goes_back() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // Rows that take longer than the test has.
    fleet.start_worker("w1", &steady(&fleet, "w1", 120_000))?;
    let mut batch = Batch::submit(&fleet, "harder", 40, "")?;
    batch.until(&fleet, "rows run", |c| c.running >= 8);
    let first = fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "10m"])?;
    ensure!(first["leftSeconds"].as_f64().is_some_and(|left| left > 590.0), "{first}");
    batch.until(&fleet, "what was not started went back", |c| c.running == 8);
    // The next leader knows of the drain, and the worker still leaves.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    // Asking for more time changes nothing, and a draining worker gets no new rows.
    let longer = fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "1h"])?;
    ensure!(longer["leftSeconds"].as_f64().is_some_and(|left| left < 600.0), "{longer}");
    let begun = Instant::now();
    fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "4s"])?;
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.pending, left.running) == (40, 0), "{left:?}");
    fleet.start_worker("w2", &steady(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    fleet.passed()
}

/// A row that would be stopped halfway is better run elsewhere now.
#[test]
fn rows_that_cannot_end_before_the_deadline_go_back_at_once_and_others_end() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 15_000))?;
    let mut batch = Batch::submit(&fleet, "fits", 24, "")?;
    batch.until(&fleet, "the worker knows how long rows take", |c| c.done == 8 && c.running >= 8);
    // Rows may run for 9 s of that. The running rows need more.
    let begun = Instant::now();
    fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "12s"])?;
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(8), "it went on for {took:?}{}", fleet.logs());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.done, left.pending, left.running) == (8, 16, 0), "{left:?}");

    // Rows that can finish do: the deadline is far, and row durations are known.
    fleet.start_worker("w2", &steady(&fleet, "w2", 4000))?;
    batch.until(&fleet, "the next one knows it, too", |c| c.done == 16 && c.running == 8);
    let quiet = fleet.ctl(&["-q", "worker", "drain", "w2", "--deadline", "60s", "--wait"])?;
    ensure!(quiet.status.success() && quiet.stderr.is_empty(), "it was to be quiet: {quiet:?}");
    ensure!(fleet.worker_process("w2").wait(PATIENCE)?.success());
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side"), fleet.path("w2.side")])?;
    ensure!(executions.started == 24 + 8, "{} executions", executions.started);
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_second_signal_is_a_harder_notice() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 120_000))?;
    let batch = Batch::submit(&fleet, "signals", 8, "")?;
    batch.until(&fleet, "rows run", |c| c.running == 8);
    fleet.worker_process("w1").signal(libc::SIGTERM)?;
    let draining = eventually("the ledger knows of the drain", PATIENCE, || {
        seen(&fleet, "w1").filter(|w| w["draining"] == true && w["drainLeftSeconds"].is_f64())
    });
    ensure!(draining["drainLeftSeconds"].as_f64() <= Some(75.0), "{draining}");
    fleet.worker_process("w1").signal(libc::SIGTERM)?;
    ensure!(fleet.worker_process("w1").wait(Duration::from_secs(20))?.success());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.pending, left.running) == (8, 0), "{left:?}");
    fleet.passed()
}

/// The ledger ends the session although the worker is silent and its engine never finishes.
#[test]
fn a_drain_whose_deadline_passes_ends_the_session_of_a_worker_that_hangs() -> Result<()> {
    let member_lines = vec![("worker", "started_grace_ms = 600000")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 120_000))?;
    let mut batch = Batch::submit(&fleet, "hangs", 20, "")?;
    batch.until(&fleet, "rows run", |c| c.running >= 8);
    fleet.worker_process("w1").signal(libc::SIGSTOP)?;
    fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "8s"])?;
    // A new leader must know as much.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    until_gone(&fleet, "w1");
    // Every row is pending or done, although no leader heard from the worker.
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.running, left.waiting, left.failed) == (0, 0, 0), "{left:?}");
    ensure!(left.pending + left.done == 20, "{left:?}");
    fleet.start_worker("w2", &steady(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    // When it is back, it finds its rows done by another worker, and leaves: its deadline passed long ago.
    fleet.worker_process("w1").signal(libc::SIGCONT)?;
    let done = batch.counts(&fleet).context("counts")?;
    ensure!(done.done == 20, "{done:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_drain_of_a_silent_worker_reaches_it_when_it_is_back() -> Result<()> {
    let cuttable = FleetOptions { cuttable: true, ..FleetOptions::default() };
    let mut fleet = Fleet::start(cuttable)?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 200))?;
    let mut batch = Batch::submit(&fleet, "unheard", 400, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 8);
    let members = fleet.member_names();
    members.iter().for_each(|member| fleet.set_cut("w1", member, true));
    fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "5m"])?;
    ensure!(fleet.worker_process("w1").runs(), "it does not know");
    members.iter().for_each(|member| fleet.set_cut("w1", member, false));
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    until_gone(&fleet, "w1");
    fleet.start_worker("w2", &steady(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side"), fleet.path("w2.side")])?;
    ensure!(executions.started == 400, "{} executions", executions.started);
    fleet.passed()
}
