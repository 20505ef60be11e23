//! A leader that was paused, or cut off, does no harm: it commits nothing and grants nothing.

use anyhow::Result;
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use std::time::Duration;

fn worker(fleet: &Fleet, name: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 32\nlatency_ms_min = 20\nlatency_ms_max = 80\n\
         side_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

fn once_each(fleet: &Fleet, workers: &[&str], rows: u64) -> Result<()> {
    let files: Vec<_> = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    let executions = Executions::read(&files)?;
    let twice: Vec<_> = executions.attempts.iter().filter(|a| a.1.len() > 1).collect();
    assert!(twice.is_empty() && executions.started == rows, "run again: {twice:?}");
    Ok(())
}

#[test]
fn a_paused_leader_that_is_resumed_commits_nothing_and_grants_nothing() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "paused", 12_000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 500 && c.running >= 64);
    let old = fleet.leader();
    fleet.member_process(&old).signal(libc::SIGSTOP)?;
    let new = fleet.leader_other_than(&old);
    let seen = batch.until(&fleet, "work goes on", |c| c.done >= 1500);
    fleet.member_process(&old).signal(libc::SIGCONT)?;
    let more = (seen.done + 500).min(12_000);
    batch.until(&fleet, "it still goes on", |c| c.done >= more);
    assert_eq!(fleet.leader(), new, "the paused one must not lead again by itself");
    batch.finish(&fleet)?;
    fleet.verify()?;
    once_each(&fleet, &["w1", "w2"], 12_000)?;
    fleet.passed()
}

#[test]
fn workers_of_a_leader_in_a_minority_work_for_the_new_one_before_the_cut_is_healed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "minority", 8000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 500 && c.running >= 64);
    let old = fleet.leader();
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, true); // Its workers still reach it.
    }
    fleet.leader_other_than(&old);
    for name in ["w1", "w2"] {
        let before = fleet.rows_done_by(name).unwrap_or(0);
        eventually("each worker finishes rows for the new leader", Duration::from_secs(60), || {
            fleet.rows_done_by(name).filter(|done| *done > before)
        });
    }
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, false);
    }
    batch.finish(&fleet)?;
    fleet.verify()?;
    once_each(&fleet, &["w1", "w2"], 8000)?;
    fleet.passed()
}
