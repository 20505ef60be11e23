//! A fleet without a shared disk: members, workers and clients share only an S3 object store that is busy, slow and
//! loses answers, and whose credentials expire.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Dialect, Executions, Fleet, FleetOptions, S3, StoreFaults, WorkerOptions, engines,
    eventually_or_show, output,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(180);

fn fleet(s3: &Arc<S3>, workers: &[&str], engine: &str) -> Result<Fleet> {
    let mut fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    for name in workers {
        start_worker(&mut fleet, name, engine)?;
    }
    ensure!(!fleet.path("store").exists(), "nothing is shared");
    Ok(fleet)
}

fn start_worker(fleet: &mut Fleet, name: &str, engine: &str) -> Result<()> {
    let head = "[part]\nlinger_ms = 100\n".to_owned();
    fleet.start_worker(name, &WorkerOptions { engine: engine.to_owned(), head })
}

fn described(fleet: &Fleet, run: &str) -> Option<Value> {
    Some(fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?["run"].clone())
}

#[test]
fn a_store_that_is_busy_slow_and_loses_its_answers_costs_no_row() -> Result<()> {
    let s3 = S3::start()?;
    let engine =
        "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = 2\nlatency_ms_max = 20\n";
    let mut fleet = fleet(&s3, &["w1", "w2"], engine)?;
    s3.inject(StoreFaults { busy_every: 5, lost_every: 4, slow_ms: 60, ..StoreFaults::default() });
    let mut batch = Batch::submit(&fleet, "storm", 6000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 1000);
    fleet.worker_process("w1").kill();
    start_worker(&mut fleet, "w1", engine)?;
    let old = fleet.leader();
    fleet.member_process(&old).kill();
    fleet.start_member(&old)?;
    batch.finish(&fleet)?;
    let (busy, lost) = s3.misbehaved();
    ensure!(busy > 10 && lost > 5, "the store was well: {busy} times busy, {lost} answers lost");
    s3.inject(StoreFaults::default());
    let out = batch.output.to_string_lossy().into_owned();
    let verified = output(fleet.rollout(&["verify", "storm", "--output", &out]), PATIENCE)?;
    ensure!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    fleet.verify()?;
    let deleted = fleet.ctl(&["run", "delete", "storm", "--yes", "--wait"])?;
    ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    ensure!(s3.keys("work/runs/").is_empty(), "{:?}", s3.keys("work/runs/"));
    fleet.passed()
}

#[test]
fn credentials_that_end_pause_the_run_with_the_reason_and_no_finished_row_is_lost() -> Result<()> {
    let s3 = S3::start()?;
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 10\nlatency_ms_max = 30\n";
    let fleet = fleet(&s3, &["w1"], engine)?;
    let mut batch = Batch::submit(&fleet, "ends", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 300);
    s3.expire("w1", true);
    let reason = eventually_or_show("the run is paused", PATIENCE, |seen| {
        let run = described(&fleet, "ends")?;
        *seen = run.to_string();
        run["state"].as_str()?.to_lowercase().contains("paused").then(|| run["reason"].to_string())
    });
    ensure!(reason.contains("ExpiredToken"), "{reason}");
    let paused = batch.counts(&fleet).context("counts")?;
    ensure!(paused.failed == 0, "{paused:?}");
    s3.expire("w1", false);
    let resumed = fleet.ctl(&["run", "resume", "ends"])?;
    ensure!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn credentials_that_end_while_a_worker_has_nothing_to_do_fail_no_row_of_the_next_run() -> Result<()>
{
    let s3 = S3::start()?;
    let fleet = fleet(&s3, &["w1"], "kind = \"mock\"\nconcurrency = 8\n")?;
    // The worker registered while its store access worked.
    Batch::submit(&fleet, "before", 10, "")?.finish(&fleet)?;
    s3.expire("w1", true);
    let mut batch = Batch::submit(&fleet, "after", 200, "")?;
    let reason = eventually_or_show("the run is paused", PATIENCE, |seen| {
        let run = described(&fleet, "after")?;
        *seen = run.to_string();
        run["state"].as_str()?.to_lowercase().contains("paused").then(|| run["reason"].to_string())
    });
    ensure!(reason.contains("segment 0") && reason.contains("ExpiredToken"), "{reason}");
    let ineligible = |wanted: bool| {
        eventually_or_show("the worker says whether it takes work", PATIENCE, |seen| {
            let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
            *seen = list.to_string();
            let why = list["workers"][0]["slots"][0]["ineligible"].as_str().unwrap_or_default();
            (why.contains("ExpiredToken") == wanted).then_some(())
        });
    };
    ineligible(true);
    // Resumed too early, the run waits for a worker that can read its input, and fails no row.
    let resumed = fleet.ctl(&["run", "resume", "after"])?;
    ensure!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    std::thread::sleep(Duration::from_secs(5));
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (0, 0), "{counts:?}");
    let state = described(&fleet, "after").context("the run")?["state"].to_string();
    ensure!(state.to_lowercase().contains("running"), "{state}");
    s3.expire("w1", false);
    ineligible(false);
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (200, 0), "{counts:?}");
    fleet.verify()?;
    fleet.passed()
}

