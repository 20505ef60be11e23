//! The smoke test of `make smoke-3node-aws` and `make smoke-3node-gcp`: three members, three workers, mTLS with its
//! own certificate authority. Work is dispatched and stolen, and a worker whose machine the cloud preempts leaves
//! work behind. It finishes within 30 s, including the start of the cluster.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Executions, FakeCloud, Fleet, FleetOptions, Provider, WorkerOptions, eventually,
};
use std::time::{Duration, Instant};

const ROWS: u64 = 600;
const AT_MOST: Duration = Duration::from_secs(30);
/// The cloud's notice to the machine.
const NOTICE: Duration = Duration::from_secs(120);

fn worker(fleet: &Fleet, name: &str, latency_ms: u64, head: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 4\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    // Credit for every row, so that there is something to steal.
    WorkerOptions { engine, head: format!("{head}[credit]\nrows = 1024\n") }
}

fn smoke(provider: Provider) -> Result<()> {
    let begun = Instant::now();
    let cloud = FakeCloud::start(provider)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let step = |what: &str| println!("{:6.2} s  {what}", begun.elapsed().as_secs_f64());
    step("three members lead and follow, mTLS between all");
    fleet.start_worker("w1", &worker(&fleet, "w1", 60, &cloud.lines()))?;
    let mut batch = Batch::submit(&fleet, "smoke", ROWS, "")?;
    batch.until(&fleet, "w1 holds every row", |c| c.running + c.done == ROWS);
    step("w1 was given all rows");
    for name in ["w2", "w3"] {
        fleet.start_worker(name, &worker(&fleet, name, 60, ""))?;
    }
    let stolen = eventually("rows are stolen", AT_MOST, || {
        let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "smoke"]).ok()?;
        let stolen: u64 = run["run"]["counts"]["stolen"].as_str()?.parse().ok()?;
        (stolen > 0).then_some(stolen)
    });
    step(&format!("w2 and w3 have nothing to do and steal: {stolen} rows so far"));
    cloud.take_back(NOTICE);
    let status = fleet.worker_process("w1").wait(AT_MOST)?;
    ensure!(status.success(), "w1 ends with {status}{}", fleet.logs());
    step(&format!("{} takes w1's machine back, and w1 has drained and left", provider.name()));
    batch.finish(&fleet)?;
    let took = begun.elapsed();
    step("every row is done, once");
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (ROWS, 0), "{counts:?}");
    let sides: Vec<_> = ["w1", "w2", "w3"].map(|w| fleet.path(&format!("{w}.side"))).into();
    let executions = Executions::read(&sides)?;
    ensure!(executions.started == ROWS, "{} executions of {ROWS} rows", executions.started);
    fleet.verify()?;
    step("all members hold the same state, in memory and on disk");
    ensure!(took < AT_MOST, "it took {took:?}");
    fleet.passed()
}

#[test]
fn smoke_3node_aws() -> Result<()> {
    smoke(Provider::Aws)
}

#[test]
fn smoke_3node_gcp() -> Result<()> {
    smoke(Provider::Gcp)
}
