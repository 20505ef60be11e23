//! Why the ledger refuses a request of a trainer, or a request about a job.
//!
//! *Invariant:* refusals are replies: replicated, and the same at every member.

use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

/// A refusal about training jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TrainingRefusal {
    /// No such job.
    #[error("no such training job")]
    JobUnknown,
    /// It is on its way out.
    #[error("the training job is being deleted")]
    JobDeleting,
    /// It has trainers.
    #[error("the training job has trainers: they must leave first")]
    JobActive,
    /// The caller was left behind: lost, or the others recovered without it.
    #[error("the ticket is void: the trainer was lost, or the job has recovered since")]
    TicketVoid,
    /// The generation lost work, or a part of its state.
    #[error(
        "trainer {trainer} on {host} is gone, with state that the others may not have: recover first"
    )]
    Torn {
        /// The trainer.
        trainer: String,
        /// Its host.
        host: String,
    },
    /// A recovery of that round had other arguments, or a later one has happened.
    #[error("the lineage's round is {round}, and it was begun otherwise")]
    RoundConflict {
        /// The present one.
        round: u64,
    },
    /// No such dataset.
    #[error("no such dataset")]
    DatasetUnknown,
    /// Another trainer has the shard, or it was finished under another claim.
    #[error("the claim is not the shard's present one")]
    ClaimStale,
    /// A complete checkpoint, or an earlier claim, has that step.
    #[error("step {step} comes too late: {last} is the last one that counts")]
    StepStale {
        /// The step that was named.
        step: u64,
        /// The bound that it must exceed, or reach.
        last: u64,
    },
    /// The reported progress of a shard is impossible.
    #[error("{samples} samples of shard {shard} cannot be in at that step: {least} to {most} can")]
    Progress {
        /// The shard.
        shard: u32,
        /// The reported number.
        samples: u64,
        /// The fewest that can be.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Two ranks speak of one shard.
    #[error("another rank reported shard {shard} already")]
    ProgressTwice {
        /// The shard.
        shard: u32,
    },
    /// A trainer of the world has not joined.
    #[error("trainer {0} has not joined yet")]
    TrainerMissing(String),
    /// The caller came after the checkpoint was begun.
    #[error("the checkpoint was begun without this trainer")]
    NotOfWorld,
    /// No such checkpoint.
    #[error("no such checkpoint")]
    CheckpointUnknown,
    /// It is complete, given up, or being removed.
    #[error("the checkpoint is not open")]
    CheckpointClosed,
    /// The rank reported something else before.
    #[error("the rank has reported something else already")]
    ReportConflict,
}

impl From<TrainingRefusal> for Rejection {
    fn from(why: TrainingRefusal) -> Self {
        Self::Training(why)
    }
}
