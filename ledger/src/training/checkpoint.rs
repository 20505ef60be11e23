//! Checkpoints of a job: what each rank reported, and which samples of the epochs they contain.
//!
//! *Invariant:* a checkpoint is complete when every rank of the world that began it has reported, and not before. The
//! last complete checkpoint of a generation is its base, and the base defines which samples are in: what it has sealed
//! is exactly what the shards say they have sealed. A checkpoint that is given up never becomes complete. Its number
//! is never used again.
//!
//! Absent: bytes. A rank's report names a manifest, which names its objects.

use crate::kernel::id::DatasetNo;
use crate::kernel::rows::Rows;
use crate::machine::command::BlobRef;
use crate::machine::version_gate::came_with;
use crate::training::dataset_epoch::SealedShards;
use crate::training::job::JobName;
use crate::training::state::{TrainerRef, Training};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The operations on checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointOp {
    /// Begins the checkpoint of a step, or finds it.
    Begin {
        /// The trainer.
        by: TrainerRef,
        /// The training step whose state it holds.
        step: u64,
        /// Its human-readable label; the first non-empty one counts.
        label: String,
    },
    /// The caller's rank is durable.
    Report {
        /// The trainer.
        by: TrainerRef,
        /// The checkpoint's number within its job, from 1.
        number: u32,
        /// The rank's report.
        report: Box<RankReport>,
        /// For each unfinished shard that it held then, how many samples were in.
        progress: Vec<ShardProgress>,
    },
    /// Gives up an incomplete checkpoint.
    Abort {
        /// The job.
        job: JobName,
        /// The checkpoint's number within its job, from 1.
        number: u32,
    },
    /// Sets how many complete checkpoints are kept, besides labeled ones and the base.
    Retain {
        /// The job.
        job: JobName,
        /// How many of the newest to keep; 0: all.
        keep_last: u32,
        /// Only this once.
        now: bool,
    },
    /// Sets its human-readable label.
    Label {
        /// The job.
        job: JobName,
        /// The checkpoint's number within its job, from 1.
        number: u32,
        /// Empty: nothing.
        label: String,
    },
    /// The objects of a deleted checkpoint are gone; this removes the checkpoint.
    Forget {
        /// The job.
        job: JobName,
        /// The checkpoint's number within its job, from 1.
        number: u32,
    },
}

/// What one rank has made durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// The object that names all others.
    pub manifest: BlobRef,
    /// Bytes of those others.
    pub bytes: u64,
    /// How many they are.
    pub objects: u32,
}

/// How far a rank was in a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardProgress {
    /// The dataset's name.
    pub dataset: String,
    /// The epoch.
    pub epoch: u64,
    /// The shard.
    pub shard: u32,
    /// How many of its samples, from its beginning, are in.
    pub samples: u32,
}

/// Whether it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointState {
    /// Not all ranks have reported.
    #[default]
    Open,
    /// All have.
    Complete,
    /// Given up or pruned: its objects are being removed.
    Going,
}

/// One checkpoint: one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) generation: u32,
    /// The base that its generation had before it was complete; 0: none.
    pub(crate) parent: u32,
    pub(crate) step: u64,
    pub(crate) label: String,
    pub(crate) state: CheckpointState,
    /// The trainers by rank.
    pub(crate) world: Vec<String>,
    pub(crate) reports: BTreeMap<u32, RankReport>,
    /// While it is open: samples of the shards that ranks held, by shard.
    pub(crate) progress: BTreeMap<(DatasetNo, u64), BTreeMap<u32, u32>>,
    /// Once it is complete.
    pub(crate) sealed: Option<Sealed>,
    pub(crate) begun_wall_ms: u64,
    /// 0: it is not complete.
    pub(crate) completed_wall_ms: u64,
}

/// The part of the epochs that a complete checkpoint contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sealed {
    /// Whole epochs.
    pub(crate) done: BTreeMap<DatasetNo, Rows>,
    /// The open epochs of its datasets.
    pub(crate) dataset_epochs: BTreeMap<(DatasetNo, u64), SealedShards>,
}

impl Checkpoint {
    pub(crate) fn is_open(&self) -> bool {
        self.state == CheckpointState::Open
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state == CheckpointState::Complete
    }

    /// The trainer's rank in it.
    pub(crate) fn rank_of(&self, trainer: &str) -> Option<u32> {
        self.world.iter().position(|name| name == trainer).map(|rank| rank as u32)
    }

