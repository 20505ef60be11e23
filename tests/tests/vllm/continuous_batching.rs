//! The engine is kept full: rows come in while others run, go out as they end, and cost nothing once they are
//! aborted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually, free_addr, is_alive, metric_value};
use serde_json::{Value, json};

use super::setup::{Engine, LOADING, engine_of, tiny_model};

const ROWS: u64 = 400;
const SEATS: u32 = 8;

/// Lengths from 8 to 512; the first rows are the longest.
fn lengths() -> Vec<u32> {
    let mut lengths: Vec<u32> = (0..ROWS).map(|row| 8 << (row * 7919 % 6)).collect();
    lengths[0] = 512;
    lengths[1] = 384;
    lengths
}

/// Where in the log each row was completed.
fn completed(fleet: &Fleet) -> Result<BTreeMap<u64, u64>> {
    let all = ["events", "-o", "jsonl", "--since", "0", "--from-oldest", "--kind", "completed"];
    let out = fleet.ctl(&all)?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut rows = BTreeMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let event = &serde_json::from_str::<Value>(line)?["data"];
        let index: u64 = event["index"].as_str().context("index")?.parse()?;
        for range in event["rows"].as_array().context("rows")? {
            let start: u64 = range["start"].as_str().context("start")?.parse()?;
            let len = range["len"].as_u64().context("len")?;
            rows.extend((start..start + len).map(|row| (row, index)));
        }
    }
    Ok(rows)
}

#[test]
fn rows_of_mixed_lengths_keep_the_engine_full_and_none_waits_for_a_batch() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let address = free_addr()?;
    let head = format!("metrics_listen = {address:?}\n[part]\nlinger_ms = 200\n");
    let engine = Engine { head, ..Engine::new(&model, SEATS) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let input = fleet.path("mixed.jsonl");
    let text = lengths().iter().enumerate().fold(String::new(), |mut text, (row, length)| {
        let _ = writeln!(
            text,
            "{{\"prompt\":\"row {row}\",\"sampling_params\":{{\"max_tokens\":{length}}}}}"
        );
        text
    });
    std::fs::write(&input, text)?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n";
    let mut batch = Batch::submit_file(&fleet, "mixed", input, ROWS, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());

    let at = completed(&fleet)?;
    let of = |row: u64| at.get(&row).copied().with_context(|| format!("row {row} is not reported"));
    // These had to wait for a free seat: they started after the long row, and ended before it.
    let later = u64::from(SEATS)..u64::from(SEATS) + 12;
    let short: Vec<u64> = later.filter(|row| lengths()[*row as usize] <= 32).collect();
    ensure!(short.len() >= 4, "too few short rows: {short:?}");
    for row in short {
        ensure!(of(row)? < of(0)?, "row {row} waited for a longer one that began before it");
    }
    let count = |metric: &str| metric_value(&address, metric).context("no metrics");
    let admitted = count("rollout_worker_engine_admitted_total ")?;
    let beside = count("rollout_worker_engine_admitted_beside_total ")?;
    ensure!(
        admitted == ROWS && beside * 10 >= admitted * 9,
        "{beside} of {admitted} beside others"
    );
    let steps = count("rollout_worker_engine_steps_total{which=\"all\"}")?;
    let starved = count("rollout_worker_engine_steps_total{which=\"starved\"}")?;
    println!(
        "{starved} of {steps} steps were starved; {beside} of {admitted} rows came beside others"
    );
    ensure!(steps > 0 && starved * 50 <= steps, "{starved} of {steps} steps were starved");

    let row =
        |_: u64| "{\"prompt\":\"on and on\",\"sampling_params\":{\"max_tokens\":600}}".to_owned();
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n";
    aborted_rows_cost_nothing(&fleet, &address, "endless", (row, lines))?;
    // Through vLLM's handlers, some of which turn a row into several requests.
    let call = |number: u64| {
        let more =
            json!({"max_tokens": 600, "temperature": 0, "ignore_eos": true, "model": "tiny"});
        let (url, mut body) = if number.is_multiple_of(2) {
            let messages = json!([{"role": "user", "content": "on and on"}]);
            ("/v1/chat/completions", json!({ "messages": messages }))
        } else {
            ("/v1/completions", json!({"prompt": ["on and on", "and on"]}))
        };
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        json!({"custom_id": format!("c{number}"), "method": "POST", "url": url, "body": body})
            .to_string()
    };
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\n";
    aborted_rows_cost_nothing(&fleet, &address, "calls", (call, lines))?;
    drained_rows_go_back(&mut fleet, &address)?;
    fleet.passed()
}

/// Endless rows, which are cancelled while they run.
fn aborted_rows_cost_nothing(
    fleet: &Fleet,
    address: &str,
    name: &str,
    (row, lines): (impl Fn(u64) -> String, &str),
) -> Result<()> {
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, (0..2000).map(|number| row(number) + "\n").collect::<String>())?;
    let tokens = || metric_value(address, "rollout_worker_engine_tokens_total ");
    let aborted = || metric_value(address, "rollout_worker_engine_aborted_total ");
    let before = tokens().context("no metrics")?;
    let aborted_before = aborted().context("no count of aborted rows")?;
    let _batch = Batch::submit_file(fleet, name, input, 2000, lines)?;
    eventually("rows are under way", LOADING, || tokens().filter(|t| *t > before + 100));
    ensure!(aborted() == Some(aborted_before), "rows were aborted before");
    let cancelled = fleet.ctl(&["run", "cancel", name])?;
    ensure!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    let all = aborted_before + u64::from(SEATS);
    eventually("what ran is aborted", LOADING, || aborted().filter(|n| *n >= all));
    let busy = || metric_value(address, "rollout_worker_rows_busy ");
    eventually("nothing runs", LOADING, || busy().filter(|n| *n == 0));
    let late = metric_value(address, "rollout_worker_engine_tokens_after_abort_total ");
    ensure!(late == Some(0), "{late:?} tokens after an abort");
    let (one, other) = (tokens(), {
        // Rows that had not stopped would continue; the worker reports twenty times a second.
        let later = fleet.ctl(&["status"])?;
        ensure!(later.status.success(), "no status");
        tokens()
    });
    ensure!(one == other, "tokens come after the abort: {one:?}, {other:?}");
    Ok(())
}

/// Rows that run at their worker's deadline become pending, and no vLLM process is left.
fn drained_rows_go_back(fleet: &mut Fleet, address: &str) -> Result<()> {
    let input = fleet.path("drained.jsonl");
    let row = "{\"prompt\":\"on and on\",\"sampling_params\":{\"max_tokens\":600}}\n";
    std::fs::write(&input, row.repeat(2000))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n";
    let batch = Batch::submit_file(fleet, "drained", input, 2000, lines)?;
    let busy = || metric_value(address, "rollout_worker_rows_busy ");
    eventually("rows run", LOADING, || busy().filter(|n| *n >= u64::from(SEATS)));
    let engine = engine_of(fleet, "w1").context("w1 has no engine")?;
    let said = fleet.ctl_json(&["worker", "drain", "w1", "--deadline", "1s", "--wait"])?;
    ensure!(said["gone"] == true, "{said}");
    ensure!(fleet.worker_process("w1").wait(LOADING)?.success(), "{}", fleet.logs());
    eventually("the engine is gone", LOADING, || (!is_alive(engine as u32)).then_some(()));
    let left = batch.until(fleet, "nobody holds a row", |c| c.running == 0);
    ensure!(left.pending > 0 && left.pending + left.done == 2000, "{left:?}");
    Ok(())
}
