//! A store that refuses requests, and objects of a run that are missing or damaged.

use crate::bad_input::setup::{
    batch, ctl, ended, job, lines, rows, slow_worker, until_said, until_state,
};
use anyhow::Result;
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions};
use std::path::PathBuf;

#[test]
fn a_store_that_refuses_a_write_pauses_the_run_and_loses_nothing() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow_worker())?;
    fleet.start_worker("w2", &slow_worker())?;
    let mut batch = Batch::submit(&fleet, "full", 1500, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    // Put a file in place of the directory of the run's parts.
    let parts = fleet.objects_of("full").join("parts");
    let away = fleet.path("parts-away");
    std::fs::rename(&parts, &away)?;
    std::fs::write(&parts, "")?;
    let reason = until_state(&fleet, "full", "paused");
    assert!(reason.contains("the store refuses: "), "{reason}");
    assert!(reason.contains("full/") && reason.contains("/parts"), "{reason}");
    let said = ["is paused: the store refuses", "rolloutctl run resume full"];
    until_said("the user is told", batch.process(), &said);
    // Rows finished meanwhile are in the workers' spools and survive the workers' death.
    fleet.worker_process("w1").kill();
    fleet.start_worker("w1", &slow_worker())?;
    std::fs::remove_file(&parts)?;
    std::fs::rename(&away, &parts)?;
    // One resume is enough: a refusal from before the repair that a worker reports later pauses nothing.
    ctl(&fleet, &["run", "resume", "full"])?.expect(0, &[]);
    batch.finish(&fleet)?;
    let output = batch.output.to_string_lossy().into_owned();
    ended(fleet.rollout(&["verify", "full", "--output", &output]))?.expect(0, &[]);
    fleet.verify()?;
    fleet.passed()
}

/// The object of the run's segment that contains this text.
fn segment_with(fleet: &Fleet, run: &str, text: &str) -> Result<PathBuf> {
    let dir = fleet.objects_of(run).join("segments");
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        if bytes.windows(text.len()).any(|w| w == text.as_bytes()) {
            return Ok(path);
        }
    }
    anyhow::bail!("no segment of {run} has {text}")
}

#[test]
fn a_missing_and_a_corrupt_segment_fail_their_rows_with_their_own_codes() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let more = "[run]\nattempts_max = 2\nfailures_max = 10000\n";
    let config = job(&fleet, "bad", &rows("bad", 9000), more)?;
    let detached = batch(&fleet, &config, &["--name", "bad", "--detach"])?;
    detached.expect(0, &[]);
    let missing = segment_with(&fleet, "bad", "\"bad-0\"")?;
    std::fs::remove_file(&missing)?;
    let corrupt = segment_with(&fleet, "bad", "\"bad-8999\"")?;
    let mut bytes = std::fs::read(&corrupt)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&corrupt, bytes)?;
    fleet.start_worker("w1", &WorkerOptions::default())?;

    let resumed = batch(&fleet, &config, &["--resume", "bad"])?;
    resumed.expect(10, &["4,096 completions", "4,904 rows failed for good", "errors.jsonl"]);
    let errors = lines(&fleet.path("bad-out/errors.jsonl"))?;
    assert_eq!(errors.len(), 4904);
    for (at, code) in [(0, "SEGMENT_MISSING"), (4095, "SEGMENT_MISSING"), (4903, "SEGMENT_CORRUPT")]
    {
        let error = &errors[at]["error"];
        assert_eq!((&error["code"], &error["attempts"]), (&code.into(), &2.into()), "{error}");
    }
    let done = lines(&fleet.path("bad-out/completions.jsonl"))?;
    assert_eq!(done.len(), 4096);
    assert_eq!(done[0]["id"], "bad-4096");
    // The verification reports that the input has changed.
    let verdict = ended(fleet.rollout(&["verify", "bad"]))?;
    assert_eq!(verdict.code, Some(1), "{verdict:?}");
    assert!(verdict.err.contains("is missing"), "{verdict:?}");
    fleet.passed()
}
