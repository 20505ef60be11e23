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
    #[error(
        "the trainer's incarnation is void: the trainer was lost, or the job has recovered since"
    )]
    IncarnationVoid,
    /// The generation lost work, or a part of its state.
    #[error(
        "trainer {trainer} on {host} is gone, and the others may lack its state: recover first"
    )]
    NeedsRecovery {
        /// The trainer.
        trainer: String,
        /// Its host.
        host: String,
    },
    /// A recovery of that round had other arguments, or a later one has happened.
    #[error("the generation began in round {round} with other arguments")]
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
    #[error("step {step} is too old: the last step is {last}")]
    StepStale {
        /// The step that was named.
        step: u64,
        /// The bound that it must exceed, or reach.
        last: u64,
    },
    /// The reported progress of a shard is impossible.
    #[error("shard {shard}: {samples} samples reported, expected {least} to {most}")]
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
    #[error("another rank has already reported shard {shard}")]
    ProgressTwice {
        /// The shard.
        shard: u32,
    },
    /// A trainer of the world has not joined.
    #[error("trainer {0} has not joined yet")]
    TrainerMissing(String),
    /// The caller came after the checkpoint was begun.
    #[error("the checkpoint began without this trainer")]
    NotOfWorld,
    /// No such checkpoint.
    #[error("no such checkpoint")]
    CheckpointUnknown,
    /// It is complete, given up, or being removed.
    #[error("the checkpoint is not open")]
    CheckpointClosed,
    /// The rank reported something else before.
    #[error("the rank has already reported something else")]
    ReportConflict,
    /// The rendezvous refuses new participants.
    #[error("the rendezvous is closed")]
    RendezvousClosed,
    /// Others have joined on other terms.
    #[error("the job's other participants joined with min {min} and max {max}")]
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
        "only members of round {round} of job {job} may use its store: join the rendezvous with this certificate"
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
    #[error("this generation of the barrier has another set, policy or timeout")]
    BarrierConflict,
    /// The barrier does not wait for the participant that arrived.
    #[error("the generation does not wait for {name}")]
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
