//! Owns: the cost of a cluster that does nothing: three members alone, then with idle workers.
//!
//! Invariant: nobody sends the cluster a request while it is measured, except its own workers.
//! Absent: engines. That of an idle worker is inside its agent here.

use crate::{number, rounded};
use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Usage, WorkerOptions, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// Time for first connections and first images. Nothing shows when they are over.
const SETTLING: Duration = Duration::from_secs(20);

pub(crate) fn measure() -> Result<()> {
    let (workers, seconds) = (number("WORKERS", 100)?, number("SECONDS", 60)?);
    // Proxies count the bytes of each link.
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    for count in [0, workers] {
        let names: Vec<String> = (0..count).map(|number| format!("w{number}")).collect();
        for name in &names {
            fleet.start_worker(name, &WorkerOptions::default())?;
        }
        eventually("every worker is ready", PATIENCE, || {
            (ready_workers(&fleet) == Some(names.len())).then_some(())
        });
        std::thread::sleep(SETTLING);
        measure_one(&mut fleet, &names, seconds)?;
    }
    fleet.verify()?;
    fleet.passed()
}

fn ready_workers(fleet: &Fleet) -> Option<usize> {
    let list = fleet.ctl_json(&["worker", "list"]).ok()?;
    Some(list["workers"].as_array()?.iter().filter(|worker| worker["state"] == "ready").count())
}

/// Everything that is counted, at one time.
struct Reading {
    leader: Usage,
    followers: Usage,
    agents: Usage,
    member_link_bytes: u64,
    worker_link_bytes: u64,
}

fn measure_one(fleet: &mut Fleet, workers: &[String], seconds: u64) -> Result<()> {
    let leader = fleet.leader();
    let (mut leaders, mut followers) = (Vec::new(), Vec::new());
    for name in fleet.member_names() {
        let pid = fleet.member_process(&name).pid();
        if name == leader { leaders.push(pid) } else { followers.push(pid) }
    }
    let agents: Vec<u32> = workers.iter().map(|name| fleet.worker_process(name).pid()).collect();
    let take = |fleet: &Fleet| -> Result<Reading> {
        Ok(Reading {
            leader: Usage::of(&leaders)?,
            followers: Usage::of(&followers)?,
            agents: Usage::of(&agents)?,
            member_link_bytes: member_link_bytes(fleet),
            worker_link_bytes: worker_link_bytes(fleet, workers),
        })
    };
    let before = take(fleet)?;
    std::thread::sleep(Duration::from_secs(seconds)); // The measured time.
    let after = take(fleet)?;
    ensure!(fleet.leader() == leader, "the leader changed{}", fleet.logs());
    let of =
        |new: Usage, old: Usage, processes: usize| figures(new.since(&old), processes, seconds);
    let line = json!({
        "bench": "idle", "workers": workers.len(), "seconds": seconds,
        "leader": of(after.leader, before.leader, leaders.len()),
        "eachFollower": of(after.followers, before.followers, followers.len()),
        "eachWorker": of(after.agents, before.agents, agents.len()),
        "bytesBetweenMembers": after.member_link_bytes - before.member_link_bytes,
        "bytesBetweenWorkersAndMembers": after.worker_link_bytes - before.worker_link_bytes,
    });
    println!("{line}");
    Ok(())
}

/// The figures of one process, as the mean of several.
fn figures(used: Usage, processes: usize, seconds: u64) -> Value {
    if processes == 0 {
        return Value::Null;
    }
    let each = processes as f64;
    json!({
        "cpuSeconds": rounded(used.cpu_s / each),
        "cpuPercentOfACore": rounded(used.cpu_s * 100.0 / each / seconds as f64),
        "residentBytes": used.resident_bytes / processes as u64,
        "diskBytes": used.disk_bytes / processes as u64,
    })
}

/// Bytes between members, in both directions.
fn member_link_bytes(fleet: &Fleet) -> u64 {
    let names = fleet.member_names();
    let pairs =
        names.iter().flat_map(|a| names.iter().filter(move |b| a < *b).map(move |b| (a, b)));
    pairs.map(|(a, b)| fleet.bytes_between(a, b)).sum()
}

/// Bytes between these workers and all members, in both directions.
fn worker_link_bytes(fleet: &Fleet, workers: &[String]) -> u64 {
    let members = fleet.member_names();
    let of_one = |worker: &String| -> u64 {
        members.iter().map(|member| fleet.bytes_between(worker, member)).sum()
    };
    workers.iter().map(of_one).sum()
}
