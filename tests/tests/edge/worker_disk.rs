//! A worker's disk that is full, that loses power, or that holds results for another cluster.

use anyhow::{Context, Result, ensure};
use rollout_powerloss::{DISK_ENV, Disk, DiskFault, JOURNAL_ENV, Journal, Loss, lose_power};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 400;

/// A worker with one slot of eight rows, each of which takes this long; it may hold more rows than it can run in
/// these tests.
fn worker(fleet: &Fleet, name: &str, latency_ms: u64, head: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    WorkerOptions { engine, head: format!("[credit]\nrows = 200\n{head}") }
}

/// Rows that an engine has started, and those that it has finished.
fn executed(fleet: &Fleet, name: &str) -> (u64, u64) {
    let lines = std::fs::read_to_string(fleet.path(&format!("{name}.side"))).unwrap_or_default();
    let count = |end: &str| lines.lines().filter(|line| line.ends_with(end)).count() as u64;
    (count(" started"), count(" finished"))
}

/// The files of a worker's spool.
fn spooled(fleet: &Fleet, name: &str) -> Vec<PathBuf> {
    let slots = std::fs::read_dir(fleet.path(&format!("worker-{name}/spool")));
    let slots = slots.into_iter().flatten().flatten().map(|slot| slot.path());
    let files = slots.filter_map(|slot| std::fs::read_dir(slot).ok()).flatten().flatten();
    files.map(|file| file.path()).filter(|p| p.extension().is_some_and(|e| e == "spool")).collect()
}

fn log(fleet: &mut Fleet, name: &str) -> String {
    std::fs::read_to_string(&fleet.worker_process(name).log).unwrap_or_default()
}

/// The worker's log lines with this message, newest last.
fn logged(fleet: &mut Fleet, name: &str, message: &str) -> Vec<Value> {
    let log = log(fleet, name);
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["fields"].clone()).filter(|line| line["message"] == message).collect()
}

#[test]
fn the_spool_of_another_cluster_is_kept_aside_and_never_sent() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 500, ""))?;
    let batch = Batch::submit(&fleet, "before", ROWS, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 20 && c.running >= 100);
    for member in fleet.member_names() {
        fleet.member_process(&member).kill();
    }
    let before = executed(&fleet, "w1").1;
    eventually("results wait for a leader", PATIENCE, || {
        (executed(&fleet, "w1").1 > before && !spooled(&fleet, "w1").is_empty()).then_some(())
    });
    fleet.worker_process("w1").kill();
    let files = spooled(&fleet, "w1").len();
    fleet.rebuild()?;
    let registrations = logged(&mut fleet, "w1", "registered").len();
    // As an operator would do to make it a new worker of the new cluster.
    for name in ["worker.json", "members.json"] {
        std::fs::remove_file(fleet.path(&format!("worker-w1/{name}")))?;
    }
    fleet.start_worker("w1", &worker(&fleet, "w1", 5, ""))?;
    let registered = eventually("the worker is registered", PATIENCE, || {
        let registered = logged(&mut fleet, "w1", "registered");
        (registered.len() > registrations).then(|| registered.last().cloned())?
    });
    ensure!(registered["held"] == 0, "{registered}");
    ensure!(log(&mut fleet, "w1").contains("the spool is another cluster's"), "{}", fleet.logs());
    let aside = std::fs::read_dir(fleet.path("worker-w1"))?.flatten().map(|e| e.path());
    let aside: Vec<_> = aside.filter(|p| p.to_string_lossy().contains("spool-of-")).collect();
    let [aside] = &aside[..] else { anyhow::bail!("{aside:?}") };
    ensure!(std::fs::read_dir(aside.join("slot-0"))?.count() == files, "nothing of it is lost");
    fleet.passed()
}

#[test]
fn a_full_disk_ends_the_agent_with_its_reason_and_costs_nothing_that_was_acknowledged() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", 50, "");
    let path = fleet.path("w1.disk");
    Disk::create(&path, &fleet.path("worker-w1/spool"))?;
    let disk = Disk::open(&path)?;
    fleet.preload("w1", DISK_ENV, path);
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "full", 800, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 100);
    disk.set(DiskFault::Full);
    let status = fleet.worker_process("w1").wait(PATIENCE)?;
    ensure!(status.code() == Some(74), "{status}{}", fleet.logs());
    let log = log(&mut fleet, "w1");
    let reason = log.lines().find(|l| l.contains("the local disk failed")).context("a reason")?;
    ensure!(reason.contains("No space left") && reason.contains("spool"), "{reason}");
    // The part whose last row found no space may still have been acknowledged.
    let done = batch.counts(&fleet).context("counts")?.done;
    let started = executed(&fleet, "w1").0;

    // Without space it takes no work.
    fleet.start_worker("w1", &options)?;
    let status = fleet.worker_process("w1").wait(PATIENCE)?;
    ensure!(status.code() == Some(74), "{status}{}", fleet.logs());
    ensure!(executed(&fleet, "w1").0 == started, "it ran rows that it cannot keep");

    disk.set(DiskFault::None);
    fleet.start_worker("w1", &options)?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    let again = executions.attempts.values().filter(|tries| tries.len() > 1).count() as u64;
    // Rows that ran when the disk was full, and rows whose results found no space.
    ensure!(
        again <= 200 && executions.started - again == 800,
        "{again} ran again, {done} were done"
    );
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_finished_row_survives_a_loss_of_power_though_its_part_is_still_open() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // No part is ever closed while rows run.
    let options = worker(&fleet, "w1", 100, "[part]\nrows = 4096\nlinger_ms = 60000\n");
    let journal = fleet.path("w1.journal");
    let root = fleet.path("worker-w1");
    std::fs::create_dir_all(&root)?;
    Journal::create(&journal, &root)?;
    fleet.preload("w1", JOURNAL_ENV, journal.clone());
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "power", ROWS, "")?;
    eventually("rows are finished", PATIENCE, || (executed(&fleet, "w1").1 >= 160).then_some(()));
    fleet.worker_process("w1").kill();
    let lost = lose_power(&journal, Loss::Strict)?;
    let (started, _) = executed(&fleet, "w1");
    fleet.start_worker("w1", &options)?;
    batch.finish(&fleet)?;
    let all = Executions::read(&[fleet.path("w1.side")])?;
    // Eight ran, and as many again may have ended during the fsync that the loss cut short.
    ensure!(all.started <= ROWS + 40, "{} of {started} ran again: {lost:?}", all.started - ROWS);
    fleet.verify()?;
    fleet.passed()
}
