//! Owns: this process as a trainer of a job: the shards that it claims, and its part of the job's checkpoints.
//!
//! *Invariant:* native threads keep it alive, whatever Python does, until it leaves or is dropped. If Python stops
//! waiting for a claim, the claim is not lost: the next claim of that epoch gets it. A part of a checkpoint is
//! reported once it is durable, whether or not Python waits for it.
//! Absent: samples, and how far the loop is in a shard; the package has both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyLookupError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rollout_proto::{Client, v1};
use rollout_training::{
    CheckpointWriter, Recovered, Recovery, TrainError, TrainerOptions, restore_rank,
};
use tokio::sync::watch;

use crate::checkpoint::{Outcome, PyFiles, ended, files, handed_over, limit};
use crate::error::raised_training;
use crate::wait::{FOR_EVER, runtime, wait_or_raise};

/// The pause between two reports of a durable part while the cluster has no leader.
const PAUSE: Duration = Duration::from_millis(200);

/// A shard that the trainer holds.
#[pyclass(frozen, get_all)]
pub(crate) struct Claim {
    dataset: String,
    epoch: u64,
    shard: u32,
    token: u64,
    first_sample: u64,
    end_sample: u64,
    shard_first_sample: u64,
    uri: String,
    format: String,
    seed: u64,
}

impl Claim {
    fn new(dataset: String, epoch: u64, shard: v1::ShardAssignment) -> Self {
        Self {
            dataset,
            epoch,
            shard: shard.shard,
            token: shard.token,
            first_sample: shard.first_sample,
            end_sample: shard.end_sample,
            shard_first_sample: shard.shard_first_sample,
            uri: shard.uri,
            format: shard.format,
            seed: shard.seed,
        }
    }

    fn named(&self) -> ((&str, u64), v1::ShardAssignment) {
        let (shard, token) = (self.shard, self.token);
        let named = v1::ShardAssignment { shard, token, ..v1::ShardAssignment::default() };
        ((&self.dataset, self.epoch), named)
    }
}

/// A trainer in a lineage of its job.
#[pyclass(frozen)]
pub struct Trainer {
    trainer: Arc<rollout_training::Trainer>,
    writer: CheckpointWriter,
    recovered: Recovered,
}

impl Trainer {
    /// Joins the present lineage, or recovers.
    pub(crate) fn start(
        py: Python<'_>,
        client: &Client,
        options: TrainerOptions,
        recovery: Option<Recovery>,
        patience: Duration,
    ) -> PyResult<Self> {
        let client = client.clone();
        let begun = async {
            match recovery {
                Some(recovery) => {
                    rollout_training::Trainer::recover(client, &options, &recovery).await
                }
                None => rollout_training::Trainer::join(client, &options)
                    .await
                    .map(|trainer| (trainer, Recovered::default())),
            }
        };
        let begun = wait_or_raise(py, patience, "the cluster does not answer", begun)?;
        let (trainer, recovered) = begun.map_err(|error| raised_training(&error))?;
        let writer = CheckpointWriter::open(trainer.store_url());
        let writer = writer.map_err(|error| raised_training(&error))?;
        Ok(Self { trainer: Arc::new(trainer), writer, recovered })
    }

    /// Ends when the trainer's own patience does.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Future<Output = Result<T, TrainError>> + Send,
    ) -> PyResult<T> {
        let answer = wait_or_raise(py, FOR_EVER, "the cluster does not answer", work)?;
        answer.map_err(|error| raised_training(&error))
    }
}

#[pymethods]
impl Trainer {
    /// The lineage as it was when this trainer joined: its number, its round, its last complete checkpoint (0: none),
    /// that checkpoint's step, and all trainers by rank.
    #[getter]
    fn lineage(&self) -> (u32, u64, u32, u64, Vec<String>) {
        let lineage = self.trainer.lineage();
        let (number, round) = (lineage.number, lineage.round);
        (number, round, lineage.checkpoint, lineage.step, lineage.trainers.clone())
    }

