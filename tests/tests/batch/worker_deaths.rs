//! Workers whose whole process dies without a word, and processes that start with a copy of a live worker's
//! directory.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 8;
/// The row that kills its worker: whenever it runs, the test kills the process.
const GUILTY: u64 = 5;

fn submit(fleet: &Fleet, name: &str) -> Result<Batch> {
    let mut text = String::new();
    for row in 0..ROWS {
        let ask = if row == GUILTY { "MOCK_HANG" } else { "" };
        text.push_str(&format!("{{\"prompt\":\"say {row} {ask}\"}}\n"));
    }
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, text)?;
    Batch::submit_file(fleet, name, input, ROWS, "")
}

fn item(fleet: &Fleet, run: &str, row: u64) -> Option<Value> {
    fleet.ctl_json(&["item", "describe", run, &row.to_string()]).ok()
}

/// A slow worker, so that several rows run at a time.
fn options(address: &str) -> WorkerOptions {
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 1500\n\
                  latency_ms_max = 1500\n";
    WorkerOptions { engine: engine.into(), head: format!("address = {address:?}\n") }
}

#[test]
fn a_row_that_takes_its_whole_worker_down_each_time_is_poison_in_the_end_and_no_other_is()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &options("w1.example"))?;
    let mut batch = submit(&fleet, "deadly")?;
    let (mut ends, mut ended, begun) = (0, None, Instant::now());
    // The attempt that runs the guilty row in the present process. The attempt of an ended process remains until the
    // next one has registered; then other rows may run.
    let runs = |fleet: &Fleet, ended: &Option<Value>| {
        let item = item(fleet, "deadly", GUILTY)?;
        let attempt = item["attempt"].clone();
        (item["state"] == "running" && ended.as_ref() != Some(&attempt)).then_some(attempt)
    };
    while batch.process().runs() {
        ensure!(begun.elapsed() < 4 * PATIENCE, "after {ends} ends: {}", fleet.logs());
        let attempt = runs(&fleet, &ended);
        // Wait until the worker has reported what it started.
        std::thread::sleep(Duration::from_millis(if attempt.is_some() { 1000 } else { 100 }));
        if attempt.is_none() || runs(&fleet, &ended) != attempt {
            continue;
        }
        fleet.worker_process("w1").kill();
        (ends, ended) = (ends + 1, attempt);
        fleet.start_worker("w1", &options("w1.example"))?;
    }
    // Three crashes make all running rows suspects, log2 of their number more find the guilty one, and two are its
    // strikes. A crash before the leader has heard what was started does not count, which is likely on a busy
    // machine.
    ensure!((5..=12).contains(&ends), "{ends} workers ended");
    let guilty = item(&fleet, "deadly", GUILTY).context("described")?;
    ensure!(guilty["state"] == "failed" && guilty["strikes"] == 2, "{guilty}");
    let last = guilty["history"].as_array().and_then(|h| h.last()).context("a history")?;
    ensure!(last["code"] == "WORKER_LOST" && last["ruling"] == "poison", "{guilty}");
    let mut told = 0;
    for row in (0..ROWS).filter(|row| *row != GUILTY) {
        let item = item(&fleet, "deadly", row).context("described")?;
        ensure!(item["state"] == "done" && item["strikes"] == 0, "{item}");
        let history = item["history"].as_array().map_or(0, Vec::len);
        ensure!(history == 0 || item["worker"] == "w1", "who made the result: {item}");
        told += history;
    }
    ensure!(told > 0, "what was beside it does not say so any more");
    fleet.verify()?;
    fleet.passed()
}

/// The most hosts: three crashes make the row a suspect, three halvings find it, two are its strikes, and each may
/// fail once.
const HOSTS_MAX: usize = 14;

#[test]
fn a_row_that_takes_down_hosts_that_never_come_back_is_poison_in_the_end() -> Result<()> {
    // A silent worker's session must end soon, or the test would take ten minutes. No worker is silent and back again.
    let member_lines = vec![
        ("worker", "self_fence_ms = 2000"),
        ("worker", "failure_ms = 3000"),
        ("worker", "started_grace_ms = 1000"),
    ];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let mut batch = submit(&fleet, "deadly")?;
    let mut hosts = 0;
    while batch.process().runs() {
        ensure!(hosts < HOSTS_MAX, "{hosts} hosts ended: {}", fleet.logs());
        hosts += 1;
        let name = format!("h{hosts}");
        let side = fleet.path(&format!("{name}.side"));
        let mut host = options(&format!("{name}.example"));
        host.engine.push_str(&format!("side_file = {side:?}\n"));
        fleet.start_worker(&name, &host)?;
        // Kill it when the row starts, long before the next heartbeat reports it.
        let begun = Instant::now();
        let started = || {
            let text = std::fs::read_to_string(&side).unwrap_or_default();
            let guilty = |line: &str| {
                line.split(' ').nth(1) == Some(&GUILTY.to_string()) && line.ends_with("started")
            };
            text.lines().any(guilty)
        };
        while batch.process().runs() && !started() {
            ensure!(begun.elapsed() < 2 * PATIENCE, "{name} got no work: {}", fleet.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
        if started() {
            fleet.worker_process(&name).kill();
        }
    }
    let guilty = item(&fleet, "deadly", GUILTY).context("described")?;
    ensure!(guilty["state"] == "failed" && guilty["strikes"] == 2, "{guilty}");
    for row in (0..ROWS).filter(|row| *row != GUILTY) {
        let item = item(&fleet, "deadly", row).context("described")?;
        ensure!(item["state"] == "done" && item["strikes"] == 0, "{item}");
    }
    fleet.verify()?;
    fleet.passed()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

#[test]
fn a_process_with_a_copy_of_a_live_workers_directory_is_refused_and_costs_the_worker_nothing()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &options("first.example"))?;
    // Twenty seconds: several times as long as the copy lives.
    let mut batch = Batch::submit(&fleet, "copied", 112, "")?;
    batch.until(&fleet, "rows run", |c| c.running > 0 && c.done > 0);
    copy(&fleet.path("worker-w1"), &fleet.path("worker-copy"))?;
    let session = |fleet: &Fleet| {
        let state = std::fs::read_to_string(fleet.path("worker-w1/worker.json")).ok()?;
        serde_json::from_str::<Value>(&state).ok()?["session"].as_str().map(str::to_owned)
    };
    let before = session(&fleet).context("a session")?;
    let lines = "address = \"second.example\"\n[timing]\nregister_refused_ms = 2000\n";
    let mut second = fleet.start_impostor("copy", "w1", "w1", lines)?;
    let status = second.wait(PATIENCE)?;
    ensure!(!status.success(), "{status}");
    let log = std::fs::read_to_string(fleet.path("worker-copy.log"))?;
    for said in ["RO-3005", "first.example", "second.example"] {
        ensure!(log.contains(said), "{said} is not in: {log}");
    }
    batch.finish(&fleet)?;
    ensure!(session(&fleet).as_ref() == Some(&before), "the first worker had to register again");
    let log = std::fs::read_to_string(&fleet.worker_process("w1").log)?;
    ensure!(!log.contains("RO-3005"), "the first was refused: {log}");

    // The next process on the same disk continues the session at once.
    fleet.worker_process("w1").kill();
    fleet.start_worker("w1", &options("first.example"))?;
    eventually("the worker is ready", PATIENCE, || {
        let list = fleet.ctl_json(&["worker", "list"]).ok()?.to_string();
        list.contains("\"ready\"").then_some(())
    });
    ensure!(session(&fleet) == Some(before), "the session was not resumed");
    fleet.verify()?;
    fleet.passed()
}
