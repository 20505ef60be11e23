//! The answers of `apply`: one [`Reply`] per operation, by position.
//!
//! *Invariant:* replies are part of the replicated computation. They enter the digest chain, so a member that answers
//! differently is detected.

use crate::kernel::blob_ref::BlobRef;
use crate::kernel::codec;
use crate::kernel::held_rows::HeldRows;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SegmentNo, SessionId, SlotRef};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::rows::Rows;
use crate::kernel::stored_rejection::StoredRejection;
use serde::{Deserialize, Serialize};

/// The answer to one operation, or to a command without operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, without a result.
    Ok,
    /// Refused, and nothing changed.
    Rejected(Rejection),
    /// A client session is open.
    ClientOpened {
        /// Its id.
        session: SessionId,
    },
    /// The run exists.
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
        /// The folder of its objects, within its namespace.
        folder: String,
    },
    /// A worker is registered.
    Registered {
        /// Its session.
        session: SessionId,
        /// Whether it is the requested session.
        resumed: bool,
        /// The rows that it claims and has lost meanwhile.
        dropped: Vec<HeldRows>,
    },
    /// Rows for a slot; none when nothing fits.
    Granted(Vec<GrantedRows>),
    /// Results, failures or returned rows were accepted, except for these.
    Taken {
        /// Rows that this attempt may not decide.
        refused: Vec<RefusedRows>,
    },
    /// An epoch is open.
    EpochOpened {
        /// Ledger time, from which the leader continues counting.
        at: LedgerMs,
    },
    /// Rows went from one slot to another.
    Stolen {
        /// The rows that the idle slot got.
        granted: Vec<GrantedRows>,
        /// The rows that were not the victim's to yield.
        refused: Vec<RefusedRows>,
    },
    /// Failed rows are pending again.
    Retried {
        /// The number of rows that were failed.
        rows: u64,
    },
    /// Results were accepted, and other slots ran some of these rows too.
    Won {
        /// Rows that this attempt may not decide.
        refused: Vec<RefusedRows>,
        /// The superseded slots, which may stop.
        superseded: Vec<Superseded>,
    },
    /// A shared store's answers, by position.
    Store(Vec<StoreAnswer>),
    /// A participant takes part in a job.
    Participant {
        /// Under this incarnation.
        incarnation: SessionId,
        /// After this silence it is lost.
        keep_alive_ms: u64,
    },
    /// A trainer is in a job's generation.
    Joined {
        /// Its incarnation.
        incarnation: SessionId,
        /// The generation.
        generation: u32,
    },
    /// An earlier trainer of this name is lost, so the generation needs recovery.
    NeedsRecovery {
        /// The name.
        trainer: String,
        /// The host.
        host: String,
    },
    /// The keep-alive counts for all trainers except these.
    KeptAlive {
        /// The trainers whose incarnations are void.
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
    /// The checkpoint exists.
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
    /// The batch exists.
    Batch {
        /// Its id.
        id: String,
        /// Whether this operation made it.
        created: bool,
    },
}

impl Reply {
    /// The bytes of a reply, as the image remembers it and as the leader sends it to another member.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads these bytes; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes)
    }

    /// Bytes of a store's values in it. Everything else in an answer is small.
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
    /// Done, without a result.
    Done,
    /// A sum, a length, or the number of removed keys.
    Number(i64),
    /// A value; `None` if there is none.
    Value(Option<Vec<u8>>),
    /// Refused, and nothing changed.
    Refused(Rejection),
}

/// An attempt that another one has superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    /// The slot that runs it.
    pub slot: SlotRef,
    /// The rows that it has lost.
    pub held: HeldRows,
}

/// Rows granted under one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRows {
    /// Run, attempt and rows.
    pub held: HeldRows,
    /// The segments that hold them.
    pub segments: Vec<SegmentRef>,
    /// A trial: these rows must run with no others beside them, because an engine died under some of them.
    pub alone: bool,
}

/// The location of some rows of input.
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

