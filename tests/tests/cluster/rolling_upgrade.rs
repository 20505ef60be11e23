//! Owns: upgrades from the builds of `release/BASELINES` to this one, with processes of both builds in one cluster.
//!
//! Invariant: at each stage all members have the same digests of commands, replies and state, regardless of their
//! build, and the whole load on the cluster continues.
//! Absent: building the baselines. `make test-upgrade` builds them. A baseline that is not built is left out, and a
//! line says so.

mod load;
mod training;

use anyhow::{Context, Result, ensure};
use load::{Load, worker};
use rollout_tests::{Baseline, Batch, Build, Fleet, FleetOptions, eventually, eventually_or_show};
use serde_json::Value;
use std::time::Duration;

/// The time limit of one change, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// The time for which members promise not to elect another leader. A build of cluster version 2 does not keep what a
/// newer process of the same member promised.
const LEASE: Duration = Duration::from_millis(250);

/// Queries of an operator to a cluster under load, with `rolloutctl` of either build.
const READS: [&[&str]; 8] = [
    &["status"],
    &["member", "list"],
    &["worker", "list"],
    &["run", "describe", load::OLD],
    &["shard", "list", training::JOB],
    &["checkpoint", "list", training::JOB],
    &["rendezvous", "describe", training::ROUNDS],
    // The digests of commands and replies, of the state, and of the image on disk.
    &["cluster", "verify"],
];

/// Three members of the baseline, in a cluster of the newest version that it supports.
fn started(baseline: &Baseline) -> Result<Fleet> {
    let options = FleetOptions { baseline: Some(baseline.clone()), ..FleetOptions::default() };
    let fleet = Fleet::start(options)?;
    all_answer(&fleet);
    let formed = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(
        formed["version"] == baseline.cluster_version,
        "release/BASELINES says that {} supports version {}: {formed}",
        baseline.name,
        baseline.cluster_version
    );
    Ok(fleet)
}

/// Waits until every member reports the versions that it supports.
fn all_answer(fleet: &Fleet) -> Value {
    eventually("every member answers", PATIENCE, || {
        let would = fleet.ctl_json(&["cluster", "upgrade", "--dry-run"]).ok()?;
        would["members"].is_array().then_some(would)
    })
}

/// Stops a member with an orderly shutdown and starts it with a build.
fn replace(fleet: &mut Fleet, name: &str, build: Build) -> Result<()> {
    let status = fleet.member_process(name).terminate(PATIENCE)?;
    ensure!(status.success(), "{name} ended with {status}{}", fleet.logs());
    if build == Build::Baseline {
        // The promise ends with time alone: the process that gave it has exited, so no condition shows its end.
        std::thread::sleep(LEASE);
    }
    fleet.use_build(name, build);
    fleet.start_member(name)?;
    all_answer(fleet);
    Ok(())
}

/// Transfers leadership to a member.
fn lead(fleet: &Fleet, name: &str) {
    eventually(&format!("{name} leads"), PATIENCE, || {
        let moved = fleet.ctl(&["leader", "transfer", name]).ok()?;
        moved.status.success().then_some(())
    });
}

/// Checks that the load continues at this stage, and that operators with both builds read the same cluster.
fn works(fleet: &Fleet, load: &mut Load, stage: &str) -> Result<()> {
    println!("{stage}");
    load.goes_on(fleet, stage)?;
    for build in [Build::Baseline, Build::Current] {
        for args in READS {
            let what = format!("{stage}: rolloutctl {} of {build:?} succeeds", args.join(" "));
            eventually_or_show(&what, PATIENCE, |seen| {
                let out = fleet.ctl_of(build, args).ok()?;
                let output = [out.stdout, out.stderr].concat();
                *seen = String::from_utf8_lossy(&output).into_owned();
                out.status.success().then_some(())
            });
        }
    }
    Ok(())
}

/// A member of a build without dry runs refuses to check one. The command then prints its plan.
fn plans_at_members_of_the_baseline(fleet: &Fleet) -> Result<()> {
    let quota = ["namespace", "set-quota", "default", "--runs-max", "7", "--dry-run"];
    let plan = fleet.ctl_json(&quota)?;
    ensure!(plan["would"] == "set the quota of namespace default", "{plan}");
    ensure!(plan["checked"].is_boolean(), "{plan}");
    Ok(())
}

/// While a member of the baseline is in the cluster, the version cannot be raised to one that it does not support.
fn keeps_its_version(fleet: &Fleet, baseline: &Baseline) -> Result<()> {
    let kept = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    let version = baseline.cluster_version;
    ensure!(kept["before"] == version && kept["version"] == version, "{kept}");
    Ok(())
}

/// A worker and a client of the baseline work with members of this build.
fn old_worker_and_client_at_new_members(fleet: &mut Fleet, run: &str) -> Result<()> {
    fleet.use_build("user", Build::Baseline);
    let before = eventually("w1 is registered", PATIENCE, || fleet.rows_done_by("w1"));
    let mut late = Batch::submit(fleet, run, 200, "")?;
    eventually("w1 of the baseline finishes rows", PATIENCE, || {
        fleet.rows_done_by("w1").filter(|rows| *rows > before)
    });
    late.finish(fleet)
}

/// The data directory of a worker of the baseline is continued by this build.
fn upgrade_worker(fleet: &mut Fleet) -> Result<()> {
    let status = fleet.worker_process("w1").terminate(PATIENCE)?;
    ensure!(status.success(), "w1 ended with {status}{}", fleet.logs());
    fleet.use_build("w1", Build::Current);
    fleet.start_worker("w1", &worker())?;
    eventually("w1 of this build is registered", PATIENCE, || fleet.rows_done_by("w1"));
    Ok(())
}

