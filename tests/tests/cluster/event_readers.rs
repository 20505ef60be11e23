//! A reader that dies continues at its position without gap or repeat, or learns that the position is gone. Every
//! kind of event that an operator acts on exists, with its actor and object.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Fleet, FleetOptions, WorkerOptions, check_order, eventually, find_event, logged_events,
    place,
};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

fn fleet(lines: &[(&'static str, &'static str)]) -> Result<Fleet> {
    Fleet::start(FleetOptions { member_lines: lines.to_vec(), ..FleetOptions::default() })
}

/// A worker with one slot of `concurrency` rows, each taking `latency_ms`; it holds many more than it runs.
fn worker(concurrency: u32, latency_ms: u64) -> WorkerOptions {
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = {concurrency}\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\n"
    );
    WorkerOptions { engine, head: "[credit]\nrows = 1024\n[part]\nlinger_ms = 50\n".into() }
}

/// The position after the last event read.
fn behind(events: &[Value]) -> Result<String> {
    let (index, position) = place(events.last().context("events were read")?);
    Ok(format!("{index}:{}", position + 1))
}

#[test]
fn a_reader_that_is_killed_goes_on_behind_the_last_event_that_it_read() -> Result<()> {
    let mut fleet = fleet(&[])?;
    for name in ["w2", "w3"] {
        fleet.start_worker(name, &worker(8, 60))?;
    }
    let mut batch = Batch::submit(&fleet, "read", 4000, "")?;
    let mut heard: Vec<Value> = Vec::new();
    // Each reader is killed while events come; the next one knows only what the previous one printed.
    for sitting in 0..4 {
        let since = if sitting == 0 { "0".to_owned() } else { behind(&heard)? };
        let name = format!("sitting{sitting}.out");
        let mut reader = fleet.follow_events(&name, &["--since", &since, "--for", "worker/w3"])?;
        let log = fleet.path(&name);
        eventually("it reads", PATIENCE, || (logged_events(&log).len() >= 3).then_some(()));
        reader.kill();
        heard.extend(logged_events(&log));
        if sitting == 1 {
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            fleet.leader_other_than(&leader);
            fleet.start_member(&leader)?;
        }
    }
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!(counts.done < 4000, "the readers were killed while the run went on: {counts:?}");
    batch.finish(&fleet)?;
    heard.extend(fleet.events(&["--since", &behind(&heard)?, "--for", "worker/w3"])?);
    check_order(&heard)?;
    let whole = fleet.events(&["--since", "0", "--for", "worker/w3"])?;
    ensure!(heard == whole, "{} events in five sittings, {} in one", heard.len(), whole.len());
    fleet.passed()
}

#[test]
fn a_reader_whose_position_is_gone_learns_where_to_continue() -> Result<()> {
    let mut fleet = fleet(&[("events", "count_max = 60")])?;
    fleet.start_worker("w3", &worker(64, 2))?;
    let mut reader = fleet.follow_events("first.out", &["--since", "0", "--for", "worker/w3"])?;
    let log = fleet.path("first.out");
    eventually("it reads", PATIENCE, || (!logged_events(&log).is_empty()).then_some(()));
    reader.kill();
    let since = behind(&logged_events(&log))?;
    // Produce so many events that no member still holds that position: each reports its oldest.
    let begun = place(logged_events(&log).last().context("an event")?).0;
    for run in 0.. {
        ensure!(run < 50, "sixty events hold all of that");
        Batch::submit(&fleet, &format!("much{run}"), 200, "")?.finish(&fleet)?;
        let left = fleet.events(&["--since", "0", "--from-oldest"])?;
        if left.first().is_some_and(|event| place(event).0 > begun + 1) {
            break;
        }
    }
    let refused = eventually("every member has let go of it", PATIENCE, || {
        let args = ["events", "--follow", "--since", &since, "--for", "worker/w3"];
        let out = fleet.ctl(&[&["--timeout", "5s"], &args[..]].concat()).ok()?;
        (out.status.code() == Some(9)).then_some(out)
    });
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(stderr.contains(&format!("Compacted: events from {since} on")), "{stderr}");
    let oldest = stderr.split("the oldest index kept is ").nth(1).context("it says where")?;
    let oldest = oldest.split('.').next().context("a number")?;
    ensure!(oldest.parse::<u64>()? > begun, "{stderr}");
    ensure!(refused.stdout.is_empty(), "nothing is printed as if nothing were missing");
    // The suggested command continues from there.
    let _reader = fleet.follow_events(
        "second.out",
        &["--since", &format!("{oldest}:0"), "--for", "worker/w3", "--from-oldest"],
    )?;
    let log = fleet.path("second.out");
    let mut last = Batch::submit(&fleet, "last", 20, "")?;
    last.finish(&fleet)?;
    eventually("it hears of what comes", PATIENCE, || {
        logged_events(&log).iter().find(|e| e["run"] == "last").map(|_| ())
    });
    fleet.passed()
}

