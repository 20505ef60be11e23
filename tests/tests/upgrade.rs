//! The version that gates commands is raised when every member supports it, and not before.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, eventually};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn refused(fleet: &Fleet, args: &[&str]) -> Result<String> {
    let out = fleet.ctl(args)?;
    ensure!(out.status.code() == Some(5), "{args:?}: {out:?}");
    Ok(String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn the_version_is_raised_to_nothing_that_a_member_does_not_support_or_say() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let now = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    // A new cluster begins with version 1, whatever its members know beyond it.
    ensure!(now["before"] == 1, "{now}");
    let again = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(again["before"] == now["version"] && again["version"] == now["version"], "{again}");
    let members = now["members"].as_array().map_or(0, Vec::len);
    ensure!(members == 3, "{now}");
    let highest: Vec<&Value> =
        now["members"].as_array().into_iter().flatten().map(|m| &m["versionMax"]).collect();
    ensure!(highest.iter().all(|max| **max == now["version"]), "{now}");

    let beyond = (now["version"].as_u64().unwrap_or(0) + 1).to_string();
    for more in [&["--yes"][..], &["--dry-run"]] {
        let args = [&["cluster", "upgrade", "--to", &beyond], more].concat();
        let said = refused(&fleet, &args)?;
        ensure!(said.contains("RO-1016") && said.contains("c1 supports"), "{said}");
    }
    // One that is down may come back with any build.
    let leader = fleet.leader();
    let names = fleet.member_names();
    let down = names.iter().find(|name| **name != leader).map_or("", String::as_str);
    fleet.member_process(down).terminate(PATIENCE)?;
    let said = refused(&fleet, &["cluster", "upgrade", "--yes"])?;
    ensure!(said.contains("RO-1016") && said.contains(down), "{said}");
    fleet.start_member(down)?;
    eventually("all of them answer again", PATIENCE, || {
        fleet.ctl_json(&["cluster", "upgrade", "--dry-run"]).ok()
    });
    fleet.verify()?;
    fleet.passed()
}
