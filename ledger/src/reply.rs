//! What `apply` answers: one [`Reply`] an operation, by position.
//!
//! *Invariant:* replies are part of the replicated computation. They enter the digest chain, so
//! a member that answers otherwise is found out.

use crate::codec;
use crate::command::{BlobRef, HeldRows};
use crate::id::{Attempt, LedgerMs, RunNo, SegmentNo, SessionId, SlotRef};
use crate::rows::Rows;
use crate::training_refusal::TrainingRefusal;
use serde::{Deserialize, Serialize};

/// The answer to one operation, or to a command without operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, and there is nothing to say of it.
    Ok,
    /// Refused, and nothing changed.
    Rejected(Rejection),
    /// A client session is open.
    ClientOpened {
        /// Its id.
        session: SessionId,
    },
    /// A run is there.
    Run {
        /// Its number.
        run: RunNo,
        /// Whether this operation made it.
        created: bool,
        /// Segments that it has.
        segments: u32,
        /// Rows that it has.
        rows: u64,
        /// Whether its input is closed.
        input_closed: bool,
        /// Where its objects are, within its namespace.
        folder: String,
    },
    /// A worker is registered.
    Registered {
        /// Its session.
        session: SessionId,
        /// Whether it is the one that it asked for.
        resumed: bool,
        /// What of its claims it has lost meanwhile.
        dropped: Vec<HeldRows>,
    },
    /// Rows for a slot; none when nothing fits.
    Granted(Vec<GrantedRows>),
    /// Results, failures or returned rows were taken, but for these.
    Taken {
        /// Rows that were not this attempt's to speak of.
        refused: Vec<RefusedRows>,
    },
    /// An epoch is open.
    EpochOpened {
        /// Ledger time, from which the leader counts on.
        at: LedgerMs,
    },
    /// Rows went from one slot to another.
    Stolen {
        /// What the thief got.
        granted: Vec<GrantedRows>,
        /// What was not the victim's to give.
        refused: Vec<RefusedRows>,
    },
    /// Failed rows are pending again.
    Retried {
        /// How many.
        rows: u64,
    },
    /// Results were taken, and others ran some of these rows too.
    Won {
        /// Rows that were not this attempt's to speak of.
        refused: Vec<RefusedRows>,
        /// Who may stop.
        outrun: Vec<Outrun>,
    },
    /// What a shared store answered, by position.
    Store(Vec<StoreAnswer>),
    /// A participant takes part in a job.
    Participant {
        /// Under this ticket.
        ticket: SessionId,
        /// Silent for so long, it is lost.
        keep_alive_ms: u64,
    },
    /// A trainer is in a job's lineage.
    Joined {
        /// Its ticket.
        ticket: SessionId,
        /// The lineage.
        lineage: u32,
    },
    /// A trainer that was there before under this name is lost, and the lineage torn by that.
    Torn {
        /// Who.
        trainer: String,
        /// Where.
        host: String,
    },
    /// Trainers have their time anew, but for these.
    Kept {
        /// The trainers whose tickets are void.
        lost: Vec<String>,
    },
    /// A shard for a trainer.
    Shard {
        /// Its number.
        number: u32,
        /// The claim.
        token: Attempt,
        /// How many of its samples are in the job's state already.
        from: u32,
    },
    /// No shard is free.
    NoShard {
        /// For all are finished.
        finished: bool,
    },
    /// A claim has ended.
    ShardEnded {
        /// Whether every shard of the epoch is finished now.
        epoch_finished: bool,
    },
    /// A checkpoint is there.
    Checkpoint {
        /// Its number.
        number: u32,
        /// The caller's rank in it.
        rank: u32,
    },
    /// A rank's report was taken.
    Reported {
        /// Whether the checkpoint is complete.
        complete: bool,
    },
    /// Checkpoints go.
    Pruned {
        /// Which.
        numbers: Vec<u32>,
    },
}

impl Reply {
    /// The bytes that the image has of a reply that is remembered, for the tests that keep them.
    #[doc(hidden)]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads them; `None` for anything else.
    #[doc(hidden)]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes)
    }

    /// Bytes of a store's values in it. All else that is answered to a request is small.
    pub(crate) fn value_bytes(&self) -> u64 {
        let Self::Store(answers) = self else { return 0 };
        let values = answers.iter().map(|answer| match answer {
            StoreAnswer::Value(Some(value)) => value.len() as u64,
            _ => 0,
        });
        values.sum()
    }
}

/// The answer to one operation on a shared store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreAnswer {
    /// Done, and there is nothing to say of it.
    Done,
    /// A sum, a length, or how many went.
    Number(i64),
    /// A value; none where there is none.
    Value(Option<Vec<u8>>),
    /// Refused, and nothing changed.
    Refused(Rejection),
}

/// An attempt that another one was faster than.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outrun {
    /// Who runs it.
    pub slot: SlotRef,
    /// Of which rows it has lost.
    pub held: HeldRows,
}

/// Rows granted under one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRows {
    /// Run, attempt and rows.
    pub held: HeldRows,
    /// The segments that hold them.
    pub segments: Vec<SegmentRef>,
    /// A trial: these rows run with no others beside them, for an engine died under some of them.
    pub alone: bool,
}

/// Where some rows of input are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// The segment.
    pub number: SegmentNo,
    /// Its first row.
    pub first_row: u64,
    /// Its rows.
    pub rows: u32,
    /// Its object.
    pub blob: BlobRef,
}

/// Rows that were refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRows {
    /// Their run.
    pub run: RunNo,
    /// Under which attempt they came.
    pub attempt: Attempt,
    /// The rows.
    pub rows: Rows,
    /// Why.
    pub why: Rejection,
}