/// Submits a run in which one row fails for good.
fn submit(fleet: &Fleet, name: &str, rows: u64) -> Result<Batch> {
    let mut text = String::new();
    for row in 0..rows {
        let ask = if row == 3 { " MOCK_FAIL_INVALID" } else { "" };
        writeln!(text, r#"{{"id":"{name}-{row}","prompt":"say {row}{ask}"}}"#)?;
    }
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, text)?;
    Batch::submit_file(fleet, name, input, rows, "")
}

#[test]
fn every_event_that_an_operator_acts_on_names_actor_and_object() -> Result<()> {
    let mut fleet = fleet(&[("worker", "started_grace_ms = 1000")])?;
    let reader = fleet.follow_events("all.out", &["--since", "0"])?;
    fleet.start_worker("slow", &worker(1, 200))?;
    let mut batch = submit(&fleet, "kinds", 120)?;
    batch.until(&fleet, "one worker holds every row", |c| c.running + c.done == 120);
    fleet.start_worker("fast", &worker(8, 5))?;
    let status = batch.process().wait(PATIENCE)?;
    ensure!(status.code() == Some(10), "one row failed: {status}{}", fleet.logs());
    // One worker drains, one dies without a word.
    let gone = fleet.ctl_json(&["worker", "drain", "fast", "--deadline", "30s", "--wait"])?;
    ensure!(gone["gone"] == true, "{gone}");
    fleet.worker_process("slow").kill();
    let log = fleet.path("all.out");
    eventually("the silent worker is lost", PATIENCE, || {
        logged_events(&log).iter().find(|e| e["kind"] == "worker_lost").map(|_| ())
    });
    let leader = fleet.leader();
    let before = find_event(&logged_events(&log), "epoch_opened", |_| true)?["coordEpoch"].clone();
    fleet.member_process(&leader).kill();
    let opened = |event: &Value| event["kind"] == "epoch_opened" && event["coordEpoch"] != before;
    eventually("the next epoch is open", PATIENCE, || {
        logged_events(&log).iter().find(|e| opened(e)).map(|_| ())
    });
    drop(reader);

    let heard = logged_events(&log);
    check_order(&heard)?;
    let who = |name: &'static str| move |e: &Value| e["who"]["worker"] == name;
    for name in ["slow", "fast"] {
        find_event(&heard, "worker_registered", who(name))?;
        find_event(&heard, "completed", |e| who(name)(e) && e["run"] == "kinds")?;
    }
    // It stole all rows of the other worker.
    find_event(&heard, "granted", |e| who("slow")(e) && e["run"] == "kinds")?;
    let stolen = find_event(&heard, "stolen", |e| e["run"] == "kinds")?;
    ensure!(stolen["who"]["worker"] == "fast" && stolen["victim"]["worker"] == "slow", "{stolen}");
    ensure!(
        stolen["attempt"] != stolen["lostAttempt"] && stolen["rows"] != Value::Null,
        "{stolen}"
    );
    let failed = find_event(&heard, "failed", |e| e["run"] == "kinds")?;
    ensure!(failed["class"] == "invalid_row", "{failed}");
    ensure!(failed["forGood"][0]["start"] == "3", "{failed}");
    find_event(&heard, "worker_draining", who("fast"))?;
    find_event(&heard, "worker_drained", who("fast"))?;
    let suspect = find_event(&heard, "worker_suspect", who("slow"))?;
    let lost = find_event(&heard, "worker_lost", who("slow"))?;
    ensure!(place(suspect) < place(lost), "first suspect, then lost");
    find_event(&heard, "run_created", |e| e["run"] == "kinds")?;
    find_event(&heard, "run_finished", |e| e["run"] == "kinds")?;
    fleet.passed()
}