    /// Whether it cannot be complete without that trainer.
    pub(crate) fn waits_for(&self, trainer: &str) -> bool {
        let rank = self.rank_of(trainer);
        self.is_open() && rank.is_some_and(|rank| !self.reports.contains_key(&rank))
    }

    /// Whether it contains samples of a dataset.
    pub(crate) fn holds(&self, no: DatasetNo) -> bool {
        let sealed = self.sealed.as_ref();
        sealed.is_some_and(|s| {
            s.done.contains_key(&no) || s.dataset_epochs.keys().any(|key| key.0 == no)
        })
    }
}

impl Training {
    /// The furthest progress in a shard that ranks have reported to an open checkpoint: its step and the samples.
    pub(crate) fn progress_of(
        &self,
        dataset_epoch: (DatasetNo, u64),
        shard: u32,
    ) -> Option<(u64, u32)> {
        let open = self.checkpoints.values().filter(|c| c.is_open());
        let said =
            open.filter_map(|c| Some((c.step, *c.progress.get(&dataset_epoch)?.get(&shard)?)));
        said.max_by_key(|&(step, samples)| (samples, step))
    }

    /// The complete checkpoints to delete if the newest `keep_last` are kept, ascending.
    pub(crate) fn prunable(&self, keep_last: u32) -> Vec<u32> {
        if keep_last == 0 {
            return Vec::new();
        }
        let complete = self.checkpoints.iter().rev().filter(|(_, c)| c.is_complete());
        let old = complete.skip(keep_last as usize);
        let goes =
            |entry: &(&u32, &Checkpoint)| *entry.0 != self.head.base && entry.1.label.is_empty();
        let mut numbers: Vec<u32> = old.filter(goes).map(|(number, _)| *number).collect();
        numbers.reverse();
        numbers
    }

    /// Checks the invariants of checkpoints.
    pub(crate) fn check_checkpoints(&self) -> Result<(), String> {
        let head = &self.head;
        let base = self.checkpoints.get(&head.base);
        if head.base != 0 && !base.is_some_and(|c| c.is_complete() && c.step == head.step) {
            return Err(format!("its base is {}, which is {base:?}", head.base));
        }
        let sealed = base.and_then(|c| c.sealed.clone()).unwrap_or_default();
        if sealed.done != head.done {
            return Err(format!("done are {:?}, its base holds {:?}", head.done, sealed.done));
        }
        for (key, dataset_epoch) in &self.dataset_epochs {
            let held = sealed.dataset_epochs.get(key);
            let held = held.map(|held| (held.whole.as_slice(), held.part.as_slice()));
            for (number, shard) in (0u32..).zip(&dataset_epoch.shards) {
                let (whole, part) = held.unwrap_or_default();
                let whole =
                    whole.get(number as usize / 8).is_some_and(|b| b >> (number % 8) & 1 == 1);
                let part = part.iter().find(|p| p.0 == number).map_or(0, |p| p.1);
                if !whole && part != shard.sealed {
                    return Err(format!("shard {number} of {key:?} is sealed at {}", shard.sealed));
                }
            }
        }
        for (number, checkpoint) in &self.checkpoints {
            checkpoint.check(head, *number).map_err(|why| format!("checkpoint {number}: {why}"))?;
        }
        Ok(())
    }
}

impl Checkpoint {
    fn check(
        &self,
        head: &crate::training::state::TrainingHead,
        number: u32,
    ) -> Result<(), String> {
        if number > head.checkpoints_made {
            return Err("it was never made".into());
        }
        if (self.state == CheckpointState::Complete) != self.sealed.is_some() {
            return Err(format!("{:?}, and what it sealed is {:?}", self.state, self.sealed));
        }
        let reported = self.reports.len() == self.world.len();
        match self.state {
            CheckpointState::Open if reported => Err("all have reported, and it is open".into()),
            CheckpointState::Open if self.generation != head.generation => {
                Err(format!("it is open in lineage {}", self.generation))
            }
            CheckpointState::Open if head.base != 0 && self.step <= head.step => {
                Err(format!("it is open at step {}, before the base", self.step))
            }
            CheckpointState::Complete if !reported => Err("it is complete without all".into()),
            _ => Ok(()),
        }
    }
}

came_with!(CheckpointOp, CHECKPOINTS, {
    1: CheckpointOp::Begin { .. } | CheckpointOp::Report { .. } | CheckpointOp::Abort { .. }
        | CheckpointOp::Retain { .. } | CheckpointOp::Label { .. } | CheckpointOp::Forget { .. },
});
