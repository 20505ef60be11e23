//! Owns: the load on the cluster during an upgrade: workers, batches and writers of both builds.
//!
//! Invariant: each row, each write and each sample counts once, regardless of the builds that took part.
//! Absent: training jobs (`training`).

use crate::rolling_upgrade::PATIENCE;
use crate::rolling_upgrade::training::{Participants, Training};
use anyhow::{Result, ensure};
use rollout_tests::{Batch, Build, Fleet, WorkerOptions, Writers, output};

/// The run that `rollout` of the baseline submits.
pub(crate) const OLD: &str = "old";
/// The run that `rollout` of this build submits.
const NEW: &str = "new";
/// Enough to last for most of an upgrade.
const ROWS: u64 = 4_000;
const WRITERS: usize = 2;

/// A worker that completes 16 rows per second.
pub(crate) fn worker() -> WorkerOptions {
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 500\nlatency_ms_max = 500\n";
    WorkerOptions { engine: engine.into(), ..WorkerOptions::default() }
}

/// The whole load on the cluster.
pub(crate) struct Load {
    batches: [Batch; 2],
    writers: Writers,
    training: Training,
    participants: Participants,
}

impl Load {
    /// Starts it at members of the baseline. `w1` and the run `old` are of the baseline too, `w2` and the run `new` of
    /// this build.
    pub(crate) fn start(fleet: &mut Fleet) -> Result<Self> {
        fleet.start_worker("w1", &worker())?;
        fleet.use_build("w2", Build::Current);
        fleet.start_worker("w2", &worker())?;
        let old = Batch::submit(fleet, OLD, ROWS, "")?;
        fleet.use_build("user", Build::Current);
        let new = Batch::submit(fleet, NEW, ROWS, "")?;
        Ok(Self {
            batches: [old, new],
            writers: Writers::start(fleet, WRITERS)?,
            training: Training::start(fleet)?,
            participants: Participants::start(fleet)?,
        })
    }

    /// Waits until each part of it has got further.
    pub(crate) fn goes_on(&mut self, fleet: &Fleet, stage: &str) -> Result<()> {
        self.writers.step(stage);
        for batch in &self.batches {
            let what = format!("{stage}: rows of {} are done", batch.name);
            let before = batch.until(fleet, &what, |_| true).done;
            batch.until(fleet, &what, |c| c.done > before || c.done == ROWS);
        }
        self.writers.all_write();
        self.training.step()?;
        self.participants.pass(fleet)
    }

    /// Lets it end, and checks that nothing was lost or repeated.
    pub(crate) fn finish(mut self, fleet: &mut Fleet) -> Result<()> {
        self.participants.finish(fleet)?;
        self.training.finish()?;
        let written = self.writers.stop(fleet)?;
        for (stage, pause) in &written.pauses {
            println!("{stage}: longest pause of a writer {pause:?}");
        }
        // `rollout` of the other build reads the output too.
        for (batch, build) in self.batches.iter_mut().zip([Build::Current, Build::Baseline]) {
            batch.finish(fleet)?;
            fleet.use_build("user", build);
            let out = batch.output.to_string_lossy().into_owned();
            let verify = fleet.rollout(&["verify", &batch.name, "--output", &out]);
            let verified = output(verify, PATIENCE)?;
            ensure!(verified.status.success(), "{} by {build:?}: {verified:?}", batch.name);
        }
        Ok(())
    }
}
