//! Members stop and start during a run; nothing is lost, and nothing that was accepted is repeated.

use anyhow::Result;
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually_or_show};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn options(fleet: &Fleet) -> WorkerOptions {
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 32\nlatency_ms_min = 20\nlatency_ms_max = 60\n\
         side_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

/// Restarts every member in turn, and then all at once: no row runs twice.
#[test]
fn coord_restart_no_duplicates() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = options(&fleet);
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "restarts", 12_000, "")?;
    for (turn, name) in fleet.member_names().into_iter().enumerate() {
        batch.until(&fleet, "it goes on", |c| c.done >= 800 * (turn as u64 + 1));
        let status = fleet.member_process(&name).terminate(Duration::from_secs(20))?;
        assert!(status.success(), "{name} ended with {status}{}", fleet.logs());
        fleet.start_member(&name)?;
        fleet.leader();
    }
    let before = batch.until(&fleet, "it goes on", |c| c.done >= 4000);
    for name in fleet.member_names() {
        fleet.member_process(&name).kill();
    }
    for name in fleet.member_names() {
        fleet.start_member(&name)?;
    }
    let after = batch.until(&fleet, "it is back", |_| true);
    assert!(after.done >= before.done, "{} rows were lost", before.done - after.done);
    batch.finish(&fleet)?;
    fleet.verify()?;
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    assert_eq!(executions.started, 12_000, "a row was run again");
    fleet.passed()
}

/// SIGHUP, which other daemons take as a request to reload, kills no member and no worker.
#[test]
fn sighup_ends_no_process() -> Result<()> {
    const SIGHUP: i32 = 1;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = options(&fleet);
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "hung-up", 2000, "")?;
    // All of them have begun to listen.
    batch.until(&fleet, "rows are done", |c| c.done > 0);
    for name in fleet.member_names() {
        fleet.member_process(&name).signal(SIGHUP)?;
    }
    fleet.worker_process("w1").signal(SIGHUP)?;
    for name in ["c1", "c2", "c3", "worker-w1"] {
        eventually_or_show("it has heard of it", PATIENCE, |seen| {
            *seen = std::fs::read_to_string(fleet.path(&format!("{name}.log"))).ok()?;
            seen.contains("SIGHUP").then_some(())
        });
    }
    batch.finish(&fleet)?;
    for name in fleet.member_names() {
        let status = fleet.member_process(&name).terminate(PATIENCE)?;
        assert!(status.success(), "{name} ended with {status}{}", fleet.logs());
    }
    fleet.passed()
}
