//! A cluster without a majority for longer than ledger time may advance in one command continues where it was.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions};
use std::time::Duration;

const ROWS: u64 = 8_000;
/// The ledger refuses a command that advances its time by more than a minute.
const OUTAGE: Duration = Duration::from_secs(65);

#[test]
fn a_majority_that_was_away_for_over_a_minute_costs_no_result_and_repeats_no_row() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 32\nlatency_ms_min = 20\nlatency_ms_max = 60\n\
         side_file = {side:?}\n"
    );
    fleet.start_worker("w1", &WorkerOptions { engine, head: String::new() })?;
    let mut batch = Batch::submit(&fleet, "outage", ROWS, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 500);
    let leader = fleet.leader();
    let others: Vec<String> =
        fleet.member_names().into_iter().filter(|name| *name != leader).collect();
    let before = batch.counts(&fleet).context("counts")?;
    for name in &others {
        fleet.member_process(name).kill();
    }
    std::thread::sleep(OUTAGE);
    // Only the old leader's log has what it appended before it noticed, so it keeps leading in the same epoch. If
    // another member won anyway, a new clock began.
    fleet.start_member(&others[0])?;
    batch.finish(&fleet)?;
    let after = batch.counts(&fleet).context("counts")?;
    ensure!(before.done <= after.done && after.done == ROWS, "{before:?}, then {after:?}");
    let executions = Executions::read(&[side])?;
    ensure!(executions.started == ROWS, "{} rows were run of {ROWS}", executions.started);
    fleet.start_member(&others[1])?;
    fleet.verify()?;
    fleet.passed()
}
