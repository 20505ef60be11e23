//! Readers that follow events get all of them, once and in order, across deaths of members.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Fleet, FleetOptions, Process, WorkerOptions, check_order, eventually, json_lines,
    logged_events,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A fleet with workers, each row of which takes a while.
fn fleet(lines: &[(&'static str, &'static str)], workers: &[&str]) -> Result<Fleet> {
    let options = FleetOptions { member_lines: lines.to_vec(), ..FleetOptions::default() };
    let mut fleet = Fleet::start(options)?;
    let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = 5\n\
                  latency_ms_max = 60\nseed = 3\n";
    let head = "[part]\nlinger_ms = 50\n".to_owned();
    for worker in workers {
        let options = WorkerOptions { engine: engine.into(), head: head.clone() };
        fleet.start_worker(worker, &options)?;
    }
    Ok(fleet)
}

/// How often each row of a run was completed, by its events.
fn completions(events: &[Value], run: &str) -> BTreeMap<u64, u32> {
    let mut rows = BTreeMap::new();
    for event in events.iter().filter(|e| e["kind"] == "completed" && e["run"] == run) {
        for range in event["rows"].as_array().into_iter().flatten() {
            let start: u64 =
                range["start"].as_str().and_then(|s| s.parse().ok()).unwrap_or_default();
            for row in start..start + range["len"].as_u64().unwrap_or_default() {
                *rows.entry(row).or_default() += 1;
            }
        }
    }
    rows
}

fn finished(events: &[Value], run: &str) -> Option<usize> {
    events.iter().position(|e| e["kind"] == "run_finished" && e["run"] == run)
}

/// So many that the second half takes longer than it takes to see that half are done.
const ROWS: u64 = 12_000;

#[test]
fn a_reader_follows_through_a_leaders_death_without_gap_or_repeat() -> Result<()> {
    let mut fleet = fleet(&[], &["w1", "w2"])?;
    let _reader = fleet.follow_events("events.out", &["--since", "0"])?;
    let log = fleet.path("events.out");
    let mut batch = Batch::submit(&fleet, "followed", ROWS, "")?;
    for percent in [20, 50] {
        batch.until(&fleet, "some are done", |c| c.done >= ROWS * percent / 100);
        let leader = fleet.leader();
        fleet.member_process(&leader).kill();
        fleet.leader_other_than(&leader);
        fleet.start_member(&leader)?;
    }
    batch.finish(&fleet)?;
    let heard = eventually("the reader hears of the run's end", PATIENCE, || {
        let heard = logged_events(&log);
        finished(&heard, "followed").map(|end| heard[..=end].to_vec())
    });
    check_order(&heard)?;
    let again = fleet.events(&["--since", "0"]);
    // A member that never died holds all events; the reader asks the members until it finds it.
    let again = again.context("one member was never restarted, or two were")?;
    let end = finished(&again, "followed").context("the second reader hears of it too")?;
    assert_eq!(heard, again[..=end], "two readers, the same events");
    let rows = completions(&heard, "followed");
    assert_eq!(rows.len() as u64, ROWS, "every row is completed in events");
    assert!(rows.values().all(|times| *times == 1), "and once");
    assert!(heard.iter().filter(|e| e["kind"] == "epoch_opened").count() >= 3);
    assert!(heard.iter().any(|e| e["kind"] == "granted" && e["who"]["worker"] == "w2"));
    fleet.passed()
}

