//! A cloud preempts a machine: its worker drains within part of the notice, and every row that it held is done, or
//! pending and then done by another worker. The clouds are servers on loopback with the headers of the real ones.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Executions, FakeCloud, Fleet, FleetOptions, Provider, WorkerOptions, engines, eventually,
};
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// From a cloud's first notice to a machine's end.
const AWS_LEAD: Duration = Duration::from_secs(120);
const GCP_LEAD: Duration = Duration::from_secs(30);
const AZURE_LEAD: Duration = Duration::from_secs(30);

/// A worker with one slot of eight rows, each of which takes this long.
fn steady(fleet: &Fleet, name: &str, latency_ms: u64, head: String) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    WorkerOptions { engine, head }
}

/// A worker as the operator sees it; `None` once it is gone.
fn seen(fleet: &Fleet, name: &str) -> Option<Value> {
    let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
    let workers = list["workers"].as_array()?;
    Some(workers.iter().find(|w| w["name"] == name).cloned().unwrap_or_default())
}

fn until_gone(fleet: &Fleet, name: &str) {
    eventually("the worker is gone", PATIENCE, || seen(fleet, name).filter(Value::is_null));
}

/// Starts another worker, which finishes the rest.
fn finish_elsewhere(fleet: &mut Fleet, batch: &mut Batch) -> Result<()> {
    fleet.start_worker("w2", &steady(fleet, "w2", 5, String::new()))?;
    batch.finish(fleet)?;
    fleet.verify()
}

fn drains_within_lead_time(provider: Provider, lead: Duration) -> Result<()> {
    let cloud = FakeCloud::start(provider)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &steady(&fleet, "w1", 50, cloud.lines()))?;
    let mut batch = Batch::submit(&fleet, "taken-back", 2000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 50 && c.running >= 8);
    let noticed = Instant::now();
    cloud.take_back(lead);
    let status = fleet.worker_process("w1").wait(lead)?;
    ensure!(status.success(), "it ends with {status}{}", fleet.logs());
    ensure!(noticed.elapsed() < lead, "{:?}", noticed.elapsed());
    ensure!(fleet.worker_process("w1").log_tail().contains(provider.name()), "{}", fleet.logs());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!(left.running == 0 && left.pending > 0, "{left:?}");
    ensure!(left.pending + left.done == 2000, "{left:?}");
    finish_elsewhere(&mut fleet, &mut batch)?;
    let executions = Executions::read(&[fleet.path("w1.side"), fleet.path("w2.side")])?;
    ensure!(executions.started == 2000, "a row was run twice: {}", executions.started);
    let refused = cloud.refused();
    ensure!(refused.is_empty(), "the cloud refused {refused:#?}{}", fleet.logs());
    fleet.passed()
}

mod aws {
    use super::*;

    #[test]
    fn spot_drain_completes_within_lead_time() -> Result<()> {
        drains_within_lead_time(Provider::Aws, AWS_LEAD)
    }
}

mod gcp {
    use super::*;

    #[test]
    fn spot_drain_completes_within_lead_time() -> Result<()> {
        drains_within_lead_time(Provider::Gcp, GCP_LEAD)
    }
}

mod azure {
    use super::*;

    #[test]
    fn spot_drain_completes_within_lead_time() -> Result<()> {
        drains_within_lead_time(Provider::Azure, AZURE_LEAD)
    }
}

#[test]
fn a_harder_notice_of_the_cloud_in_mid_drain_shortens_it() -> Result<()> {
    let cloud = FakeCloud::start(Provider::Aws)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // Rows that take longer than any notice.
    fleet.start_worker("w1", &steady(&fleet, "w1", 600_000, cloud.lines()))?;
    let mut batch = Batch::submit(&fleet, "harder", 40, "")?;
    batch.until(&fleet, "rows run", |c| c.running >= 8);
    cloud.take_back(AWS_LEAD);
    let draining = eventually("the ledger knows of the drain", PATIENCE, || {
        seen(&fleet, "w1").filter(|w| w["draining"] == true && w["drainLeftSeconds"].is_f64())
    });
    ensure!(draining["drainLeftSeconds"].as_f64() <= Some(60.0), "{draining}");
    batch.until(&fleet, "what was not started went back", |c| c.running == 8);
    ensure!(fleet.worker_process("w1").runs(), "it had a minute");
    cloud.take_back(Duration::from_secs(12));
    let harder = Instant::now();
    let status = fleet.worker_process("w1").wait(PATIENCE)?;
    ensure!(status.success(), "it ends with {status}{}", fleet.logs());
    ensure!(harder.elapsed() < Duration::from_secs(25), "{:?}", harder.elapsed());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!((left.pending, left.running) == (40, 0), "{left:?}");
    finish_elsewhere(&mut fleet, &mut batch)?;
    fleet.passed()
}

#[test]
fn an_engine_that_hangs_keeps_no_row_beyond_the_clouds_notice() -> Result<()> {
    let cloud = FakeCloud::start(Provider::Aws)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let mut options = steady(&fleet, "w1", 300, cloud.lines());
    options.engine += "process = true\n";
    fleet.start_worker("w1", &options)?;
    let mut batch = Batch::submit(&fleet, "hangs", 200, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 8 && c.running >= 8);
    let engines = engines(fleet.worker_process("w1").pid());
    ensure!(!engines.is_empty(), "the engine is a process of its own");
    for engine in engines {
        // SAFETY: a signal to a process that this test's worker has started.
        unsafe { libc::kill(engine as i32, libc::SIGSTOP) };
    }
    cloud.take_back(Duration::from_secs(16));
    let noticed = Instant::now();
    // The exit status does not matter: the worker must be gone, and its rows free.
    let status = fleet.worker_process("w1").wait(PATIENCE)?;
    ensure!(noticed.elapsed() < Duration::from_secs(30), "{status} {:?}", noticed.elapsed());
    until_gone(&fleet, "w1");
    let left = batch.counts(&fleet).context("counts")?;
    ensure!(left.running == 0 && left.pending > 0, "{left:?}");
    ensure!(left.pending + left.done == 200, "{left:?}");
    finish_elsewhere(&mut fleet, &mut batch)?;
    fleet.passed()
}

/// An operator sees the cloud's labels of the machine beside the configured ones.
#[test]
fn a_runs_selector_meets_the_clouds_labels() -> Result<()> {
    let cloud = FakeCloud::start(Provider::Gcp)?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let labels = "[labels]\nlifecycle = \"mine\"\n";
    let head = format!("{labels}{}", cloud.lines());
    fleet.start_worker("w1", &steady(&fleet, "w1", 5, head))?;
    let selector = "[workers]\nlabels = { zone = \"europe-west4-b\", lifecycle = \"mine\" }\n";
    let mut batch = Batch::submit(&fleet, "selected", 50, selector)?;
    batch.finish(&fleet)?;
    fleet.passed()
}