/// A deterministic refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// The command's epoch is not the open one.
    #[error("epoch {got} is not the open epoch {open}")]
    EpochStale {
        /// What the command said.
        got: u64,
        /// What is open.
        open: u64,
    },
    /// A leader's clock made a step that would expire everything.
    #[error("ledger time would step by {step_ms} ms")]
    ClockStep {
        /// The step.
        step_ms: u64,
    },
    /// A field is out of its bounds.
    #[error("{0}")]
    Invalid(String),
    /// Something is full.
    #[error("the limit of {max} {what} is reached")]
    Limit {
        /// Of what.
        what: String,
        /// How many.
        max: u64,
    },
    /// No such namespace.
    #[error("no namespace {0}")]
    NamespaceUnknown(String),
    /// No such run.
    #[error("no such run")]
    RunUnknown,
    /// A run of that name asks for something else.
    #[error("a run of that name exists with another spec")]
    SpecConflict,
    /// A segment of that number is another one, or a number was left out.
    #[error("segment {number} does not continue the input, which has {have}")]
    SegmentConflict {
        /// The number.
        number: u32,
        /// Segments that there are.
        have: u32,
    },
    /// The input was closed.
    #[error("the run's input is closed")]
    InputClosed,
    /// The input is not what the client thinks.
    #[error("the input has {rows} rows, or another digest")]
    InputMismatch {
        /// Rows that there are.
        rows: u64,
    },
    /// The run was cancelled or has finished.
    #[error("the run has ended")]
    RunEnded,
    /// No such session: it was given up or never was.
    #[error("no such session")]
    SessionUnknown,
    /// The ledger has forgotten the answer to that request, so its outcome is unknown.
    #[error("the outcome of that request is no longer known")]
    RequestForgotten,
    /// Another process lives under that worker's name.
    #[error("worker {name} is alive at {address}")]
    WorkerNameTaken {
        /// The name.
        name: String,
        /// Where it lives.
        address: String,
    },
    /// The worker is draining or suspect.
    #[error("the worker takes no work now")]
    WorkerNotReady,
    /// No such slot.
    #[error("no such slot")]
    SlotUnknown,
    /// A pull older than the slot's last one.
    #[error("the slot's last pull was {last}")]
    PullStale {
        /// Its last one.
        last: u64,
    },
    /// Another slot got the row since, or this attempt never had it.
    #[error("the attempt is not the row's last")]
    AttemptStale,
    /// The row has another outcome already.
    #[error("the row has an outcome already")]
    AlreadyDecided,
    /// Only an ended run is sealed or deleted.
    #[error("the run has not ended: cancel it first")]
    RunActive,
    /// A run of that name is on its way out.
    #[error("a run of that name is being deleted")]
    RunDeleting,
    /// The rendezvous refuses new participants.
    #[error("the rendezvous is closed")]
    RendezvousClosed,
    /// Others have joined on other terms.
    #[error("the others of the job have joined with min {min} and max {max}")]
    RendezvousConflict {
        /// Theirs.
        min: u32,
        /// Theirs.
        max: u32,
    },
    /// The ticket is void.
    #[error("no such participant of the job: it was lost, left or was replaced")]
    ParticipantUnknown,
    /// No such barrier, or no such generation of it.
    #[error("no such barrier")]
    BarrierUnknown,
    /// The first who arrived said something else.
    #[error("others of this generation named another set, policy or time-out")]
    BarrierConflict,
    /// The barrier does not wait for the participant that arrived.
    #[error("{name} is not among those that the generation waits for")]
    NotOfBarrier {
        /// Who.
        name: String,
    },
    /// The barrier is elsewhere.
    #[error("the barrier is at generation {latest}, which {state}")]
    BarrierGeneration {
        /// Where it is.
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
    /// It has to do with a training job.
    #[error(transparent)]
    Training(TrainingRefusal),
    /// A manifest was made of a run that went on since.
    #[error("the run was taken up again since its manifest was made")]
    ManifestStale,
    /// The run's deadline has passed.
    #[error("the run's deadline has passed")]
    DeadlineExceeded,
    /// A namespace has as much as it may have.
    #[error("namespace {namespace} may have {max} {what}, and has {used}")]
    OverQuota {
        /// The namespace.
        namespace: String,
        /// Of what.
        what: String,
        /// How many it has.
        used: u64,
        /// How many it may have.
        max: u64,
    },
    /// The operation came with a later version than the cluster's.
    #[error("this needs cluster version {needs}, the cluster's is {version}")]
    VersionLow {
        /// Since which version there is such an operation.
        needs: u32,
        /// The cluster's.
        version: u32,
    },
    /// No such join token.
    #[error("no join token {0}: it was revoked, has expired or never was")]
    TokenUnknown(String),
    /// A join token of that name is another one.
    #[error("a join token {0} exists, with another secret or for something else")]
    TokenConflict(String),
    /// The join token cannot be used.
    #[error("{0}")]
    TokenRefused(String),
    /// There is no revocation of these certificates.
    #[error("certificates of {0} are not revoked")]
    RevocationUnknown(String),
    /// Who asks for a change of the revocations is revoked.
    #[error("the certificate of {0} is revoked")]
    AuthorRevoked(String),
    /// A revocation in force covers more.
    #[error(
        "more certificates of {0} are revoked already: to accept some of them again, withdraw that revocation first"
    )]
    RevocationWider(String),
    /// The store of a round is for its members.
    #[error(
        "the store of round {round} of job {job} is for the round's members, and the caller is none: join the rendezvous with this certificate"
    )]
    NotOfRound {
        /// The round.
        round: u64,
        /// The job.
        job: String,
    },
}
