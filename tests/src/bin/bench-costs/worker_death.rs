//! Owns: how long the rows of a worker that was killed wait until another worker runs them.
//!
//! Invariant: the killed process is not started again, and a slot was free for its rows all the time.
//! Absent: a worker that a service manager starts again. It continues its session at once.

use crate::number;
use crate::recovery::spread;
use crate::starts::Starts;
use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually};
use serde_json::json;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Several heartbeats, each of which reports the rows that run.
const REPORTED: Duration = Duration::from_secs(2);
/// Rows of a run, all on one worker, and how many of them it runs.
const ROWS: usize = 16;
const RUNNING: usize = 4;

pub(crate) fn measure() -> Result<()> {
    let times = number("WORKER_TIMES", 3)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (mut waiting, mut running) = (Vec::new(), Vec::new());
    for time in 0..times {
        let killed = format!("killed{time}");
        let engine =
            format!("concurrency = {RUNNING}\nlatency_ms_min = 60000\nlatency_ms_max = 60000\n");
        let starts = Starts::of_worker(&mut fleet, &killed, &engine, "[credit]\nrows = 1024\n")?;
        let mut batch = Batch::submit(&fleet, &format!("run{time}"), ROWS as u64, "")?;
        batch.until(&fleet, "one worker holds every row", |c| c.running == ROWS as u64);
        eventually("its first rows run", PATIENCE, || (starts.count() == RUNNING).then_some(()));
        std::thread::sleep(REPORTED); // Nothing shows that the leader has heard of them.
        let from = Instant::now();
        fleet.worker_process(&killed).kill();
        let heir = format!("heir{time}");
        let taken = Starts::of_worker(&mut fleet, &heir, "concurrency = 64\n", "")?;
        let nth = |n| eventually("another worker runs them", PATIENCE, || taken.nth(n));
        waiting.push(nth(ROWS - RUNNING) - from);
        running.push(nth(ROWS) - from);
        batch.finish(&fleet)?;
        let ended = fleet.worker_process(&heir).terminate(PATIENCE)?;
        ensure!(ended.success(), "{heir}: {ended}{}", fleet.logs());
    }
    for (failure, waits) in
        [("worker killed, rows not started", waiting), ("worker killed, rows started", running)]
    {
        let line = json!({
            "bench": "recovery", "failure": failure, "times": times,
            "onAnotherWorker": spread(waits),
        });
        println!("{line}");
    }
    fleet.verify()?;
    fleet.passed()
}
