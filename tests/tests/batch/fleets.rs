//! Hundreds of workers on three members, half of whose slots no run names, with `rolloutctl bench fleet`. The bench
//! compares every row with the ledger, and fails if a row was accepted twice, granted after it was accepted, or
//! granted to its current holder. docs/figures/fleets.md lists the sizes that it covers.

use anyhow::{Context, Result, ensure};
use rollout_tests::bench::{kinds, measured, positive};
use serde_json::Value;

/// Far more than a claim takes on a busy machine.
const CLAIM_P99_US: u64 = 5_000_000;

const FLEET: [&str; 9] =
    ["fleet", "--models", "3", "--runs", "30", "--idle-share", "0.5", "--warmup", "3s"];

fn number(data: &Value, key: &str) -> Result<u64> {
    let value = &data[key];
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.with_context(|| format!("{key} of {data}"))
}

/// Checks that every row was accepted once, according to the ledger, and that all members agree.
fn settled(data: &Value) -> Result<()> {
    let accepted = number(data, "accepted")?;
    ensure!(accepted > 0 && accepted == number(data, "done")?, "{data}");
    ensure!(number(data, "violations")? == 0 && data["digestsEqual"] == true, "{data}");
    Ok(())
}

#[test]
fn idle_slots_cost_no_epoch_and_every_row_is_accepted_once() -> Result<()> {
    let size = ["--workers", "300", "--slots", "2", "--row-ms", "200"];
    let times = ["--calm", "3s", "--seconds", "12s"];
    let lines = measured(&[&FLEET[..], &size, &times].concat())?;
    ensure!(kinds(&lines) == ["BenchFleet", "BenchFleet", "BenchFleetSettled"], "{lines:?}");
    let (calm, load, end) = (&lines[0].1, &lines[1].1, &lines[2].1);
    for phase in [calm, load] {
        ensure!(number(phase, "epochChanges")? == 0, "{phase}");
        ensure!(number(phase, "connected")? == 300, "{phase}");
        positive(phase, "heartbeatsPerSecond")?;
    }
    positive(&load["claims"], "perSecond")?;
    positive(&load["completions"], "rowsPerSecond")?;
    ensure!(number(&load["claims"], "p99Us")? < CLAIM_P99_US, "{load}");
    ensure!(number(load, "busySlots")? == 300, "{load}");
    ensure!(number(end, "epochChanges")? == 0, "{end}");
    settled(end)
}

#[test]
fn no_started_row_is_lost_or_repeated_when_the_leader_dies() -> Result<()> {
    // The leader dies halfway: before and after that, each row that runs ends.
    let size = ["--workers", "120", "--row-ms", "1000-3000", "--kill-leader"];
    let times = ["--calm", "1s", "--seconds", "10s"];
    let lines = measured(&[&FLEET[..], &size, &times].concat())?;
    let phases: Vec<_> = lines.iter().filter_map(|(_, data)| data["phase"].as_str()).collect();
    ensure!(phases == ["calm", "load", "failover"], "{lines:?}");
    ensure!(number(&lines[2].1, "epochChanges")? > 0, "{}", lines[2].1);
    let end = &lines[3].1;
    ensure!(number(end, "started")? > 0 && number(end, "startedAgain")? == 0, "{end}");
    settled(end)
}

#[test]
fn workers_that_were_cut_off_and_all_whose_leader_died_work_again() -> Result<()> {
    let size = ["--workers", "120", "--row-ms", "100-300", "--linger", "500ms"];
    let times = ["--calm", "1s", "--seconds", "12s"];
    let loss = ["--lose-share", "0.4", "--lose-for", "8s", "--kill-leader"];
    let lines = measured(&[&FLEET[..], &size, &times, &loss].concat())?;
    let phases: Vec<_> = lines.iter().filter_map(|(_, data)| data["phase"].as_str()).collect();
    ensure!(phases == ["calm", "load", "loss", "failover"], "{lines:?}");
    let (lost, failover) = (&lines[2].1, &lines[3].1);
    // 8 s is longer than a worker may be silent, and shorter than the time for which its started rows are kept.
    ensure!(number(lost, "epochChanges")? == 0, "{lost}");
    ensure!(number(&lost["workAgain"], "calls")? > 0, "{lost}");
    ensure!(number(failover, "epochChanges")? > 0, "{failover}");
    ensure!(number(&failover["reconnect"], "calls")? >= 120, "{failover}");
    ensure!(number(failover, "connected")? == 120, "{failover}");
    settled(&lines[4].1)
}
