//! The operations of trainers on shards: claim, finish, give back.
//!
//! *Invariant:* a shard has one holder at a time, and only that holder is heard about it. Within a generation every
//! sample of an epoch is finished once; samples that a complete checkpoint contains are not changed afterward.

use crate::kernel::id::{Attempt, DatasetNo, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::seeded::{Bug, seeded};
use crate::machine::version_gate::came_with;
use crate::training::dataset::Datasets;
use crate::training::dataset_epoch::{DatasetEpoch, Mark, ShardClaim, ShardState, record_of};
use crate::training::job::Jobs;
use crate::training::state::{TrainerRef, Training};
use serde::{Deserialize, Serialize};

/// The operations of trainers on shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardOp {
    /// Takes one.
    Claim {
        /// The trainer.
        by: TrainerRef,
        /// The dataset, in the job's namespace.
        dataset: String,
        /// The epoch of the dataset.
        epoch: u64,
    },
    /// All of it is in the job's state.
    Finish {
        /// The trainer.
        by: TrainerRef,
        /// Which.
        shard: ShardRef,
        /// The training step after which its samples are in.
        step: u64,
    },
    /// Gives it back.
    Release {
        /// The trainer.
        by: TrainerRef,
        /// Which.
        shard: ShardRef,
        /// How many of its samples, from its beginning, are in the job's state.
        samples: u32,
        /// The training step after which its samples are in.
        step: u64,
    },
}

/// A claimed shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRef {
    /// The dataset's name.
    pub dataset: String,
    /// The epoch.
    pub epoch: u64,
    /// The shard's number.
    pub number: u32,
    /// The claim.
    pub token: Attempt,
}

came_with!(ShardOp, SHARDS, {
    1: ShardOp::Claim { .. } | ShardOp::Finish { .. } | ShardOp::Release { .. },
});

impl Operation for ShardOp {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        match self {
            // All shards of a job.
            Self::Claim { .. } => Cost::GrowsWithState,
            Self::Finish { .. } | Self::Release { .. } => Cost::Bounded,
        }
    }

    fn grows(&self) -> bool {
        match self {
            Self::Claim { .. } => true,
            Self::Finish { .. } | Self::Release { .. } => false,
        }
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        match self {
            Self::Claim { by, .. } | Self::Finish { by, .. } | Self::Release { by, .. } => {
                Subject::Namespace(&by.job.namespace)
            }
        }
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.shard_op(ctx, self)
    }
}

impl Ledger {
    fn shard_op(&mut self, ctx: &mut Context, op: ShardOp) -> Result<Reply, Rejection> {
        let (jobs, datasets) = (&mut self.jobs, &self.datasets);
        match op {
            ShardOp::Claim { by, dataset, epoch } => {
                jobs.claim_shard(datasets, ctx, &by, &dataset, epoch)
            }
            ShardOp::Finish { by, shard, step } => {
                jobs.end_claim(datasets, &by, &shard, None, step)
            }
            ShardOp::Release { by, shard, samples, step } => {
                jobs.end_claim(datasets, &by, &shard, Some(samples), step)
            }
        }
    }
}

/// The dataset of that name in the namespace of the trainer's job.
fn dataset_of(datasets: &Datasets, by: &TrainerRef, name: &str) -> Result<DatasetNo, Rejection> {
    datasets.no(&by.job.namespace, name).ok_or(JobRefusal::DatasetUnknown.into())
}

impl Jobs {
    fn claim_shard(
        &mut self,
        datasets: &Datasets,
        ctx: &mut Context,
        by: &TrainerRef,
        dataset: &str,
        epoch: u64,
    ) -> Result<Reply, Rejection> {
        let no = self.heard(by)?;
        let dataset = dataset_of(datasets, by, dataset)?;
        let held = self.table.training(no).map_or(0, |t| t.held_by(&by.trainer).count());
        if held >= limits::TRAINER_SHARDS_MAX {
            let what = "shards held by a trainer".into();
            return Err(Rejection::Limit { what, max: limits::TRAINER_SHARDS_MAX as u64 });
        }
        self.open_dataset_epoch(datasets, no, (dataset, epoch))?;
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        let Some(dataset_epoch) = training.dataset_epochs.get_mut(&(dataset, epoch)) else {
            return Ok(Reply::NoShard { finished: true });
        };
        let next = dataset_epoch.next_for(&by.trainer);
        let next = if seeded(Bug::ShardGivenTwice) {
            let others = dataset_epoch.held.iter().filter(|held| *held.0 != by.trainer);
            next.or_else(|| others.flat_map(|held| held.1).next().copied())
        } else {
            next
        };
        let nothing = Reply::NoShard { finished: dataset_epoch.is_finished() };
        // A command that has used up its grants grants nothing more; the trainer asks again.
        let Some((number, token)) = next.and_then(|next| Some((next, ctx.attempt()?))) else {
            return Ok(nothing);
        };
        let trainer = by.trainer.clone();
        let claimed = ShardState::Claimed(Box::new(ShardClaim { trainer, token }));
        dataset_epoch.set_state(number, claimed, &training.ring);
        let from = dataset_epoch.shards.get(number as usize).map_or(0, |shard| shard.done());
        self.dirty_trainings.mark_shards([(no, dataset, epoch, record_of(number))]);
        Ok(Reply::Shard { number, token, from })
    }