/// Waits until every slot of a worker reports that the store refuses it, or none does.
fn until_refused(fleet: &Fleet, worker: &str, refused: bool) {
    eventually_or_show(&format!("the store refuses {worker}: {refused}"), PATIENCE, |seen| {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        *seen = list.to_string();
        let worker = list["workers"].as_array()?.iter().find(|w| w["name"] == worker)?;
        let slots = worker["slots"].as_array()?;
        let told = |slot: &Value| {
            let why = slot["ineligible"].as_str().unwrap_or_default();
            why.contains("cannot be written here") && why.contains("AccessDenied")
        };
        (!slots.is_empty() && slots.iter().all(|slot| told(slot) == refused)).then_some(())
    });
}

#[test]
fn workers_that_may_not_write_to_the_store_pause_no_run_that_another_can_finish() -> Result<()> {
    let s3 = S3::start()?;
    let engine =
        "kind = \"mock\"\nslots = 2\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 40\n";
    // One worker may not write from the start, the other from the middle of the run on.
    s3.forbid_writes("w1", true);
    let mut fleet = fleet(&s3, &["w1", "w2", "w3"], engine)?;
    until_refused(&fleet, "w1", true);
    let mut batch = Batch::submit(&fleet, "shared", 6000, "")?;
    batch.until(&fleet, "both others do rows", |c| {
        c.done >= 300 && ["w2", "w3"].iter().all(|w| fleet.rows_done_by(w) > Some(0))
    });
    s3.forbid_writes("w2", true);
    until_refused(&fleet, "w2", true);
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (6000, 0), "{counts:?}");
    ensure!(fleet.rows_done_by("w1") == Some(0), "it could bring no result");
    let told = ["--since", "0", "--from-oldest", "--kind", "run_paused"];
    let paused = fleet.events(&told)?;
    ensure!(paused.is_empty(), "{paused:?}");

    // Both work again as soon as they may write.
    for worker in ["w1", "w2"] {
        s3.forbid_writes(worker, false);
        until_refused(&fleet, worker, false);
    }
    fleet.worker_process("w3").kill();
    Batch::submit(&fleet, "after", 300, "")?.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// Files with finished rows in the spool of a worker's first slot.
fn spool_files(fleet: &Fleet, worker: &str) -> usize {
    let spool = fleet.path(&format!("worker-{worker}")).join("spool/slot-0");
    std::fs::read_dir(spool).map_or(0, Iterator::count)
}

