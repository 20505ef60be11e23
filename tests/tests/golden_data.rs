//! A member's directory that an earlier build left, with runs in it, is opened by `rollout-coordinator` of this one, which
//! goes on where that was killed.
//!
//! `testdata/data-1` has the data of a member that was its whole cluster, and the object store: one run that had ended, one
//! of which no row had begun, and at `results.jsonl` what the first came to. `ROLLOUT_REWRITE=1` writes it anew; that is for a
//! format that nobody has in use, and otherwise a directory for the new format is added and this one is kept. It is of cluster
//! version 1; one that is written anew is of the newest.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, output};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const ENDED_ROWS: u64 = 40;
const LEFT_ROWS: u64 = 30;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/data-1")
}

fn start(kept: PathBuf) -> Result<Fleet> {
    Fleet::start(FleetOptions { alone: Some(kept), ..FleetOptions::default() })
}

/// The lines of a run's results, in some order.
fn results(fleet: &Fleet, run: &str) -> Result<BTreeSet<String>> {
    let out = output(fleet.rollout(&["run", "results", run, "--timeout", "60s"]), PATIENCE)?;
    ensure!(out.status.success(), "{run}: {out:?}{}", fleet.logs());
    Ok(String::from_utf8(out.stdout)?.lines().map(str::to_owned).collect())
}

/// What `run describe` counts under that name.
fn count(fleet: &Fleet, run: &str, what: &str) -> Option<u64> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?;
    run["run"]["counts"][what].as_str()?.parse().ok()
}

fn rewrite() -> Result<()> {
    let nothing = tempfile::tempdir()?;
    let mut fleet = start(nothing.path().join("none"))?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "ended", ENDED_ROWS, "")?.finish(&fleet)?;
    let ended = results(&fleet, "ended")?;
    let status = fleet.worker_process("w1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}");
    // The image has what was before a stop in good order, the log what came after it too.
    let status = fleet.member_process("c1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}");
    fleet.start_member("c1")?;
    let batch = Batch::submit(&fleet, "left", LEFT_ROWS, "")?;
    batch.until(&fleet, "its input is closed", |c| c.pending == LEFT_ROWS);
    eventually("its input is closed", PATIENCE, || {
        let run = fleet.ctl_json(&["run", "describe", "left"]).ok()?;
        (run["run"]["inputClosed"] == true).then_some(())
    });
    fleet.keep(&golden())?;
    let lines: Vec<String> = ended.into_iter().collect();
    std::fs::write(golden().join("results.jsonl"), lines.join("\n") + "\n")?;
    fleet.passed()
}

#[test]
fn a_directory_of_an_earlier_build_is_opened_with_its_runs_and_what_was_left_is_done() -> Result<()>
{
    if std::env::var_os("ROLLOUT_REWRITE").is_some() {
        rewrite()?;
    }
    let kept = std::fs::read_to_string(golden().join("results.jsonl"))
        .context("the golden directory, which ROLLOUT_REWRITE=1 writes")?;
    let mut fleet = start(golden())?;
    ensure!(fleet.leader() == "c1", "it leads, alone as it is");
    // What had ended is as it was: its counts of the ledger, its results of the store.
    ensure!(count(&fleet, "ended", "done") == Some(ENDED_ROWS));
    let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    ensure!(kept.len() as u64 == ENDED_ROWS && results(&fleet, "ended")? == kept);
    ensure!(count(&fleet, "left", "pending") == Some(LEFT_ROWS));
    fleet.verify()?;

    // What was left is done by workers of this build, also after what this one wrote beside the old was read again.
    let status = fleet.member_process("c1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    fleet.start_member("c1")?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    eventually("its rows are done", PATIENCE, || {
        (count(&fleet, "left", "done") == Some(LEFT_ROWS)).then_some(())
    });
    ensure!(results(&fleet, "left")?.len() as u64 == LEFT_ROWS);
    // It was formed with the first version, and no leader of this build raised it by itself.
    let raised = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(raised["before"] == 1, "{raised}");
    let mut next = Batch::submit(&fleet, "next", 20, "")?;
    next.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
