//! A wall clock that jumps an hour, forward or backward, on any process: nothing expires and nothing is delayed.
//!
//! Every bound here is in this process's monotonic time and far below an hour: an effect of the jump would be early
//! or late by an hour.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR_S: i64 = 3600;

fn clocks() -> FleetOptions {
    FleetOptions { clocks: true, ..FleetOptions::default() }
}

/// A worker with one slot of eight rows, each of which takes this long.
fn steady(fleet: &Fleet, name: &str, latency_ms: u64) -> WorkerOptions {
    let (side, once) = (fleet.path(&format!("{name}.side")), fleet.path("once"));
    std::fs::create_dir_all(&once).expect("the fleet's directory is there");
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\nonce_dir = {once:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

/// Submits rows; every tenth fails once and then waits for its retry.
fn submit(fleet: &Fleet, name: &str, rows: u64, lines: &str) -> Result<Batch> {
    let mut text = String::new();
    for row in 0..rows {
        let ask = if row % 10 == 0 { " MOCK_FAIL_TRANSIENT_ONCE" } else { "" };
        writeln!(text, r#"{{"id":"{name}-{row}","prompt":"say {row}{ask}"}}"#)?;
    }
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, text)?;
    Batch::submit_file(fleet, name, input, rows, lines)
}

/// The leader, the epoch, and the sessions of all workers: a clock jump may change none of them.
fn standing(fleet: &Fleet) -> Result<(Value, Value, Vec<Value>)> {
    let status = fleet.ctl_json(&["status"])?;
    let list = fleet.ctl_json(&["worker", "list"])?;
    let workers = list["workers"].as_array().context("workers")?;
    let of = |w: &Value| Value::Array(vec![w["name"].clone(), w["session"].clone()]);
    let workers: Vec<Value> = workers.iter().map(of).collect();
    ensure!(status["coordEpoch"].is_string() && !workers.is_empty(), "{status} {list}");
    Ok((status["leader"].clone(), status["coordEpoch"].clone(), workers))
}

#[test]
fn an_hour_either_way_on_leader_follower_or_worker_expires_nothing_and_delays_nothing() -> Result<()>
{
    let mut fleet = Fleet::start(clocks())?;
    for name in ["w1", "w2"] {
        fleet.start_worker(name, &steady(&fleet, name, 400))?;
        eventually("the worker is there", PATIENCE, || fleet.rows_done_by(name));
    }
    // A row is held for less than a second; a row held for longer than this timeout was never returned.
    let mut batch = submit(&fleet, "jumps", 1000, "[run]\nattempt_timeout_ms = 30000\n")?;
    let mut done = batch.until(&fleet, "rows run and wait", |c| c.done >= 30 && c.waiting > 0).done;
    let before = standing(&fleet)?;
    let leader = fleet.leader();
    let follower = fleet.member_names().into_iter().find(|n| *n != leader).context("a follower")?;
    for name in [leader.as_str(), follower.as_str(), "w1"] {
        for ahead_s in [HOUR_S, -HOUR_S, 0] {
            fleet.set_clock(name, ahead_s)?;
            // Wait for more rows than are held at a time: then those that were held, and waits of a second, have
            // ended.
            let what = format!("rows end after {name} jumped to {ahead_s} s");
            done = batch.until(&fleet, &what, |c| c.done >= done + 40).done;
        }
    }
    ensure!(standing(&fleet)? == before, "{:?} was {before:?}", standing(&fleet)?);
    // What is left need not take long: no clock jumps any more.
    fleet.start_worker("w3", &steady(&fleet, "w3", 5))?;
    batch.finish(&fleet)?;
    let sides = ["w1", "w2", "w3"].map(|name| fleet.path(&format!("{name}.side")));
    let executions = Executions::read(&sides)?;
    ensure!(executions.started == 1100, "{} executions", executions.started);
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_drain_ends_by_its_own_time_whatever_the_clocks_say() -> Result<()> {
    let mut fleet = Fleet::start(clocks())?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 6000))?;
    let mut batch = submit(&fleet, "drains", 31, "")?;
    batch.until(&fleet, "rows run", |c| c.running >= 8);
    // An hour forward is far past this deadline, which must not take effect: the running rows need only seconds.
    fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "120s"])?;
    let leader = fleet.leader();
    fleet.set_clock(&leader, HOUR_S)?;
    fleet.set_clock("w1", HOUR_S)?;
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    let first = batch.until(&fleet, "nobody holds a row", |c| c.running == 0);
    ensure!(first.done > 0, "what ran was finished: {first:?}");

    // An hour backward must not delay this deadline: the rows take longer than the drain's deadline.
    fleet.start_worker("w2", &steady(&fleet, "w2", 120_000))?;
    batch.until(&fleet, "rows run", |c| c.running >= 8);
    fleet.ctl_json(&["worker", "drain", "w2", "--deadline", "5s"])?;
    fleet.set_clock(&leader, -HOUR_S)?;
    fleet.set_clock("w2", -HOUR_S)?;
    ensure!(fleet.worker_process("w2").wait(PATIENCE)?.success());
    batch.until(&fleet, "what ran is pending", |c| c.running == 0 && c.pending > 0);
    fleet.start_worker("w3", &steady(&fleet, "w3", 5))?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    ensure!(executions.attempts.values().all(|tries| tries.len() == 1), "{executions:?}");
    fleet.passed()
}

