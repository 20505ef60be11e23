//! The main promise: whatever dies, each row has one accepted result, and rows that were running when a leader died
//! are not run again because of it.

use anyhow::{Context, Result};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions};
use serde_json::Value;
use std::collections::BTreeSet;

const ROWS: u64 = 20_000;
const KILLS: u64 = 5;
/// Positions of one log entry.
const POSITIONS: u64 = 8192;
const WORKERS: [&str; 4] = ["w1", "w2", "w3", "w4"];

fn worker(fleet: &Fleet, name: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 24\nlatency_ms_min = 40\nlatency_ms_max = 500\n\
         tail = \"pareto\"\nseed = 11\nside_file = {side:?}\n"
    );
    // Rows that a killed worker had finished but not reported are in its spool.
    WorkerOptions { engine, head: "[part]\nlinger_ms = 200\n".into() }
}

/// Rows in flight on a worker that was just killed: started, according to its engine's side file, and not accepted,
/// according to the ledger. They include rows that its engine had finished but not reported.
fn in_flight(fleet: &Fleet, name: &str) -> Result<BTreeSet<(u64, u64)>> {
    let args = ["item", "list", "kills", "--state", "running", "--limit", "0"];
    let listed = fleet.ctl_json(&args)?;
    let row = |item: &Value| item["row"].as_str()?.parse().ok();
    // The ledger shows `index.position`; the side file has both in one number.
    let attempt = |item: &Value| {
        let (index, position) = item["attempt"].as_str()?.split_once('.')?;
        Some(index.parse::<u64>().ok()? * POSITIONS + position.parse::<u64>().ok()?)
    };
    let running: BTreeSet<(u64, u64)> = listed["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter_map(|item| Some((row(item)?, attempt(item)?)))
        .collect();
    let started = Executions::read(&[fleet.path(&format!("{name}.side"))])?.attempts;
    let started = started.into_iter().flat_map(|(row, of)| of.into_iter().map(move |a| (row, a)));
    Ok(started.filter(|key| running.contains(key)).collect())
}

/// Waits for the moment to kill: `percent` of the rows are done, but less than 90 percent, and at least a hundred
/// rows run.
fn wait_to_kill(fleet: &Fleet, batch: &Batch, percent: u64) {
    let seen = batch.until(fleet, "enough is done and running", |c| {
        c.done >= ROWS * percent / 100 && c.running >= 100
    });
    assert!(seen.done < ROWS * 9 / 10, "the kill at {percent} percent comes too late: {seen:?}");
}

#[test]
fn each_row_is_accepted_once_though_leaders_and_workers_are_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    for name in WORKERS {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "kills", ROWS, "")?;
    let mut lost_with_workers = 0;
    for kill in 0..KILLS {
        wait_to_kill(&fleet, &batch, 11 + 15 * kill);
        let leader = fleet.leader();
        fleet.member_process(&leader).kill();
        fleet.leader_other_than(&leader);
        fleet.start_member(&leader)?;

        wait_to_kill(&fleet, &batch, 18 + 15 * kill);
        let victim = WORKERS[kill as usize % WORKERS.len()];
        fleet.worker_process(victim).kill();
        lost_with_workers += in_flight(&fleet, victim)?.len() as u64;
        let options = worker(&fleet, victim);
        fleet.start_worker(victim, &options)?;
    }
    batch.finish(&fleet)?;
    fleet.verify()?;

    let files: Vec<_> = WORKERS.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    let executions = Executions::read(&files)?;
    let again = executions.started - ROWS;
    println!(
        "executions minus rows: {again}, rows in flight on killed workers: {lost_with_workers}"
    );
    assert!(executions.attempts.len() as u64 == ROWS, "a row was answered without being run");
    assert!(again <= lost_with_workers, "{again} executions again, {lost_with_workers} were lost");
    fleet.passed()
}

#[test]
fn rows_running_at_a_leaders_death_need_no_second_attempt() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "calm", 4000, "")?;
    batch.until(&fleet, "a hundred rows run", |c| c.done >= 400 && c.running >= 100);
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    batch.finish(&fleet)?;
    let files = [fleet.path("w1.side"), fleet.path("w2.side")];
    let executions = Executions::read(&files)?;
    let twice = executions.attempts.iter().filter(|(_, a)| a.len() > 1).count();
    assert_eq!((executions.started, twice), (4000, 0), "a row was run again");
    fleet.passed()
}
