//! The samples of an epoch, shard by shard, as one trainer gets them.
//!
//! *Invariant:* a sample that was handed out is reported as used only after a step has taken it. A trainer that holds
//! something others may be waiting for does not wait for them.

use std::sync::Arc;
use std::time::Duration;

use rollout_proto::v1;

use crate::error::TrainError;
use crate::trainer::Trainer;

/// How long it waits for other trainers before it claims again anyway.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Reads an epoch of a dataset.
pub struct ShardReader {
    trainer: Arc<Trainer>,
    dataset: String,
    epoch: u64,
    /// The shard in hand, and its next sample.
    held: Option<(v1::ShardAssignment, u64)>,
    /// Shards that were read completely since the last step.
    ended: Vec<v1::ShardAssignment>,
    finished: bool,
}

impl ShardReader {
    /// Reads that epoch from now on.
    pub fn new(trainer: Arc<Trainer>, dataset: &str, epoch: u64) -> Self {
        let (dataset, held, ended) = (dataset.to_owned(), None, Vec::new());
        Self { trainer, dataset, epoch, held, ended, finished: false }
    }

    /// The next samples for one step: up to `count`, fewer if other trainers hold the rest, none at the epoch's end.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster is unreachable.
    pub async fn take(&mut self, count: usize) -> Result<Vec<u64>, TrainError> {
        let mut samples = Vec::with_capacity(count);
        while samples.len() < count && !self.finished {
            if let Some((shard, next)) = &mut self.held {
                let end = shard.end_sample.min(*next + (count - samples.len()) as u64);
                samples.extend(*next..end);
                *next = end;
                if end == shard.end_sample {
                    self.ended.extend(self.held.take().map(|held| held.0));
                }
                continue;
            }
            match self.trainer.claim(&self.dataset, self.epoch).await? {
                (Some(shard), _) => {
                    let next = shard.first_sample;
                    self.held = Some((shard, next));
                }
                (None, finished) if finished && self.ended.is_empty() => self.finished = true,
                (None, _) if samples.is_empty() && self.ended.is_empty() => {
                    // The trainers that hold them finish them or are lost: the cluster answers in both cases.
                    self.trainer.wait_for_shard(&self.dataset, self.epoch, LOOK_AGAIN).await?;
                }
                (None, _) => break,
            }
        }
        Ok(samples)
    }

    /// Whether all of the epoch is finished, so that there is nothing to take and nothing to give back.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Reports that all samples taken so far are in the trainer's state after this step.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster is unreachable.
    pub async fn stepped(&mut self, step: u64) -> Result<(), TrainError> {
        while let Some(shard) = self.ended.last() {
            self.trainer.finish((&self.dataset, self.epoch), shard, step).await?;
            self.ended.pop();
        }
        Ok(())
    }

    /// The progress in the shard in hand, for a checkpoint of the step that was reported last.
    pub fn progress(&self) -> Vec<v1::ShardProgress> {
        let held = self.held.iter().map(|(shard, next)| v1::ShardProgress {
            dataset: self.dataset.clone(),
            epoch: self.epoch,
            shard: shard.shard,
            end_sample: *next,
        });
        held.collect()
    }

    /// Gives the shard in hand back, with the samples of it that are in after `step`.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster is unreachable.
    pub async fn give_back(&mut self, step: u64) -> Result<(), TrainError> {
        self.stepped(step).await?;
        if let Some((shard, next)) = &self.held {
            self.trainer.release((&self.dataset, self.epoch), shard, *next, step).await?;
            self.held = None;
        }
        Ok(())
    }
}