#[test]
fn results_that_a_worker_may_no_longer_write_do_not_hold_up_the_run_for_others() -> Result<()> {
    let s3 = S3::start()?;
    let mut fleet = fleet(&s3, &[], "")?;
    let mock =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 40\n";
    let side = fleet.path("w1.side");
    // The worker publishes nothing until its run has no more rows for it.
    let head = "[part]\nrows = 4096\nlinger_ms = 60000\n[credit]\nrows = 256\n[timing]\n\
                store_refused_ms = 4000\n";
    let engine = format!("{mock}side_file = {side:?}\n");
    fleet.start_worker("w1", &WorkerOptions { engine, head: head.to_owned() })?;
    let mut batch = Batch::submit(&fleet, "held", 1200, "")?;
    eventually_or_show("w1 has finished rows", PATIENCE, |seen| {
        let started = Executions::read(std::slice::from_ref(&side)).ok()?.started;
        *seen = format!("{started} rows were started");
        (started >= 200).then_some(())
    });
    s3.forbid_writes("w1", true);
    let reason = eventually_or_show("the run is paused", PATIENCE, |seen| {
        let run = described(&fleet, "held")?;
        *seen = run.to_string();
        run["state"].as_str()?.to_lowercase().contains("paused").then(|| run["reason"].to_string())
    });
    ensure!(reason.contains("no other fits the run"), "{reason}");
    let published = fleet.rows_done_by("w1").context("w1")?;
    ensure!(published < 1200, "w1 has published everything");

    // Another worker finishes the run although w1 still may not write.
    start_worker(&mut fleet, "w2", mock)?;
    let resumed = fleet.ctl(&["run", "resume", "held"])?;
    ensure!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (1200, 0), "{counts:?}");
    eventually_or_show("w1 keeps no results", PATIENCE, |seen| {
        let files = spool_files(&fleet, "w1");
        *seen = format!("{files} files");
        (files == 0).then_some(())
    });

    // What w1 had finished is not accepted later.
    s3.forbid_writes("w1", false);
    until_refused(&fleet, "w1", false);
    ensure!(fleet.rows_done_by("w1") == Some(published), "w1 brought a result late");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_client_with_expired_credentials_gets_an_error_and_submits_nothing() -> Result<()> {
    let s3 = S3::start()?;
    let mut fleet = fleet(&s3, &[], "")?;
    s3.expire("user", true);
    let mut batch = Batch::submit(&fleet, "denied", 10, "")?;
    let status = batch.process().wait(PATIENCE)?;
    ensure!(status.code().is_some_and(|code| code != 0), "{status}");
    let told = batch.process().log_tail();
    ensure!(told.contains("ExpiredToken") && told.contains("nothing was submitted"), "{told}");
    ensure!(described(&fleet, "denied").is_none(), "the run exists");
    // With new credentials the same command continues.
    s3.expire("user", false);
    start_worker(&mut fleet, "w1", "kind = \"mock\"\n")?;
    let mut batch = Batch::submit(&fleet, "denied", 10, "")?;
    batch.finish(&fleet)?;
    fleet.passed()
}