    /// Opens the epoch, unless it is open or done.
    fn open_dataset_epoch(
        &mut self,
        datasets: &Datasets,
        no: TrainingNo,
        (dataset, epoch): (DatasetNo, u64),
    ) -> Result<(), Rejection> {
        if epoch >= limits::EPOCHS_MAX {
            let what = "epochs of a dataset".into();
            return Err(Rejection::Limit { what, max: limits::EPOCHS_MAX });
        }
        let Some(training) = self.table.training_mut(no) else { return Ok(()) };
        let done = training.head.done.get(&dataset).is_some_and(|done| done.contains(epoch));
        if done || training.dataset_epochs.contains_key(&(dataset, epoch)) {
            return Ok(());
        }
        let Some(spec) = datasets.get(dataset) else { return Ok(()) };
        if training.dataset_epochs.len() >= limits::DATASET_EPOCHS_MAX {
            let what = "epochs of one job under way".into();
            return Err(Rejection::Limit { what, max: limits::DATASET_EPOCHS_MAX as u64 });
        }
        let open = self.shards_open + u64::from(spec.spec.shards());
        if open > limits::SHARDS_OPEN_MAX {
            let what = "shards of epochs under way".into();
            return Err(Rejection::Limit { what, max: limits::SHARDS_OPEN_MAX });
        }
        let dataset_epoch = DatasetEpoch::open(spec, epoch, &training.ring);
        self.shards_open = open;
        let records = (0..dataset_epoch.records()).map(|record| (no, dataset, epoch, record));
        self.dirty_trainings.mark_shards(records);
        training.dataset_epochs.insert((dataset, epoch), dataset_epoch);
        Ok(())
    }

    /// Ends a claim: the holder has all of its shard, or this many samples of it, in the job's state.
    fn end_claim(
        &mut self,
        datasets: &Datasets,
        by: &TrainerRef,
        at: &ShardRef,
        samples: Option<u32>,
        step: u64,
    ) -> Result<Reply, Rejection> {
        let no = self.heard(by)?;
        let dataset = dataset_of(datasets, by, &at.dataset)?;
        let key = (dataset, at.epoch);
        let len = datasets.get(dataset).map_or(0, |d| d.spec.shard_len(at.number));
        let Some(training) = self.table.training(no) else { return Ok(Reply::Ok) };
        let Some(dataset_epoch) = training.dataset_epochs.get(&key) else {
            let done = training.head.done.get(&dataset).is_some_and(|d| d.contains(at.epoch));
            return match done && samples.is_none() {
                true => Ok(Reply::ShardEnded { epoch_finished: true }),
                false => Err(JobRefusal::ClaimStale.into()),
            };
        };
        let shard = dataset_epoch.shards.get(at.number as usize).ok_or(JobRefusal::ClaimStale)?;
        match &shard.state {
            ShardState::Claimed(claim) if claim.token == at.token => {
                if claim.trainer != by.trainer {
                    return Err(JobRefusal::ClaimStale.into());
                }
            }
            ShardState::Finished { token } if *token == Some(at.token) && samples.is_none() => {
                return Ok(Reply::ShardEnded { epoch_finished: dataset_epoch.is_finished() });
            }
            _ => return Err(JobRefusal::ClaimStale.into()),
        }
        let samples = samples.unwrap_or(len);
        let known = training.progress_of(key, at.number).map_or(0, |known| known.1);
        let least = shard.done().max(known);
        if samples < least || samples > len {
            let (shard, samples) = (at.number, u64::from(samples));
            return Err(JobRefusal::Progress { shard, samples, least, most: len }.into());
        }
        let moved = samples > shard.done();
        if moved {
            let before = shard.marks.last().map_or(0, |mark| mark.step);
            training.check_step(&by.trainer, step, before)?;
        }
        self.mark(no, key, at, (moved, Mark { step, samples }), len, &by.trainer)
    }

    fn mark(
        &mut self,
        no: TrainingNo,
        key: (DatasetNo, u64),
        at: &ShardRef,
        (moved, mark): (bool, Mark),
        len: u32,
        by: &str,
    ) -> Result<Reply, Rejection> {
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        if let Some(trainer) = training.trainers.get_mut(by).filter(|_| moved) {
            trainer.contributed = trainer.contributed.max(Some(mark.step));
            self.dirty_trainings.mark_trainer(no, by.to_owned());
        }
        let Some(dataset_epoch) = training.dataset_epochs.get_mut(&key) else {
            return Ok(Reply::Ok);
        };
        if let Some(shard) = dataset_epoch.shards.get_mut(at.number as usize).filter(|_| moved) {
            shard.marks.push(mark);
        }
        let state = match mark.samples == len {
            true => ShardState::Finished { token: Some(at.token) },
            false => ShardState::Free,
        };
        dataset_epoch.set_state(at.number, state, &training.ring);
        self.dirty_trainings.mark_shards([(no, key.0, key.1, record_of(at.number))]);
        Ok(Reply::ShardEnded { epoch_finished: dataset_epoch.is_finished() })
    }
}

impl Training {
    /// Refuses a step before a checkpoint's, or before the shard's last mark.
    pub(crate) fn check_step(&self, trainer: &str, step: u64, mark: u64) -> Result<(), Rejection> {
        let sealed = (self.head.base != 0).then_some(self.head.step);
        let after = self.trainers.get(trainer).and_then(|trainer| trainer.after);
        if let Some(last) = sealed.max(after).filter(|last| step <= *last) {
            return Err(JobRefusal::StepStale { step, last }.into());
        }
        match step < mark {
            true => Err(JobRefusal::StepStale { step, last: mark }.into()),
            false => Ok(()),
        }
    }
}
