//! A broken slot among healthy ones fails no row for good, and the leader stops giving it rows.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually_or_show};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A model server that lists these models and answers every row with this status. Returns its address. It serves until the
/// test ends.
fn failing_server(models: &'static str, status: &'static str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(answer(stream, models, status)));
        }
    });
    Ok(url)
}

fn answer(stream: TcpStream, models: &str, refusal: &str) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("content-length:") {
            length = bytes.trim().parse()?;
        }
    }
    reader.by_ref().take(length).read_to_end(&mut Vec::new())?;
    let (status, body) = match first.starts_with("GET ") {
        true => ("200 OK", format!(r#"{{"object":"list","data":[{models}]}}"#)),
        false => (refusal, r#"{"error":{"message":"broken"}}"#.to_owned()),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
    write!(reader.get_mut(), "{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}")?;
    Ok(())
}

/// Three members, a worker with seven healthy slots, and a worker with a slot at this server.
fn seven_and(url: &str) -> Result<Fleet> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let head = || "[timing]\nprobe_ms = 200\n[part]\nlinger_ms = 200\n".to_owned();
    let engine = "kind = \"mock\"\nslots = 7\nconcurrency = 4\nlatency_ms_min = 200\n\
                  latency_ms_max = 300\n"
        .to_owned();
    fleet.start_worker("well", &WorkerOptions { engine, head: head() })?;
    let engine = format!(
        "kind = \"openai\"\nmodels = [\"mock/tiny\"]\nbase_url = {url:?}\nslots = 1\nconcurrency = 1\n"
    );
    fleet.start_worker("broken", &WorkerOptions { engine, head: head() })?;
    Ok(fleet)
}

/// The only slot of the broken worker, once this field contains the words.
fn until_slot_has(fleet: &Fleet, key: &str, words: &str) -> Value {
    eventually_or_show(&format!("the broken slot has {key}"), PATIENCE, |seen| {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        *seen = list.to_string();
        let workers = list["workers"].as_array()?;
        let broken = workers.iter().find(|worker| worker["name"] == "broken")?;
        let slot = broken["slots"][0].clone();
        slot[key].as_str().is_some_and(|has| has.contains(words)).then_some(slot)
    })
}

/// Starts a worker that soon finishes the rows that are left. There are so many that the healthy slots still run them
/// when the broken slot is cordoned, even on a busy machine.
fn start_a_fast_worker(fleet: &mut Fleet) -> Result<()> {
    let engine = "kind = \"mock\"\nslots = 4\nconcurrency = 32\n".to_owned();
    let head = "[part]\nlinger_ms = 200\n".to_owned();
    fleet.start_worker("fast", &WorkerOptions { engine, head })
}

#[test]
fn a_slot_whose_rows_others_complete_is_cordoned_and_fails_no_row() -> Result<()> {
    let mut fleet = seven_and(&failing_server("", "500 Internal Server Error")?)?;
    let mut batch = Batch::submit(&fleet, "beside", 3000, "")?;
    until_slot_has(&fleet, "cordonReason", "rows failed there without a finished one between");
    start_a_fast_worker(&mut fleet)?;
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (3000, 0), "{counts:?}");
    fleet.passed()
}

/// An engine program that takes this many seconds to load its model.
fn slow_to_load(fleet: &Fleet, seconds: u32) -> Result<PathBuf> {
    let (path, worker) = (fleet.path("engine"), rollout_tests::program("rollout-worker")?);
    let engine = worker.get_program();
    std::fs::write(&path, format!("#!/bin/sh\nsleep {seconds}\nexec {engine:?} \"$@\"\n"))?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

#[test]
fn a_slot_among_eight_whose_engine_dies_of_every_row_is_cordoned_and_fails_no_row() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let program = slow_to_load(&fleet, 3)?;
    let rows = "slots = 1\nconcurrency = 4\nlatency_ms_min = 200\nlatency_ms_max = 300\n";
    let options = |lines: &str| WorkerOptions {
        engine: format!("kind = \"mock\"\n{rows}{lines}"),
        head: "[part]\nlinger_ms = 200\n".to_owned(),
    };
    for number in 1..8 {
        fleet.start_worker(&format!("well-{number}"), &options(""))?;
    }
    let lines = format!("process = true\nprogram = {program:?}\nexit_at_row = 3\n");
    fleet.start_worker("broken", &options(&lines))?;
    let mut batch = Batch::submit(&fleet, "beside", 4000, "")?;
    until_slot_has(&fleet, "cordonReason", "its engine died");
    start_a_fast_worker(&mut fleet)?;
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (4000, 0), "{counts:?}");
    let list = fleet.ctl_json(&["worker", "list"])?;
    for worker in list["workers"].as_array().context("workers")? {
        let cordoned = worker["slots"][0]["cordoned"] == true;
        ensure!(cordoned == (worker["name"] == "broken"), "{worker}");
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_slot_whose_server_has_another_model_fails_no_row_and_says_why() -> Result<()> {
    let fleet = seven_and(&failing_server(r#"{"id":"other/model"}"#, "404 Not Found")?)?;
    // Eight seconds: from the first on, the slot would have been given rows.
    let mut batch = Batch::submit(&fleet, "beside", 900, "")?;
    until_slot_has(&fleet, "ineligible", "it serves other/model, not mock/tiny");
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (900, 0), "{counts:?}");
    let done = fleet.rows_done_by("broken").unwrap_or_default();
    ensure!(done == 0, "{done} rows of the broken slot");
    fleet.passed()
}

/// The only worker's server has another model than the run. With these configuration lines the worker reports it in
/// these words, and no row fails until another worker comes.
fn waits_for_the_model(lines: &str, words: &str) -> Result<()> {
    let url = failing_server(r#"{"id":"other/model"}"#, "404 Not Found")?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine = format!("kind = \"openai\"\nbase_url = {url:?}\nconcurrency = 8\n{lines}");
    let head = "[timing]\nprobe_ms = 200\n".to_owned();
    fleet.start_worker("broken", &WorkerOptions { engine, head })?;
    let mut batch = Batch::submit(&fleet, "waits", 200, "")?;
    until_slot_has(&fleet, "ineligible", words);
    eventually_or_show("the status names the cause", PATIENCE, |seen| {
        let status = fleet.ctl_json(&["status"]).ok()?;
        *seen = status.to_string();
        let why = status["stuckRuns"].as_array()?.first()?["why"].as_str()?;
        why.contains(words).then_some(())
    });
    // A slot that offers any model tries rows again from time to time.
    let counts = batch.until(&fleet, "all rows wait", |counts| counts.pending == 200);
    ensure!((counts.done, counts.failed) == (0, 0), "{counts:?}");
    fleet.start_worker("well", &WorkerOptions::default())?;
    batch.finish(&fleet)?;
    fleet.passed()
}

#[test]
fn rows_wait_if_the_only_server_has_another_model_and_the_status_says_so() -> Result<()> {
    let words = "it serves other/model, not mock/tiny";
    waits_for_the_model("models = [\"mock/tiny\"]\n", words)?;
    waits_for_the_model("served_model = \"mock/tiny\"\n", words)
}

#[test]
fn rows_wait_where_the_only_server_refuses_the_model_of_a_slot_that_offers_any() -> Result<()> {
    waits_for_the_model("", "the engine answers 404 Not Found")
}
