//! The figures that an autoscaler uses, with real processes: how many slots a queue needs, and which workers may go
//! first.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, eventually_or_show};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 250;

/// A worker with one slot, whose rows do not end before the test does.
fn worker() -> WorkerOptions {
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 4\nlatency_ms_min = 600000\nlatency_ms_max = 600000\n";
    WorkerOptions { engine: engine.into(), head: "[credit]\nrows = 8\n".into() }
}

/// A metric of the only pool, aggregated over members as a scraper would: the highest value.
fn pool(fleet: &Fleet, metric: &str) -> Option<u64> {
    let of = |member: &String| {
        let (_, page) = fleet.http(member, "/metrics").ok()?;
        let value = |line: &str| {
            let (name, value) = line.split_once("} ")?;
            name.starts_with(&format!("{metric}{{model=")).then(|| value.parse::<u64>().ok())?
        };
        page.lines().filter_map(value).max()
    };
    fleet.member_names().iter().filter_map(of).max()
}

/// Waits until the pool has these values: pending rows, running rows, wanted slots.
fn pool_is(fleet: &Fleet, wanted: [u64; 3]) {
    let metrics = ["rows_pending", "rows_running", "desired_slots"];
    eventually_or_show("the pool is told so", PATIENCE, |seen| {
        let told = metrics.map(|m| pool(fleet, &format!("rollout_pool_{m}")).unwrap_or(0));
        *seen = format!("{told:?} instead of {wanted:?}");
        (told == wanted).then_some(())
    });
}

/// The workers that may go, in that order.
fn scale_in(fleet: &Fleet) -> Option<String> {
    let list = ["--timeout", "5s", "-o", "name", "worker", "list", "--scale-in"];
    let out = fleet.ctl(&list).ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn order_is(fleet: &Fleet, wanted: &str) {
    eventually_or_show("that is the order", PATIENCE, |seen| {
        *seen = scale_in(fleet)?;
        (seen == wanted).then_some(())
    });
}

#[test]
fn a_queue_wants_slots_and_workers_go_in_the_order_in_which_they_cost_least() -> Result<()> {
    let member_lines = vec![("autoscale", "rows_per_slot = 100")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let batch = Batch::submit(&fleet, "queue", ROWS, "")?;
    // No worker exists yet: this is what makes an autoscaler start the first one.
    pool_is(&fleet, [ROWS, 0, 3]);
    fleet.start_worker("w1", &worker())?;
    batch.until(&fleet, "the worker has all that it may", |c| c.running == 8);
    // Running rows count as much as pending ones: the wanted slots do not decrease because rows are running.
    pool_is(&fleet, [ROWS - 8, 8, 3]);
    let paused = fleet.ctl(&["run", "pause", "queue"])?;
    ensure!(paused.status.success(), "{paused:?}");
    pool_is(&fleet, [0, 8, 1]);

    // Idle workers come first, the youngest first; the worker with running rows is last.
    for name in ["w2", "w3"] {
        fleet.start_worker(name, &worker())?;
        eventually("it is registered", PATIENCE, || fleet.rows_done_by(name));
    }
    order_is(&fleet, "w3\nw2\nw1\n");
    let drained = fleet.ctl(&["worker", "drain", "w3"])?;
    ensure!(drained.status.success(), "{drained:?}");
    order_is(&fleet, "w2\nw1\n");
    let status = fleet.worker_process("w3").wait(PATIENCE)?;
    ensure!(status.success(), "an idle worker leaves: {status}{}", fleet.logs());
    let run = fleet.ctl_json(&["run", "describe", "queue"])?;
    let counts = run.get("run").context("a run")?["counts"].clone();
    ensure!(counts["returned"] == "0" && counts["running"] == "8", "no row paid for it: {counts}");

    let cancelled = fleet.ctl(&["run", "cancel", "queue", "--yes"])?;
    ensure!(cancelled.status.success(), "{cancelled:?}");
    pool_is(&fleet, [0, 0, 0]);
    fleet.passed()
}
