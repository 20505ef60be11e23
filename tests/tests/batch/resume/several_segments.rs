//! A submission of several segments that is killed while one of them is stored and the others are in upload: before its
//! run exists, and after the run has the first of its segments.

use super::{Job, PATIENCE, rows, worker};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, S3, eventually};
use serde_json::Value;
use std::collections::BTreeMap;

/// The most rows of a segment.
const SEGMENT_ROWS: u64 = 4096;
const SEGMENTS: u64 = 3;
const ROWS: u64 = (SEGMENTS - 1) * SEGMENT_ROWS + 100;
/// Segments that are stored when the command is killed.
const STORED: u64 = 1;

/// The segments and rows of every run, by its name.
fn runs(fleet: &Fleet) -> Result<BTreeMap<String, (u64, u64)>> {
    let list = fleet.ctl_json(&["--timeout", "5s", "run", "list"])?;
    let run = |run: &Value| {
        let rows: u64 = run["counts"]["rows"].as_str()?.parse().ok()?;
        Some((run["name"].as_str()?.to_owned(), (run["segments"].as_u64()?, rows)))
    };
    let listed = list["runs"].as_array().context("no list of runs")?;
    listed.iter().map(run).collect::<Option<_>>().with_context(|| list.to_string())
}

/// Declares only the first segments of the input. A command that is killed between two of its requests leaves the same
/// run, but one request declares 512 segments.
fn declare(job: &mut Job<'_>, segments: u64) -> Result<()> {
    let all = std::mem::replace(&mut job.rows, rows(segments * SEGMENT_ROWS));
    let mut command = job.start(&["--keep-open"])?;
    eventually("the first segments are declared", PATIENCE, || {
        let run = job.run_id().ok()?;
        runs(job.fleet).ok()?.get(&run).filter(|run| run.0 == segments).copied()
    });
    command.kill();
    job.rows = all;
    Ok(())
}

/// Starts the command, and kills it when some segments are stored and it waits for the store to accept the others.
fn kill_in_upload(s3: &S3, job: &Job<'_>) -> Result<()> {
    let stored = || s3.requests_of("user").get("PUT segments").copied().unwrap_or_default();
    let before = stored();
    s3.limit_segments("user", Some(STORED));
    let mut command = job.start(&[])?;
    eventually("the store holds the other segments", PATIENCE, || {
        let in_upload = stored() == before + STORED && s3.held_requests() == SEGMENTS - STORED;
        (in_upload || !command.runs()).then_some(())
    });
    ensure!(command.runs(), "it ended: {}", job.printed());
    command.kill();
    // The store now receives the others, from a client that has died.
    s3.limit_segments("user", None);
    Ok(())
}

#[test]
fn a_submission_that_is_killed_with_several_segments_in_upload_is_finished_by_the_same_command()
-> Result<()> {
    let s3 = S3::start()?;
    let mut fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    let options = worker(&fleet, "w1", (0, 2));
    fleet.start_worker("w1", &options)?;
    let (mut executed, mut expected) = (0, BTreeMap::new());
    for (name, declared) in [("fresh", 0), ("begun", 1)] {
        let mut job = Job { named: false, ..Job::new(&fleet, name, &["w1"], rows(ROWS)) };
        job.executed = executed;
        if declared > 0 {
            declare(&mut job, declared)?;
            expected.insert(job.run_id()?, (declared, declared * SEGMENT_ROWS));
        }
        kill_in_upload(&s3, &job)?;
        let run = job.run_id()?;
        assert_eq!(runs(&fleet)?, expected, "{name}: nothing of the killed upload is declared");
        assert_eq!(job.run(&[])?, ROWS, "{name}: every row ran once");
        assert_eq!(job.run_id()?, run, "{name}");
        expected.insert(run, (SEGMENTS, ROWS));
        assert_eq!(runs(&fleet)?, expected, "{name}: it is one run");
        executed = job.executed;
    }
    fleet.verify()?;
    fleet.passed()
}
