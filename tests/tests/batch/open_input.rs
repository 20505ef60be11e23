//! Input that stays open: rows run while several clients append more, through kills of appenders and of the leader.
//! The run ends with every row once, and not before its input is closed.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Executions, Fleet, FleetOptions, Process, WorkerOptions, eventually};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const FIRST: u64 = 300;
/// Rows of one append; the next append repeats half of them.
const EACH: u64 = 400;
const APPENDS: u64 = 6;

fn row(number: u64) -> String {
    format!("{{\"id\":\"r{number}\",\"prompt\":\"say {number}\"}}\n")
}

fn write_rows(fleet: &Fleet, file: &str, rows: std::ops::Range<u64>) -> Result<String> {
    let path = fleet.path(file);
    let mut text = String::new();
    rows.for_each(|number| text.push_str(&row(number)));
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

/// The rows of an append.
fn slice(append: u64) -> std::ops::Range<u64> {
    let start = FIRST - 100 + append * EACH / 2;
    start..start + EACH
}

fn ran(fleet: &Fleet, args: &[&str]) -> Result<Output> {
    Ok(fleet.rollout(args).output()?)
}

fn run_state(fleet: &Fleet) -> Option<(String, u64, u64)> {
    let described = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "open"]).ok()?;
    let run = described.get("run")?;
    let get = |key: &str| run.get("counts")?.get(key)?.as_str()?.parse().ok();
    Some((run.get("state")?.as_str()?.to_owned(), get("rows")?, get("done")?))
}

fn submit(fleet: &Fleet, more: &[&str]) -> Result<Process> {
    let (input, out) = (fleet.path("first.jsonl"), fleet.path("out"));
    let config = fleet.path("batch.toml");
    let mut text = String::new();
    writeln!(text, "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16")?;
    writeln!(text, "[input]\nglob = {input:?}\n[output]\ndir = {out:?}\n[run]\nname = \"open\"")?;
    std::fs::write(&config, text)?;
    let config = config.to_string_lossy().into_owned();
    let args = ["infer", "batch", "--config", &config, "--timeout", "90s"];
    Process::start(fleet.rollout(&[&args, more].concat()), &fleet.path("batch.log"))
}

fn append(fleet: &Fleet, number: u64, by: &str) -> Result<Process> {
    let file = write_rows(fleet, &format!("more{number}.jsonl"), slice(number))?;
    let args = ["run", "append", "open", &file, "--timeout", "90s"];
    Process::start(fleet.rollout(&args), &fleet.path(&format!("append{number}{by}.log")))
}

#[test]
fn rows_appended_by_several_through_kills_run_once_each_and_the_run_ends_when_it_is_closed()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = 1\nlatency_ms_max = 5\n\
         side_file = {side:?}\n"
    );
    fleet.start_worker("w1", &WorkerOptions { engine, head: String::new() })?;
    write_rows(&fleet, "first.jsonl", 0..FIRST)?;
    let status = submit(&fleet, &["--keep-open", "--detach"])?.wait(PATIENCE)?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let results = fleet.path("followed.log");
    let follow = ["run", "results", "open", "--follow", "--quiet", "--timeout", "90s"];
    let mut follower = Process::start(fleet.rollout(&follow), &results)?;
    // Rows run although more may come, and the run does not end when none is left.
    eventually("the first rows are done", PATIENCE, || {
        run_state(&fleet).filter(|run| run.2 == FIRST)
    });
    let refused = ran(&fleet, &["verify", "open"])?;
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("rollout run close open"), "{stderr}");
    append_through_kills(&mut fleet)?;
    let whole = slice(APPENDS - 1).end;
    let rows = run_state(&fleet).context("no member reports the state")?;
    assert_eq!((rows.0.as_str(), rows.1), ("running", whole), "{}", fleet.logs());
    let closed = ran(&fleet, &["run", "close", "open", "--timeout", "90s"])?;
    ensure!(closed.status.success(), "{}", String::from_utf8_lossy(&closed.stderr));
    let status = submit(&fleet, &["--resume", "open"])?.wait(PATIENCE)?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    check(&std::fs::read_to_string(fleet.path("out").join("completions.jsonl"))?, whole)?;
    let status = follower.wait(PATIENCE)?;
    ensure!(status.success(), "{status}{}", follower.log_tail());
    check(&std::fs::read_to_string(&results)?, whole)?;
    fleet.verify()?;
    let executions = Executions::read(&[side])?;
    assert_eq!((executions.started, executions.attempts.len() as u64), (whole, whole));
    fleet.passed()
}

/// Appends every slice, two at a time; one appender is killed and replaced, and so is the leader.
fn append_through_kills(fleet: &mut Fleet) -> Result<()> {
    let mut leader = None;
    for pair in 0..APPENDS / 2 {
        let mut both = [append(fleet, 2 * pair, "a")?, append(fleet, 2 * pair + 1, "a")?];
        if pair == 0 {
            // Kill it, wherever it is by now.
            both[0].kill();
            both[0] = append(fleet, 0, "b")?;
        }
        if pair == 1 {
            let name = fleet.leader();
            fleet.member_process(&name).kill();
            leader = Some(name);
        }
        for process in &mut both {
            let status = process.wait(PATIENCE)?;
            ensure!(status.success(), "{status}\n{}{}", process.log_tail(), fleet.logs());
        }
    }
    // Append again, which adds nothing.
    let again = append(fleet, 1, "again")?.wait(PATIENCE)?;
    ensure!(again.success(), "{again}");
    fleet.start_member(&leader.context("no leader was killed")?)
}

/// Checks that each row is there once, with the answer to its own prompt, in any order.
fn check(text: &str, rows: u64) -> Result<()> {
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        let id = row["id"].as_str().context("no id")?.to_owned();
        let number = id.strip_prefix('r').context("another id")?;
        ensure!(row["completion"] == format!("MOCK:say {number}"), "{row}");
        ensure!(seen.insert(id), "twice: {row}");
    }
    ensure!(seen.len() as u64 == rows, "{} rows of {rows}", seen.len());
    Ok(())
}
