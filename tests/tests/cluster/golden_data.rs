//! This build's `rollout-coordinator` opens a member's directory that an earlier build left, with runs in it, and
//! continues where that build was killed.
//!
//! `testdata/data-N`, of cluster version N, has the data of a member that was its whole cluster, and the object
//! store: one run that had ended, one in which no row had begun, and in `results.jsonl` the results of the first;
//! from version 2 on also a join token, which no member of version 1 accepts; from version 4 on also jobs, with and
//! without a training. `ROLLOUT_REWRITE=1` rewrites the directory of the newest version; use it only while that format
//! is unreleased. For a released format, add a directory for the new version and keep these.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, output};
use rollout_training::{CheckpointWriter, Recovery, Trainer, TrainerOptions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const ENDED_ROWS: u64 = 40;
const LEFT_ROWS: u64 = 30;

/// The newest cluster version, with which a cluster of this build starts.
const NEWEST: u32 = 4;

/// Jobs with a training.
const TRAINED: [&str; 2] = ["both", "trained"];
/// Jobs that participants use.
const RENDEZVOUS: [&str; 2] = ["both", "idle"];

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/testdata/data-{version}"))
}

fn start(kept: PathBuf) -> Result<Fleet> {
    let enrollment_lifetime_s = Some(3600);
    Fleet::start(FleetOptions {
        alone: Some(kept),
        enrollment_lifetime_s,
        ..FleetOptions::default()
    })
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

/// Each training has a complete checkpoint, and a trainer that holds a shard.
async fn make_jobs(fleet: &Fleet) -> Result<()> {
    let uri = "file:///data/{shard:3}";
    let dataset =
        ["dataset", "create", "pile", "--uri", uri, "--samples", "20", "--shard-samples", "10"];
    let close = [&["rendezvous", "close"][..], &RENDEZVOUS[..], &["--yes"][..]].concat();
    for args in [&dataset[..], &close[..]] {
        let out = fleet.ctl(args)?;
        ensure!(out.status.success(), "{args:?}: {out:?}");
    }
    for job in TRAINED {
        let options = TrainerOptions {
            job: job.into(),
            name: "t0".into(),
            keep_alive: Duration::from_secs(60),
            ..TrainerOptions::default()
        };
        let recovery = Recovery { round: 1, world: vec!["t0".into()], ..Recovery::default() };
        let client = fleet.client("client", "user")?;
        let trainer = Trainer::recover(client, &options, &recovery).await?.0;
        let checkpoint = trainer.begin_checkpoint(1, "", PATIENCE).await?;
        let writer = CheckpointWriter::open(trainer.store_url())?;
        let files = vec![("model".to_owned(), Bytes::from_static(b"1"))];
        let written = writer.begin(&checkpoint, trainer.name(), files).wait().await?;
        let complete = trainer.report_checkpoint(checkpoint.number, &written, Vec::new()).await?;
        ensure!(complete, "{job}: its checkpoint is not complete");
        ensure!(trainer.claim("pile", 0).await?.0.is_some(), "{job}: no shard");
    }
    Ok(())
}

fn has_jobs(fleet: &Fleet) -> Result<()> {
    for job in TRAINED {
        let list = fleet.ctl_json(&["checkpoint", "list", job])?;
        ensure!(list["checkpoints"][0]["state"] == "complete", "{job}: {list}");
    }
    for job in RENDEZVOUS {
        let out = fleet.ctl(&["rendezvous", "describe", job])?;
        ensure!(out.status.success(), "{job}: {out:?}");
    }
    Ok(())
}

fn rewrite() -> Result<()> {
    let nothing = tempfile::tempdir()?;
    let mut fleet = start(nothing.path().join("none"))?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "ended", ENDED_ROWS, "")?.finish(&fleet)?;
    let ended = results(&fleet, "ended")?;
    tokio::runtime::Runtime::new()?.block_on(make_jobs(&fleet))?;
    let status = fleet.worker_process("w1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}");
    // The image has the state before an orderly stop; the log also has what came after it.
    let status = fleet.member_process("c1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}");
    fleet.start_member("c1")?;
    fleet.token("kept", &["--role", "worker"])?;
    let batch = Batch::submit(&fleet, "left", LEFT_ROWS, "")?;
    batch.until(&fleet, "its input is closed", |c| c.pending == LEFT_ROWS);
    eventually("its input is closed", PATIENCE, || {
        let run = fleet.ctl_json(&["run", "describe", "left"]).ok()?;
        (run["run"]["inputClosed"] == true).then_some(())
    });
    fleet.keep(&golden(NEWEST))?;
    let lines: Vec<String> = ended.into_iter().collect();
    std::fs::write(golden(NEWEST).join("results.jsonl"), lines.join("\n") + "\n")?;
    fleet.passed()
}

#[test]
fn a_directory_of_an_earlier_build_is_opened_with_its_runs_and_what_was_left_is_done() -> Result<()>
{
    opened(1)?;
    opened(2)?;
    opened(3)
}

#[test]
fn a_directory_of_the_newest_version_is_opened_with_its_runs_and_what_was_left_is_done()
-> Result<()> {
    if rollout_recorded::rewrites() {
        rewrite()?;
    }
    opened(NEWEST)
}

/// Opens the directory of a version, checks its contents, and continues with it.
fn opened(version: u32) -> Result<()> {
    let kept = std::fs::read_to_string(golden(version).join("results.jsonl"))
        .context("the golden directory, which ROLLOUT_REWRITE=1 writes")?;
    let mut fleet = start(golden(version))?;
    ensure!(fleet.leader() == "c1", "it leads, alone as it is");
    // The ended run is unchanged: its counts in the ledger, its results in the store.
    ensure!(count(&fleet, "ended", "done") == Some(ENDED_ROWS));
    let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    ensure!(kept.len() as u64 == ENDED_ROWS && results(&fleet, "ended")? == kept);
    ensure!(count(&fleet, "left", "pending") == Some(LEFT_ROWS));
    if version == NEWEST {
        has_jobs(&fleet)?;
    }
    fleet.verify()?;

    // Workers of this build finish the rest, also after a restart that reads both the old data and what this build
    // added.
    let status = fleet.member_process("c1").terminate(PATIENCE)?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    fleet.start_member("c1")?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    eventually("its rows are done", PATIENCE, || {
        (count(&fleet, "left", "done") == Some(LEFT_ROWS)).then_some(())
    });
    ensure!(results(&fleet, "left")?.len() as u64 == LEFT_ROWS);
    // The cluster was formed with that version, and no leader of this build raised it automatically.
    let raised = fleet.ctl_json(&["cluster", "upgrade", "--yes"])?;
    ensure!(raised["before"] == version, "{raised}");
    let mut next = Batch::submit(&fleet, "next", 20, "")?;
    next.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
