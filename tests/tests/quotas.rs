//! What a namespace may use is bounded, and over a bound is a refusal that leaves no trace.

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn over_a_quota_nothing_is_taken_and_after_it_was_raised_the_same_command_goes_on() -> Result<()> {
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
    let said = std::fs::read_to_string(&large.process().log)?;
    ensure!(status.code() == Some(1) && said.contains("RO-2015"), "{status:?}: {said}");
    ensure!(said.contains("may have 100 pending rows, and has 0"), "{said}");
    let used = fleet.ctl_json(&["namespace", "describe", "default"])?;
    ensure!(used["namespace"]["pendingRows"]["used"] == "0", "{used}");
    ensure!(used["namespace"]["runs"]["used"] == "1", "the run is there, without rows: {used}");

    let mut second = Batch::submit(&fleet, "second", 5, "")?;
    let status = second.process().wait(PATIENCE)?;
    let said = std::fs::read_to_string(&second.process().log)?;
    ensure!(status.code() == Some(1) && said.contains("RO-2015"), "{status:?}: {said}");
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