#[test]
fn a_run_that_names_the_clusters_own_store_is_one_without_a_store() -> Result<()> {
    let s3 = S3::start()?;
    // The worker lists no store.
    let fleet = fleet(&s3, &["w1"], "kind = \"mock\"\nconcurrency = 8\n")?;
    let url = fleet.store_url();
    for (name, url) in [("exact", url.clone()), ("slash", format!("{url}/"))] {
        Batch::submit(&fleet, name, 100, &format!("[store]\nurl = {url:?}\n"))?.finish(&fleet)?;
        // The client compares its spec with the recorded one, and finds the run.
        let config = fleet.path(&format!("{name}.batch.toml")).to_string_lossy().into_owned();
        let args = ["infer", "batch", "--config", &config, "--name", name];
        let again = output(fleet.rollout(&args), PATIENCE)?;
        let stderr = String::from_utf8_lossy(&again.stderr);
        ensure!(again.status.success(), "{stderr}");
        ensure!(stderr.contains(&format!("run {name} already exists")), "{stderr}");
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn workers_run_a_run_whose_store_is_below_one_that_they_list() -> Result<()> {
    let s3 = S3::start()?;
    let mut fleet = Fleet::start(FleetOptions {
        s3: Some(s3.clone()),
        member_lines: vec![("store", "urls = [\"s3://fleet/teams\"]")],
        ..FleetOptions::default()
    })?;
    let engine = "kind = \"mock\"\nconcurrency = 8\n".to_owned();
    let head = "[part]\nlinger_ms = 100\n[store]\nurls = [\"s3://fleet/teams/a\"]\n".to_owned();
    fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    let store = "[store]\nurl = \"s3://fleet/teams/a/b\"\n";
    Batch::submit(&fleet, "below", 100, store)?.finish(&fleet)?;
    ensure!(!s3.keys("teams/a/b/runs/").is_empty(), "its objects are elsewhere");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_without_valid_credentials_gets_no_work_and_says_why() -> Result<()> {
    let s3 = S3::start()?;
    s3.expire("w1", true);
    let fleet = fleet(&s3, &["w1"], "kind = \"mock\"\n")?;
    eventually_or_show("the worker says why", PATIENCE, |seen| {
        let log = std::fs::read_to_string(fleet.path("worker-w1.log")).ok()?;
        *seen = log.lines().last().unwrap_or_default().to_owned();
        log.contains("ExpiredToken").then_some(())
    });
    s3.expire("w1", false);
    let mut batch = Batch::submit(&fleet, "later", 100, "")?;
    batch.finish(&fleet)?;
    fleet.passed()
}

#[test]
fn a_worker_of_eight_slots_loses_each_engine_in_turn_and_no_row() -> Result<()> {
    let s3 = S3::start()?;
    let engine = "kind = \"mock\"\nprocess = true\nslots = 8\nconcurrency = 4\nlatency_ms_min = 20\nlatency_ms_max = 60\n";
    let mut fleet = fleet(&s3, &["w1"], engine)?;
    let mut batch = Batch::submit(&fleet, "eight", 6000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 100);
    let agent = fleet.worker_process("w1").pid();
    let all = engines(agent);
    ensure!(all.len() == 8, "one process a slot: {all:?}");
    for (killed, engine) in all.iter().enumerate() {
        // SAFETY: kill(2) reads no memory; the agent has not waited for its child, which runs.
        ensure!(unsafe { libc::kill(*engine as i32, libc::SIGKILL) } == 0, "slot {killed}");
        eventually_or_show("the slot has another engine", PATIENCE, |seen| {
            let now = engines(agent);
            *seen = format!("{now:?}");
            (now.len() == 8 && !now.contains(engine)).then_some(())
        });
        let before = batch.counts(&fleet).context("counts")?.done;
        batch.until(&fleet, "work goes on", |c| c.done > before || c.done == c.rows);
    }
    ensure!(
        fleet.worker_process("w1").pid() == agent && fleet.worker_process("w1").runs(),
        "the agent died"
    );
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (6000, 0), "{counts:?}");
    fleet.verify()?;
    fleet.passed()
}

/// Runs a batch whose store, input and credentials are all from one cloud.
fn a_run_in(dialect: Dialect) -> Result<()> {
    let cloud = S3::start_as(dialect)?;
    let fleet = fleet(&cloud, &["w1", "w2"], "kind = \"mock\"\nconcurrency = 16\n")?;
    for part in 0..3 {
        let line = |row: u32| format!("{{\"prompt\":\"say {part} {row}\"}}\n");
        let text: String = (0..200).map(line).collect();
        cloud.put(&format!("work/in/{part}.jsonl"), text.as_bytes());
    }
    cloud.inject(StoreFaults {
        busy_every: 5,
        lost_every: 2,
        slow_ms: 20,
        ..StoreFaults::default()
    });
    let out = fleet.path("out");
    let config = fleet.path("cloud.batch.toml");
    let glob = format!("{}/in/*.jsonl", cloud.url());
    let text = format!(
        "[model]\nuri = \"mock/tiny\"\n[input]\nglob = {glob:?}\n[output]\ndir = {out:?}\n"
    );
    std::fs::write(&config, text)?;
    let config = config.to_string_lossy().into_owned();
    let ended = output(
        fleet.rollout(&["infer", "batch", "--config", &config, "--name", "there"]),
        PATIENCE,
    )?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let rows = std::fs::read_to_string(out.join("completions.jsonl"))?.lines().count();
    ensure!(rows == 600, "{rows} rows came back");
    let (busy, lost) = cloud.misbehaved();
    ensure!(busy > 0 && lost > 0, "the store was well: {busy} times busy, {lost} answers lost");
    cloud.inject(StoreFaults::default());
    let deleted = fleet.ctl(&["run", "delete", "there", "--yes", "--wait"])?;
    ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    ensure!(cloud.keys("work/runs/").is_empty(), "{:?}", cloud.keys("work/runs/"));
    fleet.passed()
}

#[test]
fn google_cloud_storage_holds_the_input_and_the_work_of_a_run() -> Result<()> {
    a_run_in(Dialect::Gcs)
}

#[test]
fn azure_blob_storage_holds_the_input_and_the_work_of_a_run() -> Result<()> {
    a_run_in(Dialect::Azure)
}