#[test]
fn following_one_worker_resumes_where_it_stopped() -> Result<()> {
    let fleet = fleet(&[], &["w2", "w3"])?;
    let mut reader = fleet.follow_events("w3.out", &["--since", "0", "--for", "worker/w3"])?;
    let log = fleet.path("w3.out");
    let mut batch = Batch::submit(&fleet, "shared", 2000, "")?;
    eventually("w3 completes rows", PATIENCE, || {
        logged_events(&log).iter().any(|e| e["kind"] == "completed").then_some(())
    });
    reader.signal(libc::SIGINT)?;
    ensure!(reader.wait(PATIENCE)?.success(), "Ctrl-C is a fine end");
    let text = std::fs::read_to_string(&log)?;
    let hint =
        text.lines().find(|l| l.starts_with("to go on: ")).context("it says how to go on")?;
    let words: Vec<&str> = hint.split_whitespace().collect();
    let since = words[words.iter().position(|w| *w == "--since").context("since")? + 1];
    assert!(hint.ends_with("--for worker/w3"), "{hint}");
    batch.finish(&fleet)?;
    let mut heard = logged_events(&log);
    heard.extend(fleet.events(&["--since", since, "--for", "worker/w3"])?);
    let whole = fleet.events(&["--since", "0", "--for", "worker/w3"])?;
    assert_eq!(heard, whole, "two sittings hear what one does");
    let hour = fleet.events(&["--since", "1h", "--for", "worker/w3"])?;
    assert_eq!(hour, whole, "all of it is younger than an hour");
    let tail = fleet.events(&["--tail", "3", "--for", "worker/w3"])?;
    assert_eq!(tail, whole[whole.len() - 3..], "the last three");
    assert!(whole.iter().all(|e| e["at"].as_str().is_some_and(|at| at.ends_with('Z'))));
    assert!(whole.iter().all(|e| e["who"]["worker"] == "w3" || e["victim"]["worker"] == "w3"));
    let kinds: BTreeSet<&str> = whole.iter().filter_map(|e| e["kind"].as_str()).collect();
    for kind in ["worker_registered", "granted", "completed"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    let row = fleet.events(&["--since", "0", "--for", "item/shared/17"])?;
    let story: Vec<&str> = row.iter().filter_map(|e| e["kind"].as_str()).collect();
    assert_eq!((story.first(), story.last()), (Some(&"granted"), Some(&"completed")));
    fleet.passed()
}

#[test]
fn a_reader_behind_a_tiny_ring_learns_the_oldest_index() -> Result<()> {
    let fleet = fleet(&[("events", "count_max = 12")], &["w1"])?;
    let mut batch = Batch::submit(&fleet, "much", 2000, "")?;
    batch.finish(&fleet)?;
    let out: Output = fleet.ctl(&["events", "--since", "0"])?;
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(9), "{stderr}");
    assert!(
        stderr.contains("Compacted") && stderr.contains("the oldest index kept is"),
        "{stderr}"
    );
    let out = fleet.ctl(&["-o", "json", "events", "--since", "0", "--from-oldest"])?;
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && stderr.contains("no longer kept"), "{stderr}");
    let left = json_lines(&String::from_utf8_lossy(&out.stdout));
    assert!(!left.is_empty() && left.len() <= 12, "{}", left.len());
    fleet.passed()
}

/// Writes prompts; these rows fail for good.
fn input(
    fleet: &Fleet,
    name: &str,
    rows: u64,
    fails: impl Fn(u64) -> bool,
) -> Result<std::path::PathBuf> {
    let mut text = String::new();
    for row in 0..rows {
        let prompt = if fails(row) { "MOCK_FAIL_INVALID" } else { "fine" };
        writeln!(text, r#"{{"id":"{name}-{row}","prompt":"{prompt} {row}"}}"#)?;
    }
    let path = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&path, text)?;
    Ok(path)
}

fn ids(text: &str) -> Vec<String> {
    json_lines(text).iter().filter_map(|l| Some(l["id"].as_str()?.to_owned())).collect()
}

