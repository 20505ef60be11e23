//! Checkpoints in an S3 object store: large ones are uploaded in parts, despite lost answers and refusals.

use anyhow::{Result, ensure};
use rollout_tests::{
    Fleet, FleetOptions, Process, S3, StoreFaults, UploadCounts, eventually_or_show,
};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
/// Size of each checkpoint: more than one piece, and not a whole number of parts.
const BALLAST: &str = "ballast_mib=20";
const LARGE: usize = 20 << 20;
/// Several times the number of requests that one call makes; with its pauses, about three seconds.
const OUTAGE: u64 = 16;

fn fleet(s3: &Arc<S3>) -> Result<Fleet> {
    let fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    let uri = "s3://data/{shard:4}.tar";
    let create =
        ["dataset", "create", "pile", "--uri", uri, "--samples", "40", "--shard-samples", "10"];
    let created = fleet.ctl(&create)?;
    ensure!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    Ok(fleet)
}

/// Trains this many steps, with a checkpoint at every fifth.
fn train(fleet: &Fleet, s3: &S3, round: u64, steps: u64) -> Result<Process> {
    let members = fleet.member_names();
    let endpoints: Vec<&str> = members.iter().map(|m| fleet.client_addr(m)).collect();
    let mut command = fleet.program("mock-trainer");
    command
        .envs(s3.env("trainer"))
        .arg(format!("endpoints={}", endpoints.join(",")))
        .arg(format!("tls={}", fleet.path("tls").display()))
        .arg(format!("out={}", fleet.path("weights").display()))
        .arg(format!("round={round}"))
        .arg(format!("steps={steps}"))
        .args([
            "cert=client-user",
            "dataset=pile",
            "keep_ms=60000",
            "job=sft",
            "name=t0",
            "world=t0",
        ])
        .args(["batch=7", "every=5", "seed=42", "step_ms=0", BALLAST]);
    Process::start(command, &fleet.path(&format!("t0-{round}.log")))
}

fn verified(fleet: &Fleet) -> Result<()> {
    let verified = fleet.ctl(&["checkpoint", "verify", "sft"])?;
    ensure!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let described = fleet.ctl_json(&["checkpoint", "describe", "sft"])?;
    let bytes = described["checkpoint"]["bytes"].as_str().and_then(|bytes| bytes.parse().ok());
    ensure!(bytes.is_some_and(|bytes: usize| bytes > LARGE), "{described}");
    Ok(())
}

#[test]
fn a_checkpoint_in_parts_is_whole_though_the_store_is_busy_and_loses_its_answers() -> Result<()> {
    let s3 = S3::start()?;
    let fleet = fleet(&s3)?;
    s3.inject(StoreFaults {
        busy_every: 7,
        lost_every: 5,
        lose_completions: true,
        ..StoreFaults::default()
    });
    let mut trainer = train(&fleet, &s3, 1, 5)?;
    let ended = trainer.wait(PATIENCE)?;
    ensure!(ended.success(), "{ended}: {}", trainer.log_tail());
    let (busy, lost) = s3.misbehaved();
    ensure!(busy > 0 && lost > 1, "the store was well: {busy} times busy, {lost} answers lost");
    s3.inject(StoreFaults::default());
    let UploadCounts { completed, parts, .. } = s3.uploads();
    ensure!(completed >= 1, "the checkpoint goes up in parts: {:?}", s3.uploads());
    ensure!(parts == 0, "unused parts are left: {:?}", s3.uploads());
    verified(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_part_that_is_refused_leaves_nothing_behind_and_the_next_round_is_whole() -> Result<()> {
    let s3 = S3::start()?;
    let fleet = fleet(&s3)?;
    s3.inject(StoreFaults { refuse_part: Some(3), ..StoreFaults::default() });
    // Only one checkpoint: a process that exits on the first error would leave the parts of another behind.
    let mut trainer = train(&fleet, &s3, 1, 5)?;
    let ended = trainer.wait(PATIENCE)?;
    let text = std::fs::read_to_string(&trainer.log)?;
    ensure!(!ended.success() && text.contains("AccessDenied"), "{ended}: {text}");
    let counts = s3.uploads();
    ensure!(counts.aborted >= 1 && counts.completed == 0 && counts.parts == 0, "{counts:?}");
    // An incomplete checkpoint is not offered for recovery.
    let list = fleet.ctl_json(&["checkpoint", "list", "sft"])?;
    let complete = list["checkpoints"].as_array().into_iter().flatten();
    ensure!(complete.filter(|c| c["state"] == "complete").count() == 0, "{list}");
    s3.inject(StoreFaults::default());
    let mut trainer = train(&fleet, &s3, 2, 10)?;
    let ended = trainer.wait(PATIENCE)?;
    ensure!(ended.success(), "{ended}: {}", trainer.log_tail());
    verified(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// Makes the store refuse this trainer for a while.
fn outage(s3: &S3, trainer: impl FnOnce() -> Result<Process>) -> Result<Process> {
    let before = s3.misbehaved().0;
    s3.overload("trainer", true);
    let trainer = trainer()?;
    eventually_or_show("the trainer asks again and again", PATIENCE, |seen| {
        *seen = trainer.log_tail();
        (s3.misbehaved().0 >= before + OUTAGE).then_some(())
    });
    s3.overload("trainer", false);
    Ok(trainer)
}

#[test]
fn a_store_that_does_not_answer_for_a_while_ends_neither_a_checkpoint_nor_a_restore() -> Result<()>
{
    let s3 = S3::start()?;
    let fleet = fleet(&s3)?;
    for (round, steps) in [(1, 5), (2, 10)] {
        // The second one restores first.
        let mut trainer = outage(&s3, || train(&fleet, &s3, round, steps))?;
        let ended = trainer.wait(PATIENCE)?;
        ensure!(ended.success(), "{ended}: {}", trainer.log_tail());
    }
    verified(&fleet)?;
    // A permanent refusal is reported at once.
    s3.expire("trainer", true);
    let mut trainer = train(&fleet, &s3, 3, 15)?;
    let ended = trainer.wait(PATIENCE)?;
    let text = std::fs::read_to_string(&trainer.log)?;
    ensure!(!ended.success() && text.contains("ExpiredToken"), "{ended}: {text}");
    s3.expire("trainer", false);
    fleet.verify()?;
    fleet.passed()
}
