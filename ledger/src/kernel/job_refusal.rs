//! Why the ledger refuses a request about a training job: of a participant, a trainer, or a person.
//!
//! *Invariant:* refusals are replies: replicated, and the same at every member. Add variants at the end: the order is
//! stored. Absent: how those of participants are stored (`stored_rejection.rs`).

use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

/// A refusal about training jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JobRefusal {
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
    /// The rendezvous refuses new participants.
    #[error("the rendezvous is closed")]
    RendezvousClosed,
    /// Others have joined on other terms.
    #[error("the others of the job have joined with min {min} and max {max}")]
    RendezvousConflict {
        /// The others' value.
        min: u32,
        /// The others' value.
        max: u32,
    },
    /// The incarnation is void.
    #[error("no such participant of the job: it was lost, left or was replaced")]
    ParticipantUnknown,
    /// Only its members may use the store of a round.
    #[error(
        "the store of round {round} of job {job} is for the round's members, and the caller is none: join the rendezvous with this certificate"
    )]
    NotOfRound {
        /// The round.
        round: u64,
        /// The job.
        job: String,
    },
    /// The barrier or this generation of it does not exist.
    #[error("no such barrier")]
    BarrierUnknown,
    /// The first arrival gave another definition.
    #[error("others of this generation named another set, policy or time-out")]
    BarrierConflict,
    /// The barrier does not wait for the participant that arrived.
    #[error("{name} is not among those that the generation waits for")]
    NotOfBarrier {
        /// The name.
        name: String,
    },
    /// The barrier is elsewhere.
    #[error("the barrier is at generation {latest}, which {state}")]
    BarrierGeneration {
        /// Its latest generation.
        latest: u64,
        /// `waits` or `has ended`.
        state: String,
    },
    /// A dataset of that name is something else.
    #[error("a dataset of that name exists with another spec")]
    DatasetConflict,
    /// A job reads it, or a checkpoint counts its epochs.
    #[error("a training job reads the dataset: delete the job first")]
    DatasetInUse,
}

impl From<JobRefusal> for Rejection {
    fn from(why: JobRefusal) -> Self {
        Self::Job(why)
    }
}