#[test]
fn results_are_streamed_once_each_while_the_run_goes_on() -> Result<()> {
    let mut fleet = fleet(&[], &["w1", "w2"])?;
    let path = input(&fleet, "streamed", 3000, |row| row % 100 == 7)?;
    let mut batch = Batch::submit_file(&fleet, "streamed", path, 3000, "")?;
    batch.until(&fleet, "the run has begun", |c| c.rows == 3000);
    let results = |args: &[&str]| {
        let mut all = vec!["run", "results", "streamed", "--timeout", "60s"];
        all.extend(args);
        fleet.rollout(&all)
    };
    let mut all = Process::start(results(&["--follow"]), &fleet.path("results.out"))?;
    let failed = ["--follow", "--state", "failed"];
    let mut failed = Process::start(results(&failed), &fleet.path("failed.out"))?;
    let some = ["--follow", "--sample", "30"];
    let mut some = Process::start(results(&some), &fleet.path("some.out"))?;
    let read =
        |fleet: &Fleet, name: &str| std::fs::read_to_string(fleet.path(name)).unwrap_or_default();
    eventually("rows are printed", PATIENCE, || {
        (!read(&fleet, "results.out").is_empty()).then_some(())
    });
    let seen = batch.counts(&fleet).context("counts")?;
    assert!(seen.done < 2900, "rows are printed before the run ends: {seen:?}");
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    batch.process().wait(PATIENCE)?;
    for stream in [&mut all, &mut failed, &mut some] {
        ensure!(stream.wait(PATIENCE)?.success(), "{}", fleet.logs());
    }
    let printed = ids(&read(&fleet, "results.out"));
    let once: BTreeSet<&String> = printed.iter().collect();
    assert_eq!((printed.len(), once.len()), (3000, 3000), "every row once");
    let printed = ids(&read(&fleet, "failed.out"));
    let expected: BTreeSet<String> = (0..30).map(|i| format!("streamed-{}", i * 100 + 7)).collect();
    assert_eq!(printed.len(), 30);
    assert_eq!(printed.into_iter().collect::<BTreeSet<_>>(), expected);
    // A row has the same line in files and in streams.
    let mut written = read(&fleet, "streamed-out/completions.jsonl");
    written += &read(&fleet, "streamed-out/errors.jsonl");
    let streamed_text = read(&fleet, "results.out");
    let lines: BTreeSet<&str> = streamed_text.lines().collect();
    assert_eq!(lines, written.lines().collect());
    let mut sample = fleet.rollout(&["run", "results", "streamed", "--sample", "30"]);
    let mut sample = ids(&String::from_utf8_lossy(&sample.output()?.stdout));
    assert_eq!(sample.len(), 30);
    // A followed sample is the same one, although it arrives as the rows end.
    let mut followed = ids(&read(&fleet, "some.out"));
    sample.sort();
    followed.sort();
    assert_eq!(followed, sample);
    fleet.passed()
}

#[test]
fn a_canary_stops_a_bad_run_early_and_lets_a_good_one_through() -> Result<()> {
    let fleet = fleet(&[], &["w1", "w2"])?;
    let canary = "[run]\ncanary = 20\ncanary_failures_max = 2\n";
    let path = input(&fleet, "bad", 1000, |row| row < 500)?;
    let mut bad = Batch::submit_file(&fleet, "bad", path, 1000, canary)?;
    let run = eventually("the bad run is paused", PATIENCE, || {
        let run = fleet.ctl_json(&["run", "describe", "bad"]).ok()?;
        (run["run"]["state"] == "paused").then_some(run)
    });
    let reason = run["run"]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("canary"), "{reason}");
    let counts = bad.until(&fleet, "what ran has ended", |c| c.running == 0);
    assert!(counts.failed > 2 && counts.failed + counts.done <= 20, "{counts:?}");
    ensure!(fleet.ctl(&["run", "resume", "bad"])?.status.success(), "resumed");
    bad.until(&fleet, "it goes on with all rows", |c| c.done == 500 && c.failed == 500);
    bad.process().wait(PATIENCE)?;

    let mut good = Batch::submit(&fleet, "good", 1000, canary)?;
    good.finish(&fleet)?;
    let story = fleet.events(&["--since", "0", "--for", "run/good"])?;
    let passed = story.iter().position(|e| e["kind"] == "run_canary_passed").context("passed")?;
    let before = completions(&story[..passed], "good");
    assert!(before.keys().copied().eq(0..20), "the first twenty rows alone: {before:?}");
    let granted = story[..passed].iter().filter(|e| e["kind"] == "granted");
    assert!(granted.flat_map(|e| e["rows"].as_array().cloned()).flatten().all(|r| {
        r["start"].as_str().and_then(|s| s.parse::<u64>().ok()).is_some_and(|s| s < 20)
    }));
    fleet.passed()
}
