//! A run ends at its deadline, whichever member leads then, and keeps what is done.

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, Process, WorkerOptions, eventually};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(12);

/// A worker that runs 4 rows in 0.3 s: for 12,000 rows it would take a quarter of an hour.
fn slow() -> WorkerOptions {
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 4\nlatency_ms_min = 300\nlatency_ms_max = 300\n";
    WorkerOptions { engine: engine.into(), ..WorkerOptions::default() }
}

#[test]
fn a_deadline_survives_the_leader_and_what_is_done_is_kept() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow())?;
    let begun = Instant::now();
    let mut batch = Batch::submit(&fleet, "eval", 12_000, "[run]\ndeadline_s = 12\n")?;
    batch.until(&fleet, "rows are done", |c| c.done > 4);
    // A reader that follows the results learns that no more will come.
    let follow = fleet.rollout(&["run", "results", "eval", "--follow", "--quiet"]);
    let mut follower = Process::start(follow, &fleet.path("follow.log"))?;
    let old = fleet.leader();
    fleet.member_process(&old).kill();
    fleet.leader_other_than(&old);

    let described = eventually("the run has ended", PATIENCE, || {
        let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "eval"]).ok()?;
        (run["run"]["state"] == "deadline exceeded").then_some(run)
    });
    ensure!(begun.elapsed() >= DEADLINE, "it ended after {:?}", begun.elapsed());
    let count = |key: &str| -> u64 {
        let text = described["run"]["counts"][key].as_str().unwrap_or_default();
        text.parse().unwrap_or(u64::MAX)
    };
    let done = count("done");
    ensure!(done > 4 && done < 12_000, "{described}");
    ensure!(count("running") == 0, "rows were not revoked: {described}");
    // The user gets the reason, with the exit status of the error code.
    let status = batch.process().wait(PATIENCE)?;
    let said = std::fs::read_to_string(&batch.process().log)?;
    ensure!(status.code() == Some(5) && said.contains("RO-2016"), "{status:?}: {said}");
    let status = follower.wait(PATIENCE)?;
    let said = std::fs::read_to_string(&follower.log)?;
    ensure!(status.code() == Some(5) && said.contains("RO-2016"), "{status:?}: {said}");
    let resumed = fleet.ctl(&["run", "resume", "eval"])?;
    ensure!(resumed.status.code() == Some(5), "{resumed:?}");
    // The worker drops the rows and continues with others.
    let mut next = Batch::submit(&fleet, "next", 8, "")?;
    next.finish(&fleet)?;
    let now = fleet.ctl_json(&["run", "describe", "eval"])?;
    let kept = now["run"]["counts"]["done"].as_str();
    ensure!(kept == Some(done.to_string().as_str()), "a late row was taken: {now}");
    fleet.start_member(&old)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_run_ends_at_the_deadline_that_was_set_last() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow())?;
    let begun = Instant::now();
    let mut batch = Batch::submit(&fleet, "eval", 12_000, "[run]\ndeadline_s = 3600\n")?;
    batch.until(&fleet, "rows are done", |c| c.done > 4);
    let set = |args: &[&str]| fleet.ctl(&[&["run", "set-deadline", "eval"][..], args].concat());
    let past = set(&["--deadline", "1ms"])?;
    let stderr = String::from_utf8_lossy(&past.stderr);
    ensure!(!past.status.success() && stderr.contains("has passed"), "{past:?}");
    let removed = set(&["--none"])?;
    ensure!(removed.status.success(), "{removed:?}");
    let described = fleet.ctl_json(&["run", "describe", "eval"])?;
    ensure!(described["spec"]["deadlineSeconds"] == 0.0, "{described}");
    // The run is younger than the test.
    let deadline = begun.elapsed() + Duration::from_secs(5);
    let moved = set(&["--deadline", &format!("{}ms", deadline.as_millis())])?;
    ensure!(moved.status.success(), "{moved:?}");
    eventually("the run has ended", PATIENCE, || {
        let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "eval"]).ok()?;
        (run["run"]["state"] == "deadline exceeded").then_some(())
    });
    ensure!(begun.elapsed() >= deadline, "it ended after {:?}", begun.elapsed());
    let status = batch.process().wait(PATIENCE)?;
    ensure!(status.code() == Some(5), "{status:?}");
    let late = set(&["--none"])?;
    ensure!(late.status.code() == Some(5), "{late:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_open_run_continues_when_its_submission_is_repeated_with_another_deadline() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow())?;
    let (input, out) = (fleet.path("eval.jsonl"), fleet.path("eval-out"));
    std::fs::write(&input, "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n")?;
    let config = fleet.path("eval.batch.toml").to_string_lossy().into_owned();
    let submit = |deadline_s: u32, more: &[&str]| -> Result<String> {
        let text = format!(
            "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16\n[input]\nglob = {input:?}\n\
             [output]\ndir = {out:?}\n[run]\nname = \"eval\"\ndeadline_s = {deadline_s}\n"
        );
        std::fs::write(&config, text)?;
        let args = ["infer", "batch", "--config", &config, "--timeout", "90s"];
        let ended = fleet.rollout(&[&args, more].concat()).output()?;
        let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.success(), "{deadline_s} {more:?}: {printed}");
        Ok(printed)
    };
    submit(3600, &["--keep-open", "--detach"])?;
    let set = fleet.ctl(&["run", "set-deadline", "eval", "--deadline", "3h"])?;
    ensure!(set.status.success(), "{set:?}");
    // The deadline of the cluster, that of the submission, and another one.
    for (deadline_s, more) in [
        (10_800, &["--keep-open", "--detach"][..]),
        (3600, &["--keep-open", "--detach"]),
        (7200, &["--resume", "eval", "--keep-open", "--detach"]),
        (7200, &[]),
    ] {
        let printed = submit(deadline_s, more)?;
        let notes = printed.contains("run eval keeps its deadline");
        ensure!(notes == (deadline_s != 10_800), "{deadline_s} {more:?}: {printed}");
    }
    let printed = submit(3600, &["--resume", "eval"])?;
    ensure!(!printed.contains("keeps its deadline"), "it has ended: {printed}");
    let described = fleet.ctl_json(&["run", "describe", "eval"])?;
    ensure!(described["run"]["state"] == "finished", "{described}");
    ensure!(described["spec"]["deadlineSeconds"] == 10_800.0, "{described}");
    let other = fleet.ctl(&["run", "describe", "eval.r2"])?;
    ensure!(other.status.code() == Some(4), "another revision was made: {other:?}");
    fleet.verify()?;
    fleet.passed()
}
