//! Owns: how long clients and workers wait when a member or its links fail.
//!
//! Invariant: one failure at a time, under load, and the next one only when all members hold the same state again. A
//! wait is the longest of any single client or worker: others that are served do not hide it.
//! Absent: lost power of hosts, and links with latency (`make latency`).

use crate::starts::Starts;
use crate::{number, rounded};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, Writers, eventually};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// How long a failure lasts at least. A leader that is frozen for 5 s ends itself, so this is shorter.
const LASTING: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
const WRITERS: usize = 4;
const WORKERS: [&str; 2] = ["w1", "w2"];
/// More than all workers run during a measurement.
const ROWS: u64 = 500_000;
/// A slot that runs one row of 10 ms and holds no other: each row is claimed when it is needed.
const ENGINE: &str = "concurrency = 1\nlatency_ms_min = 10\nlatency_ms_max = 10\n";
const HEAD: &str = "[credit]\nrows = 1\n";
/// So many rows show that a worker works again: the first may have been granted before the failure.
const WORKS: usize = 10;

#[derive(Clone, Copy)]
enum Failure {
    LeaderKilled,
    LeaderFrozen,
    LeaderCutOff,
    FollowerKilled,
    FollowerCutOff,
    AllKilled,
}

const OF_PROCESSES: [Failure; 4] =
    [Failure::LeaderKilled, Failure::LeaderFrozen, Failure::FollowerKilled, Failure::AllKilled];
const OF_LINKS: [Failure; 2] = [Failure::LeaderCutOff, Failure::FollowerCutOff];

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Self::LeaderKilled => "leader killed",
            Self::LeaderFrozen => "leader frozen",
            Self::LeaderCutOff => "leader cut off from the other members",
            Self::FollowerKilled => "follower killed",
            Self::FollowerCutOff => "follower cut off from the other members",
            Self::AllKilled => "all members killed and started again",
        }
    }

    fn strike(self, fleet: &mut Fleet, leader: &str, follower: &str) -> Result<()> {
        match self {
            Self::LeaderKilled => fleet.member_process(leader).kill(),
            Self::LeaderFrozen => fleet.member_process(leader).signal(libc::SIGSTOP)?,
            Self::LeaderCutOff => cut_off(fleet, leader, true),
            Self::FollowerKilled => fleet.member_process(follower).kill(),
            Self::FollowerCutOff => cut_off(fleet, follower, true),
            Self::AllKilled => {
                let names = fleet.member_names();
                names.iter().for_each(|name| fleet.member_process(name).kill());
                for name in &names {
                    fleet.start_member(name)?;
                }
            }
        }
        Ok(())
    }

    /// Repairs all but killed processes, which [`all_back`] starts.
    fn repair(self, fleet: &mut Fleet, leader: &str, follower: &str) -> Result<()> {
        match self {
            Self::LeaderFrozen => fleet.member_process(leader).signal(libc::SIGCONT)?,
            Self::LeaderCutOff => cut_off(fleet, leader, false),
            Self::FollowerCutOff => cut_off(fleet, follower, false),
            Self::LeaderKilled | Self::FollowerKilled | Self::AllKilled => {}
        }
        Ok(())
    }
}

/// Cuts or heals the links between a member and the other members. Clients and workers still reach it.
fn cut_off(fleet: &Fleet, name: &str, cut: bool) {
    let others = fleet.member_names().into_iter().filter(|other| other != name);
    others.for_each(|other| fleet.set_cut(name, &other, cut));
}

pub(crate) fn measure() -> Result<()> {
    let times = number("TIMES", 10)?;
    // Links that can be cut go through proxies. Those of the other failures do not.
    measure_each(FleetOptions::default(), &OF_PROCESSES, times)?;
    measure_each(FleetOptions { cuttable: true, ..FleetOptions::default() }, &OF_LINKS, times)
}

fn measure_each(options: FleetOptions, failures: &[Failure], times: u64) -> Result<()> {
    let mut fleet = Fleet::start(options)?;
    let mut load = Load::start(&mut fleet)?;
    let mut of_workers = Vec::new();
    for _ in 0..times {
        for failure in failures {
            of_workers.push((failure.name(), one(&mut fleet, &mut load, *failure)?));
        }
    }
    ensure!(load.batch.process().runs(), "the load has ended{}", fleet.logs());
    let of_clients = load.writers.stop(&fleet)?.pauses;
    load.batch.process().kill();
    for failure in failures {
        let name = failure.name();
        let clients = of_clients.iter().filter(|(of, _)| of == name).map(|(_, wait)| *wait);
        let workers = of_workers.iter().filter(|(of, _)| *of == name).map(|(_, wait)| *wait);
        let line = json!({
            "bench": "recovery", "failure": name, "times": times,
            "nextWriteOfAClient": spread(clients.collect()),
            "nextRowOfAWorker": spread(workers.collect()),
        });
        println!("{line}");
    }
    fleet.verify()?;
    fleet.passed()
}

/// Clients that write and workers that run rows, all the time.
struct Load {
    writers: Writers,
    workers: Vec<Starts>,
    batch: Batch,
}

impl Load {
    fn start(fleet: &mut Fleet) -> Result<Self> {
        let mut workers = Vec::new();
        for name in WORKERS {
            workers.push(Starts::of_worker(fleet, name, ENGINE, HEAD)?);
        }
        let batch = Batch::submit(fleet, "load", ROWS, "")?;
        Ok(Self { writers: Writers::start(fleet, WRITERS)?, workers, batch })
    }

    /// Waits until every client and every worker is served again.
    fn until_served(&self) {
        self.writers.all_write();
        let goals: Vec<(&Starts, usize)> =
            self.workers.iter().map(|starts| (starts, starts.count() + WORKS)).collect();
        eventually("every worker runs rows", PATIENCE, || {
            goals.iter().all(|(starts, goal)| starts.count() >= *goal).then_some(())
        });
    }
}

/// Measures one failure. Returns the longest wait of a worker; the writers remember that of a client.
fn one(fleet: &mut Fleet, load: &mut Load, failure: Failure) -> Result<Duration> {
    load.until_served();
    let leader = fleet.leader();
    let mut others = fleet.member_names().into_iter().filter(|name| *name != leader);
    let follower = others.next().context("a follower")?;
    load.writers.step(failure.name());
    let from = Instant::now();
    failure.strike(fleet, &leader, &follower)?;
    std::thread::sleep(LASTING); // Some failures must last to have an effect.
    load.until_served();
    load.writers.rest();
    let to = Instant::now();
    failure.repair(fleet, &leader, &follower)?;
    all_back(fleet)?;
    let waits = load.workers.iter().map(|starts| starts.longest_gap(from, to));
    waits.max().context("a worker")
}

/// Starts the members that do not run, and waits until all hold the same state.
fn all_back(fleet: &mut Fleet) -> Result<()> {
    let begun = Instant::now();
    loop {
        for name in fleet.member_names() {
            // A leader that was frozen for too long has ended itself.
            if !fleet.member_process(&name).runs() {
                fleet.start_member(&name)?;
            }
        }
        if fleet.ctl(&["cluster", "verify"])?.status.success() {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "the members do not agree{}", fleet.logs());
        std::thread::sleep(POLL);
    }
}

/// The middle and the longest of some waits.
pub(crate) fn spread(mut waits: Vec<Duration>) -> Value {
    waits.sort();
    let seconds = |wait: Option<&Duration>| wait.map(|wait| rounded(wait.as_secs_f64()));
    json!({
        "medianSeconds": seconds(waits.get(waits.len() / 2)),
        "maxSeconds": seconds(waits.last()),
    })
}