    /// The checkpoint that was recovered from: its number, its step, and its writers by rank; None if there was none.
    #[getter]
    fn checkpoint(&self) -> Option<(u32, u64, Vec<String>)> {
        let checkpoint = self.recovered.checkpoint.as_ref()?;
        let ranks = checkpoint.ranks.iter().map(|rank| rank.trainer.clone()).collect();
        Some((checkpoint.number, checkpoint.step, ranks))
    }

    /// The epochs in progress at that time: dataset, epoch, and the shards that this trainer gets first.
    #[getter]
    fn assigned(&self) -> Vec<(String, u64, Vec<u32>)> {
        let passes = self.recovered.passes.iter();
        let assigned = passes.filter_map(|assigned| {
            let pass = assigned.pass.as_ref()?;
            Some((pass.dataset.clone(), pass.epoch, assigned.shards.clone()))
        });
        assigned.collect()
    }

    /// Whether the cluster has answered that the trainer must recover.
    #[getter]
    fn lost(&self) -> bool {
        self.trainer.is_lost()
    }

    /// The next shard of an epoch, once there is one; None if the epoch is finished. TimeoutError: other trainers hold
    /// the rest.
    fn claim(
        &self,
        py: Python<'_>,
        dataset: &str,
        epoch: u64,
        timeout_ms: u64,
    ) -> PyResult<Option<Claim>> {
        let until = Instant::now() + Duration::from_millis(timeout_ms);
        loop {
            let (shard, finished) = self.ask(py, self.trainer.claim(dataset, epoch))?;
            if let Some(shard) = shard {
                return Ok(Some(Claim::new(dataset.to_owned(), epoch, shard)));
            }
            if finished {
                return Ok(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what =
                    format!("wait timeout after {timeout_ms}ms: other trainers hold the shards");
                return Err(PyTimeoutError::new_err(what));
            }
            self.ask(py, self.trainer.wait_for_shard(dataset, epoch, left))?;
        }
    }

    /// Reports that all samples of a claim are in the job's state after `step`. Returns True if this finishes the
    /// epoch.
    fn finish(&self, py: Python<'_>, claim: &Claim, step: u64) -> PyResult<bool> {
        let (pass, shard) = claim.named();
        self.ask(py, self.trainer.finish(pass, &shard, step))
    }

    /// Returns a shard whose samples before `end_sample` are in the job's state after `step`.
    fn release(&self, py: Python<'_>, claim: &Claim, end_sample: u64, step: u64) -> PyResult<()> {
        let (pass, shard) = claim.named();
        self.ask(py, self.trainer.release(pass, &shard, end_sample, step))
    }

    /// Begins the checkpoint of a step, or finds it, and writes and reports this rank's files, given as (name, bytes),
    /// in the background. `progress` lists, for each shard in hand: dataset, epoch, number, and one past the last
    /// sample that is in. Waits up to `timeout_ms` for ranks that have not joined yet.
    fn save(
        &self,
        py: Python<'_>,
        step: u64,
        label: &str,
        files: PyFiles,
        progress: Vec<(String, u64, u32, u64)>,
        timeout_ms: u64,
    ) -> PyResult<Saving> {
        let within = Duration::from_millis(timeout_ms);
        let checkpoint = self.ask(py, self.trainer.begin_checkpoint(step, label, within))?;
        let progress = progress.into_iter().map(|(dataset, epoch, shard, end_sample)| {
            v1::ShardProgress { dataset, epoch, shard, end_sample }
        });
        let (tell, outcomes) = watch::channel(None);
        let part = Part {
            trainer: self.trainer.clone(),
            writer: self.writer.clone(),
            checkpoint: checkpoint.clone(),
            progress: progress.collect(),
        };
        let files = self::files(files);
        runtime()?.spawn(async move {
            let reported = part.write(files).await;
            // There may be no caller left.
            tell.send_replace(Some(reported.map_err(Arc::new)));
        });
        let (trainer, number) = (self.trainer.clone(), checkpoint.number);
        Ok(Saving { trainer, number, step, outcomes })
    }

    /// The files of a rank of the checkpoint that was recovered from, every byte compared with what was reported.
    /// Raises OSError if anything is missing or differs from what was written, ConnectionError if the store does not
    /// answer for ten minutes, and LookupError if the checkpoint has no such rank.
    fn restore<'py>(
        &self,
        py: Python<'py>,
        rank: usize,
    ) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let checkpoint = self.recovered.checkpoint.as_ref();
        let checkpoint = checkpoint
            .ok_or_else(|| PyValueError::new_err("there is no checkpoint: begin at step 0"))?;
        let (number, ranks) = (checkpoint.number, checkpoint.ranks.len());
        if rank >= ranks {
            let what = format!(
                "checkpoint {number} is of a world of {ranks}, and has nothing of rank {rank}: restore \
                 rank, rank + world_size, ... below {ranks}; there may be none"
            );
            return Err(PyLookupError::new_err(what));
        }
        let restored = self.ask(py, restore_rank(checkpoint, rank))?;
        Ok(handed_over(py, &restored.files))
    }

    /// Leaves the job; its work stays. Leaving with a shard in hand counts as being lost.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, self.trainer.leave())
    }

    /// Stops the keep-alives without a message: the trainer is lost, as if its process had died.
    fn abandon(&self) {
        self.trainer.abandon();
    }
}

