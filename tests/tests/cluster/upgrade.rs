//! The cluster version that gates commands is raised once every member supports it, and not before.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, Writers, eventually};
use serde_json::Value;
use std::path::Path;
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
    // A new cluster starts with the newest version that all of its members know.
    ensure!(now["before"].as_u64() > Some(1) && now["before"] == now["version"], "{now}");
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
    // A member that is down may come back with any build.
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

/// Stops a member in order and starts it again, as with the next build; while it is away the version is not raised.
fn replace_build(fleet: &mut Fleet, name: &str) -> Result<()> {
    let status = fleet.member_process(name).terminate(PATIENCE)?;
    ensure!(status.success(), "{name} ended with {status}{}", fleet.logs());
    let said = refused(fleet, &["cluster", "upgrade", "--yes"])?;
    ensure!(said.contains("RO-1016") && said.contains(name), "{said}");
    fleet.start_member(name)?;
    eventually("all of them answer again", PATIENCE, || {
        fleet.ctl_json(&["cluster", "upgrade", "--dry-run"]).ok()
    });
    Ok(())
}

/// Three members of a cluster of version 1: restored by this build from an earlier build's data, without raising the
/// version.
fn of_version_1() -> Result<Fleet> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/data-1");
    let mut fleet = Fleet::start(FleetOptions {
        alone: Some(kept),
        enrollment_lifetime_s: Some(3600),
        ..FleetOptions::default()
    })?;
    fleet.leader();
    let file = fleet.path("version-1.snap");
    let saved = fleet.ctl_json(&["snapshot", "save", &file.to_string_lossy()])?;
    ensure!(saved["clusterVersion"] == 1, "{saved}");
    fleet.restore(&file, &["d1", "d2", "d3"], "of version 1")?;
    fleet.leader();
    Ok(fleet)
}

#[test]
fn members_restart_one_by_one_and_accept_new_operations_once_the_version_is_raised() -> Result<()> {
    let mut fleet = of_version_1()?;
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 20\n";
    let worker = WorkerOptions { engine: engine.into(), ..WorkerOptions::default() };
    fleet.start_worker("w1", &worker)?;
    let mut batch = Batch::submit(&fleet, "meanwhile", 4_000, "")?;
    let mut writers = Writers::start(&fleet, 2)?;
    for name in fleet.member_names() {
        // Every member could read the command, but the cluster refuses it: a member with an earlier build may come
        // back.
        let said = refused(&fleet, &["token", "create", "early", "--role", "worker"])?;
        ensure!(said.contains("RO-1016"), "{said}");
        writers.step(&format!("{name} gets the next build"));
        replace_build(&mut fleet, &name)?;
    }
    writers.step("the version is raised");
    let raised = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(raised["before"] == 1, "a cluster that was there keeps its version: {raised}");
    let version = raised["version"].as_u64().context("a version")?;
    ensure!(version >= 2, "{raised}");
    let token = fleet.token("late", &["--role", "worker"])?;
    let file = fleet.path("token");
    std::fs::write(&file, token)?;
    fleet.start_unenrolled_worker("w2", &file, &worker)?;
    eventually("who came with the token is registered", PATIENCE, || fleet.rows_done_by("w2"));

    // The version is replicated and durable: restarts do not lose it.
    for name in fleet.member_names() {
        writers.step(&format!("{name} is restarted"));
        let status = fleet.member_process(&name).terminate(PATIENCE)?;
        ensure!(status.success(), "{name} ended with {status}{}", fleet.logs());
        fleet.start_member(&name)?;
        eventually("all of them answer again", PATIENCE, || {
            fleet.ctl_json(&["cluster", "upgrade", "--dry-run"]).ok()
        });
    }
    let again = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(again["before"] == version && again["version"] == version, "{again}");
    let back = (version - 1).to_string();
    let said = refused(&fleet, &["cluster", "upgrade", "--to", &back, "--yes"])?;
    ensure!(said.contains("never lowered"), "{said}");
    let list = fleet.ctl_json(&["token", "list"])?;
    let names = list["tokens"].as_array().into_iter().flatten().filter_map(|t| t["name"].as_str());
    ensure!(names.eq(["late"]), "what was refused left a trace: {list}");
    let written = writers.stop(&fleet)?;
    for (what, pause) in &written.pauses {
        println!("{what}: longest pause {pause:?}");
    }
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