#[test]
fn leases_of_a_worker_that_is_gone_end_on_time_though_all_clocks_went_back() -> Result<()> {
    let member_lines = vec![("worker", "started_grace_ms = 6000")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..clocks() })?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 120_000))?;
    let mut batch = Batch::submit(&fleet, "orphans", 40, "")?;
    eventually("rows run", PATIENCE, || {
        let executions = Executions::read(&[fleet.path("w1.side")]).ok()?;
        (executions.started == 8).then_some(())
    });
    // Two heartbeats later the leader knows which rows have started: those wait for the grace period, not only for
    // the silence.
    let begun = Instant::now();
    eventually("the leader knows what has begun", PATIENCE, || {
        let list = fleet.ctl_json(&["worker", "list"]).ok()?;
        let silent_s = list["workers"][0]["silentSeconds"].as_f64()?;
        (begun.elapsed() > Duration::from_millis(1200) && silent_s < 0.6).then_some(())
    });
    fleet.worker_process("w1").kill();
    for member in fleet.member_names() {
        fleet.set_clock(&member, -HOUR_S)?;
    }
    fleet.start_worker("w2", &steady(&fleet, "w2", 5))?;
    batch.until(&fleet, "only what had begun is left", |c| c.done == 32 && c.running == 8);
    batch.finish(&fleet)?; // Within minutes.
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_certificate_of_a_host_that_is_an_hour_ahead_is_good_on_one_that_is_an_hour_behind()
-> Result<()> {
    let mut fleet = Fleet::start(clocks())?;
    fleet.set_clock("issuer", HOUR_S)?;
    let (ca, tls) = (fleet.path("ca"), fleet.path("tls"));
    let (ca, tls) = (ca.to_string_lossy(), tls.to_string_lossy());
    let issue = ["cert", "issue", "worker", "w1", "--ca-dir", &ca, "--out-dir", &tls];
    let out = fleet.ctl_at("issuer", &issue)?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // In both directions: each side checks the other's certificate by its own clock.
    let leader = fleet.leader();
    fleet.set_clock("w1", -HOUR_S)?;
    fleet.set_clock(&leader, -HOUR_S)?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 5))?;
    eventually("the worker is there", PATIENCE, || fleet.rows_done_by("w1"));
    // This causes handshakes between members whose clocks are two hours apart.
    let other = fleet.member_names().into_iter().find(|n| *n != leader).context("a follower")?;
    fleet.member_process(&other).terminate(Duration::from_secs(20))?;
    fleet.set_clock(&other, HOUR_S)?;
    fleet.start_member(&other)?;
    let mut batch = Batch::submit(&fleet, "skewed", 200, "")?;
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