/// A deterministic refusal. `stored_rejection.rs` has the stored order of the variants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(from = "StoredRejection", into = "StoredRejection")]
pub enum Rejection {
    /// The command's epoch is not the open one.
    #[error("epoch {got} is not the open epoch {open}")]
    EpochStale {
        /// The command's epoch.
        got: u64,
        /// The open epoch.
        open: u64,
    },
    /// A leader's clock made a step that would expire everything.
    #[error("ledger time would step by {step_ms} ms")]
    ClockStep {
        /// How far ledger time would move, in milliseconds.
        step_ms: u64,
    },
    /// A field is out of its bounds. Replies store the text and the digest chain covers it, so no build may change it:
    /// members of two builds would differ.
    #[error("{0}")]
    Invalid(String),
    /// Something is full.
    #[error("the limit of {max} {what} is reached")]
    Limit {
        /// The limited thing.
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
    /// A run of that name has another spec.
    #[error("a run of that name exists with another spec")]
    SpecConflict,
    /// A segment of that number is another one, or a number was left out.
    #[error("segment {number} does not continue the input, which has {have} segments")]
    SegmentConflict {
        /// The number.
        number: u32,
        /// The number of segments it has.
        have: u32,
    },
    /// The input was closed.
    #[error("the run's input is closed")]
    InputClosed,
    /// The input differs from what the client expects.
    #[error("the input has {rows} rows, or another digest")]
    InputMismatch {
        /// The number of rows it has.
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
    /// Another live process has that worker's name.
    #[error("worker {name} is alive at {address}")]
    WorkerNameTaken {
        /// The name.
        name: String,
        /// Its address.
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
    #[error("the attempt is not the row's last one")]
    AttemptStale,
    /// The row has another outcome already.
    #[error("the row already has an outcome")]
    AlreadyDecided,
    /// Only an ended run is sealed or deleted.
    #[error("the run has not ended: cancel it first")]
    RunActive,
    /// A run of that name is being deleted.
    #[error("a run of that name is being deleted")]
    RunDeleting,
    /// A refusal about a training job.
    #[error(transparent)]
    Job(JobRefusal),
    /// The run has changed since its manifest was made.
    #[error("the run was resumed after its manifest was made")]
    ManifestStale,
    /// The run's deadline has passed.
    #[error("the run's deadline has passed")]
    DeadlineExceeded,
    /// A namespace has used up its quota.
    #[error("namespace {namespace} may have {max} {what}, and has {used}")]
    OverQuota {
        /// The namespace.
        namespace: String,
        /// The limited thing.
        what: String,
        /// How many it has.
        used: u64,
        /// How many it may have.
        max: u64,
    },
    /// A later version than the cluster's introduced the operation.
    #[error("this needs cluster version {needs}, the cluster's is {version}")]
    VersionLow {
        /// The version that introduced the operation.
        needs: u32,
        /// The cluster's version now.
        version: u32,
    },
    /// No such join token.
    #[error("no join token {0}: it was revoked, has expired or never existed")]
    TokenUnknown(String),
    /// A join token of that name is another one.
    #[error("a join token {0} exists with another secret or purpose")]
    TokenConflict(String),
    /// The join token cannot be used.
    #[error("{0}")]
    TokenRefused(String),
    /// No such API key.
    #[error("no API key {0}: it was revoked, has expired or never existed")]
    ApiKeyUnknown(String),
    /// An API key of that id is another one.
    #[error("an API key {0} exists with another secret or spec")]
    ApiKeyConflict(String),
    /// These certificates are not revoked.
    #[error("certificates of {0} are not revoked")]
    RevocationUnknown(String),
    /// The certificate of the caller that changes revocations is itself revoked.
    #[error("the certificate of {0} is revoked")]
    AuthorRevoked(String),
    /// A revocation in force covers more.
    #[error(
        "more certificates of {0} are already revoked: to accept some of them again, unrevoke first"
    )]
    RevocationWider(String),
    /// The caller may not use the namespace.
    #[error("the caller's certificate does not name namespace {0}")]
    NamespaceDenied(String),
    /// The caller may use some namespaces only.
    #[error("this concerns all namespaces, and the caller's certificate names only some")]
    ClusterDenied,
    /// A refusal about an object of OpenAI's API.
    #[error(transparent)]
    OpenAi(OpenAiRefusal),
}