/// Raises the cluster's version. A baseline that does not support it can no longer start.
fn raise(fleet: &mut Fleet, baseline: &Baseline) -> Result<()> {
    let raised = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(raised["before"] == baseline.cluster_version, "{raised}");
    let version = raised["version"].as_u64().context("a version")?;
    if version == u64::from(baseline.cluster_version) {
        let name = &baseline.name;
        println!("NOT RUN: an old build refuses a newer version: {name} supports {version} too");
        return Ok(());
    }
    let name = "c1";
    let status = fleet.member_process(name).terminate(PATIENCE)?;
    ensure!(status.success(), "{name} ended with {status}{}", fleet.logs());
    fleet.use_build(name, Build::Baseline);
    fleet.start_member(name)?;
    let refused = fleet.member_process(name).wait(PATIENCE)?;
    let log = fleet.member_process(name).log_tail();
    let names_it = log.contains(&format!("is of version {version}, and this build runs"));
    // Builds of version 2 read the whole image first, and name a record that they do not know.
    let names_record = baseline.cluster_version < 3 && log.contains("cannot be read");
    ensure!(
        !refused.success() && (names_it || names_record),
        "{name} of the baseline ended with {refused}: {log}"
    );
    fleet.use_build(name, Build::Current);
    fleet.start_member(name)?;
    all_answer(fleet);
    Ok(())
}

fn upgraded_from(baseline: &Baseline) -> Result<()> {
    let mut fleet = started(baseline)?;
    let mut load = Load::start(&mut fleet)?;
    fleet.use_build("operator", Build::Current);
    works(&fleet, &mut load, "all members are of the baseline")?;
    plans_at_members_of_the_baseline(&fleet)?;
    for name in ["w1", "w2"] {
        eventually("workers of both builds finish rows", PATIENCE, || {
            fleet.rows_done_by(name).filter(|rows| *rows > 0)
        });
    }
    replace(&mut fleet, "c1", Build::Current)?;
    keeps_its_version(&fleet, baseline)?;
    works(&fleet, &mut load, "c1 is of this build")?;
    lead(&fleet, "c1");
    keeps_its_version(&fleet, baseline)?;
    works(&fleet, &mut load, "c1 of this build led")?;
    // Before the version is raised, there is a way back.
    replace(&mut fleet, "c1", Build::Baseline)?;
    works(&fleet, &mut load, "c1 is of the baseline again")?;
    for name in fleet.member_names() {
        replace(&mut fleet, &name, Build::Current)?;
        works(&fleet, &mut load, &format!("{name} is upgraded"))?;
    }
    // The same way back exists when all members have this build, also if the old one then leads.
    replace(&mut fleet, "c2", Build::Baseline)?;
    lead(&fleet, "c2");
    works(&fleet, &mut load, "c2 of the baseline led members of this build")?;
    replace(&mut fleet, "c2", Build::Current)?;
    old_worker_and_client_at_new_members(&mut fleet, "late")?;
    raise(&mut fleet, baseline)?;
    works(&fleet, &mut load, "the version is raised")?;
    old_worker_and_client_at_new_members(&mut fleet, "later")?;
    upgrade_worker(&mut fleet)?;
    load.finish(&mut fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_cluster_is_upgraded_member_by_member_under_load() -> Result<()> {
    for baseline in Baseline::built("an upgrade under load")? {
        upgraded_from(&baseline).with_context(|| format!("from {}", baseline.name))?;
    }
    Ok(())
}

/// Saves a cluster of the baseline while a run is in progress, loses it, and restores it with this build.
fn restored_from(baseline: &Baseline) -> Result<()> {
    let mut fleet = started(baseline)?;
    fleet.start_worker("w1", &worker())?;
    let mut batch = Batch::submit(&fleet, "saved", 1_000, "")?;
    batch.until(&fleet, "rows run", |c| c.rows == 1_000 && c.done >= 100 && c.running > 0);
    let file = fleet.path("baseline.snap");
    let saved = fleet.ctl_json(&["snapshot", "save", &file.to_string_lossy()])?;
    ensure!(saved["clusterVersion"] == baseline.cluster_version, "{saved}");
    for name in fleet.member_names() {
        fleet.kill_member(&name);
    }
    fleet.worker_process("w1").kill();
    batch.process().kill();

    let members = ["d1", "d2", "d3"];
    for process in members.into_iter().chain(["operator", "user", "w2"]) {
        fleet.use_build(process, Build::Current);
    }
    fleet.restore(&file, &members, "by this build")?;
    let would = all_answer(&fleet);
    ensure!(would["before"] == baseline.cluster_version, "a restored cluster keeps it: {would}");
    let counts = batch.until(&fleet, "the run is there", |c| c.rows == 1_000);
    ensure!(counts.running == 0 && counts.done >= 100, "as of the snapshot: {counts:?}");
    ensure!(counts.done + counts.pending == counts.rows, "{counts:?}");
    fleet.start_worker("w2", &worker())?;
    if batch.output.exists() {
        std::fs::remove_dir_all(&batch.output)?;
    }
    let mut again = Batch::submit_file(&fleet, "saved", batch.input.clone(), batch.rows, "")?;
    again.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_snapshot_of_an_earlier_build_is_restored_by_this_one_with_every_row_once() -> Result<()> {
    for baseline in Baseline::built("a restore of a snapshot")? {
        restored_from(&baseline).with_context(|| format!("from {}", baseline.name))?;
    }
    Ok(())
}
