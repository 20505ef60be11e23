//! Quotas bound what a namespace may use: requests beyond a quota are refused without a trace, or wait.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_submission_over_a_quota_is_refused_and_continues_after_the_quota_is_raised() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let quota = |args: &[&str]| fleet.ctl(&[&["namespace", "set-quota"], args].concat());
    let unknown = quota(&["team", "--runs-max", "3"])?;
    ensure!(unknown.status.code() == Some(4), "{unknown:?}");
    let planned = quota(&["default", "--pending-rows-max", "100", "--dry-run"])?;
    ensure!(planned.status.success(), "{planned:?}");
    let set = quota(&["default", "--pending-rows-max", "100", "--runs-max", "1"])?;
    ensure!(set.status.success(), "{set:?}");

    let mut large = Batch::submit(&fleet, "large", 500, "")?;
    let status = large.process().wait(PATIENCE)?;
    let text = std::fs::read_to_string(&large.process().log)?;
    ensure!(status.code() == Some(1) && text.contains("RO-2015"), "{status:?}: {text}");
    ensure!(text.contains("may have 100 pending rows, and has 0"), "{text}");
    let used = fleet.ctl_json(&["namespace", "describe", "default"])?;
    ensure!(used["namespace"]["pendingRows"]["used"] == "0", "{used}");
    ensure!(used["namespace"]["runs"]["used"] == "1", "the run is there, without rows: {used}");

    let mut second = Batch::submit(&fleet, "second", 5, "")?;
    let status = second.process().wait(PATIENCE)?;
    let text = std::fs::read_to_string(&second.process().log)?;
    ensure!(status.code() == Some(1) && text.contains("RO-2015"), "{status:?}: {text}");
    let runs = fleet.ctl(&["-o", "name", "run", "list"])?;
    ensure!(String::from_utf8_lossy(&runs.stdout) == "large\n", "a refused run is there: {runs:?}");

    let raised = fleet.ctl(&["namespace", "set-quota", "default", "--pending-rows-max", "0"])?;
    ensure!(raised.status.success(), "{raised:?}");
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut again = Batch::submit(&fleet, "large", 500, "")?;
    again.finish(&fleet)?;
    // The first has ended and makes room.
    let mut second = Batch::submit(&fleet, "second", 5, "")?;
    second.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// The most rows that a worker's mock engines executed at a time, over all runs, by the order of the lines in its
/// file.
fn most_at_once(side_file: &Path) -> Result<usize> {
    let (mut now, mut most) = (0_usize, 0);
    for line in std::fs::read_to_string(side_file)?.lines() {
        match line.rsplit(' ').next() {
            Some("started") => now += 1,
            Some("finished") => now = now.checked_sub(1).context("more ends than starts")?,
            _ => continue,
        }
        most = most.max(now);
    }
    Ok(most)
}

/// The worker can run 64 rows. The quota bounds all runs of the namespace together; rows over it wait and are not
/// refused.
#[test]
fn workers_hold_no_more_rows_of_a_namespace_than_its_quota_until_it_is_raised() -> Result<()> {
    const ROWS_MAX: usize = 6;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let bound = |fleet: &Fleet, rows: &str| {
        let set = fleet.ctl(&["namespace", "set-quota", "default", "--running-rows-max", rows])?;
        ensure!(set.status.success(), "{set:?}");
        Ok(())
    };
    bound(&fleet, &ROWS_MAX.to_string())?;
    let mut first = Batch::submit(&fleet, "first", 200, "")?;
    let mut second = Batch::submit(&fleet, "second", 200, "")?;
    for batch in [&first, &second] {
        batch.until(&fleet, "its rows are there", |c| c.pending == 200);
    }
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 4\nconcurrency = 16\nlatency_ms_min = 200\nlatency_ms_max = 200\nside_file = {side:?}\n"
    );
    fleet.start_worker("w1", &WorkerOptions { engine, ..WorkerOptions::default() })?;
    for batch in [&first, &second] {
        let counts = batch.until(&fleet, "rows of both are done", |c| c.done >= 10);
        ensure!(counts.running <= ROWS_MAX as u64, "{counts:?}");
    }
    let used = fleet.ctl_json(&["namespace", "describe", "default"])?;
    let running = &used["namespace"]["runningRows"];
    let told = |key: &str| -> Result<usize> {
        Ok(running[key].as_str().with_context(|| format!("no {key}"))?.parse()?)
    };
    ensure!(told("max")? == ROWS_MAX && told("used")? <= ROWS_MAX, "{used}");
    eventually("the bound is reached", PATIENCE, || {
        (most_at_once(&side).ok()? >= ROWS_MAX).then_some(())
    });
    let most = most_at_once(&side)?;
    ensure!(most == ROWS_MAX, "{most} rows at a time, of {ROWS_MAX}");

    bound(&fleet, "0")?;
    first.finish(&fleet)?;
    second.finish(&fleet)?;
    let most = most_at_once(&side)?;
    ensure!(most > ROWS_MAX, "nothing was raised: {most} rows at a time");
    fleet.verify()?;
    fleet.passed()
}