/// A rank's part of a checkpoint.
struct Part {
    trainer: Arc<rollout_training::Trainer>,
    writer: CheckpointWriter,
    checkpoint: v1::Checkpoint,
    progress: Vec<v1::ShardProgress>,
}

impl Part {
    /// Writes it, and reports it until a leader has answered.
    async fn write(self, files: rollout_training::Files) -> Result<(), TrainError> {
        let number = self.checkpoint.number;
        let writing = self.writer.begin(&self.checkpoint, self.trainer.name(), files);
        let Some(written) = self.trainer.durable(number, writing).await? else { return Ok(()) };
        loop {
            let progress = self.progress.clone();
            match self.trainer.report_checkpoint(number, &written, progress).await {
                Ok(_) => return Ok(()),
                // A later checkpoint was complete first, or this one was aborted, so this part is no longer needed.
                Err(error) if error.checkpoint_is_over() => return Ok(()),
                Err(error) if error.may_pass() && !self.trainer.is_lost() => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A checkpoint in progress.
#[pyclass(frozen)]
pub struct Saving {
    trainer: Arc<rollout_training::Trainer>,
    #[pyo3(get)]
    number: u32,
    #[pyo3(get)]
    step: u64,
    outcomes: watch::Receiver<Outcome<()>>,
}

#[pymethods]
impl Saving {
    /// Whether this rank's part is durable and reported, or never will be: `reported` then gives the reason.
    fn done(&self) -> bool {
        self.outcomes.borrow().is_some()
    }

    /// Waits until this rank's part is durable and reported. Raises OSError if the store refused, and TimeoutError
    /// after `timeout_s` if that is not None.
    #[pyo3(signature = (timeout_s = None))]
    fn reported(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        let what = "the rank's part is not reported yet";
        wait_or_raise(py, limit(timeout_s), what, ended(self.outcomes.clone()))?
    }

    /// Waits until all ranks have reported. Returns False if the checkpoint will never be complete, because a later
    /// one was complete first or it was aborted, or if it was complete and is pruned by now.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let within = limit(timeout_s);
        let complete = async {
            ended(self.outcomes.clone()).await?;
            let complete = self.trainer.checkpoint_complete(self.number, FOR_EVER).await;
            complete.map_err(|error| raised_training(&error))
        };
        let what = format!("checkpoint {} is not complete yet", self.number);
        Ok(wait_or_raise(py, within, &what, complete)?? == Some(true))
    }
}
