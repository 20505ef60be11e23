//! What is replicated: commands, and the operations that a leader merges into one.
//!
//! *Invariant:* the encoding of a variant never changes; new ones are added at the end, and used
//! only once the replicated cluster version says that every member knows them.
//!
//! A merged command is no transaction: each operation has its own position, its own reply and
//! its own rejection.

use crate::barrier::BarrierSpec;
use crate::checkpoint::CheckpointOp;
use crate::codec;
use crate::dataset::DatasetOp;
use crate::id::{Attempt, CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use crate::job::{JobName, ParticipantDecl};
use crate::member::MemberOp;
use crate::quota::Quota;
use crate::rendezvous::Terms;
use crate::revocation::RevocationOp;
use crate::rows::Rows;
use crate::shard::ShardOp;
use crate::spec::{RunSpec, SlotOffer};
use crate::token::TokenOp;
use crate::trainer::TrainerOp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The open epoch of the leader that proposed it. Another one is rejected whole.
    pub epoch: CoordEpoch,
    /// Ledger time at the leader.
    pub at: LedgerMs,
    /// Wall time at the leader, in milliseconds since 1970. For people; decides nothing.
    pub wall_ms: u64,
    /// What to do.
    pub body: Body,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Opens dispatch for the command's epoch, which must be the term that committed it.
    OpenEpoch,
    /// Operations in order, at most [`limits::OPS_PER_COMMAND_MAX`](crate::limits).
    Ops(Vec<Op>),
    /// Time passes: what is due by [`Command::at`] happens.
    Tick,
    /// Every member computes its digests when it has applied this entry.
    DigestAt,
    /// Raises the cluster version, which gates commands and formats. Never lowers it.
    SetVersion(u32),
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Set by clients: a repeat is answered from memory and not executed again.
    pub request: Option<RequestId>,
    /// What to do.
    pub kind: OpKind,
}

impl From<OpKind> for Op {
    fn from(kind: OpKind) -> Self {
        Self { request: None, kind }
    }
}

impl Op {
    /// How many bytes it takes in a command's encoding.
    pub fn encoded_bytes(&self) -> usize {
        codec::size(self)
    }
}

/// The identity of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    /// The client's session.
    pub session: SessionId,
    /// Increasing within the session, from 1.
    pub seq: u64,
    /// Answers up to here have arrived and may be forgotten.
    pub ack_upto: u64,
}

/// The operations. Who may ask for which is the coordinator's business.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpKind {
    /// Opens a client session.
    OpenClient {
        /// For people.
        name: String,
        /// Whose it is, as `role/name` of the certificate: nobody else's requests are of this session.
        holder: String,
    },
    /// Creates a run, or finds the same one.
    CreateRun {
        /// Namespace, which must exist.
        namespace: String,
        /// Name within it.
        name: String,
        /// What it asks for.
        spec: Box<RunSpec>,
        /// Where its objects are if this creates it: its name, and what no other creation has.
        folder: String,
    },
    /// Appends segments to an open input.
    AddSegments {
        /// The run.
        run: RunNo,
        /// In order, each already durable in the store.
        segments: Vec<SegmentDecl>,
    },
    /// Closes a run's input: from now on it can finish.
    CloseInput {
        /// The run.
        run: RunNo,
        /// How many rows it has.
        rows: u64,
        /// blake3 over its segments' digests in order.
        digest: [u8; 32],
    },
    /// Pauses, resumes or cancels a run.
    ControlRun {
        /// The run.
        run: RunNo,
        /// What to do with it.
        action: RunAction,
        /// Why, for people.
        reason: String,
    },
    /// Registers a worker or resumes its session.
    Register(Box<Registration>),
    /// Takes a worker's session away with all that it holds.
    Deregister {
        /// The session.
        session: SessionId,
    },
    /// A worker is silent: what it has not started is free, no more is granted to it.
    Suspect {
        /// The session.
        session: SessionId,
        /// What it is known to have started, which it keeps for the grace period.
        started: Vec<HeldRows>,
        /// How long, in ledger time.
        grace_ms: u64,
    },
    /// A suspect worker is back.
    Unsuspect {
        /// The session.
        session: SessionId,
    },
    /// A worker takes no more work, by its own or an operator's wish.
    Drain {
        /// The session.
        session: SessionId,
        /// In how much ledger time it has to be gone; 0 for no bound. A later call may only bring
        /// the end nearer.
        deadline_ms: u64,
    },
    /// Grants pending rows to a slot.
    Claim {
        /// Who pulls.
        slot: SlotRef,
        /// The process that pulls: what a dead one asked for must not go to its successor, who
        /// would not know of it.
        instance: u64,
        /// Counts the slot's pulls: the same one gets the same answer.
        seq: u64,
        /// How many rows at most.
        rows_max: u32,
    },
    /// Rows are done: their results are in a durable part.
    Complete {
        /// Who says so.
        slot: SlotRef,
        /// The run.
        run: RunNo,
        /// The part.
        part: PartDecl,
        /// Its rows in its order.
        sets: Vec<HeldRows>,
    },
    /// An attempt failed.
    Fail {
        /// Who says so.
        slot: SlotRef,
        /// What failed.
        held: HeldRows,
        /// Which policy applies.
        class: FailureClass,
        /// Machine-readable reason.
        code: String,
        /// For people.
        message: String,
        /// What the class was decided by.
        evidence: Evidence,
    },
    /// Rows come back unstarted or unfinished through no fault of theirs.
    Nack {
        /// Who says so.
        slot: SlotRef,
        /// What comes back.
        held: Vec<HeldRows>,
    },
    /// Creates a namespace, or changes its cap.
    SetNamespace {
        /// Its name.
        name: String,
        /// Rows that its runs together may have at workers; 0 for no cap.
        running_rows_max: u64,
    },
    /// Moves rows that a slot gave up unstarted to one that has nothing to do.
    Steal {
        /// Who gave them up.
        victim: SlotRef,
        /// What it gave up.
        held: Vec<HeldRows>,
        /// Who gets them. Where it can take none, they are pending.
        thief: SlotRef,
        /// The process that pulls for the thief.
        instance: u64,
        /// The thief's pull that this answers.
        seq: u64,
    },
    /// Gives a slot rows that others run already, at the tail of a run that allows it: the first
    /// result wins.
    Duplicate {
        /// Who pulls.
        slot: SlotRef,
        /// The process that pulls.
        instance: u64,
        /// Its pull.
        seq: u64,
        /// How many rows at most.
        rows_max: u32,
    },
    /// A slot's engine died with these rows started.
    EngineDied {
        /// Whose engine.
        slot: SlotRef,
        /// Counts the deaths that the slot's process tells of, from 1; 0: it does not count them.
        number: u64,
        /// What it had started and not finished, of all runs.
        started: Vec<HeldRows>,
        /// [`FailureClass::EngineDied`] or [`FailureClass::OutOfMemory`], by the evidence.
        class: FailureClass,
        /// Machine-readable reason.
        code: String,
        /// For people.
        message: String,
        /// What is known of the death.
        evidence: Evidence,
    },
    /// Stops grants to a worker or to one of its slots, or allows them again.
    Cordon {
        /// The session.
        session: SessionId,
        /// One slot, or all.
        slot: Option<SlotNo>,
        /// Whether grants stop.
        cordoned: bool,
        /// Why, for people.
        reason: String,
    },
    /// Rows that failed for good are pending again.
    RetryRows {
        /// The run.
        run: RunNo,
        /// Which; `None` for all that failed.
        rows: Option<Rows>,
    },
    /// Rows that nobody was granted yet are done: their results were carried over from an earlier
    /// run of the same items.
    Carry {
        /// The run.
        run: RunNo,
        /// The segment that holds the rows.
        segment: SegmentNo,
        /// The digest of that segment: a carry into another one is refused.
        segment_digest: [u8; 32],
        /// The part, durable under this run.
        part: PartDecl,
        /// Its rows in its order.
        rows: Rows,
    },
    /// An ended run's rows have moved to a manifest object.
    Seal {
        /// The run.
        run: RunNo,
        /// The manifest, durable.
        manifest: BlobRef,
        /// The log index at which the run had ended when its manifest was made.
        ended_index: u64,
    },
    /// An ended run goes: its name stays taken until its objects are gone.
    DeleteRun {
        /// The run.
        run: RunNo,
    },
    /// The objects of a deleted run are gone, and with this the run.
    ForgetRun {
        /// The run.
        run: RunNo,
    },
    /// Operations on a shared store, in order, each with an answer of its own. Without any, the
    /// store is used all the same, and lives on.
    Store {
        /// Which.
        store: StoreName,
        /// At most [`limits::STORE_OPS_MAX`](crate::limits::STORE_OPS_MAX), of which
        /// [`limits::STORE_VALUE_OPS_MAX`](crate::limits::STORE_VALUE_OPS_MAX) may be answered with a value.
        ops: Vec<StoreOp>,
    },
    /// A shared store goes with all that it holds.
    DropStore {
        /// Which.
        store: StoreName,
    },
    /// Takes part in a job and joins its rendezvous, in the place of what was there under the name.
    Join {
        /// The job, made if need be.
        job: JobName,
        /// Who.
        participant: Box<ParticipantDecl>,
        /// On what terms.
        terms: Terms,
    },
    /// Takes part in a job without joining its rendezvous, in the place of what was there under the
    /// name.
    Participate {
        /// The job, made if need be.
        job: JobName,
        /// Who.
        participant: Box<ParticipantDecl>,
    },
    /// A participant goes.
    Leave {
        /// Its ticket.
        ticket: SessionId,
    },
    /// A participant was silent for too long.
    LoseParticipant {
        /// Its ticket.
        ticket: SessionId,
        /// For how long; `None` where the leader has never heard it.
        silent_ms: Option<u64>,
    },
    /// Nobody joins a job's rendezvous any more.
    CloseRendezvous {
        /// The job, made if need be.
        job: JobName,
    },
    /// A participant has arrived at a barrier.
    Arrive {
        /// The job, made if need be.
        job: JobName,
        /// The barrier, made if need be.
        barrier: String,
        /// Which use of it.
        generation: u64,
        /// Who has arrived; `None` for the participant of that name, made if need be.
        ticket: Option<SessionId>,
        /// Without a ticket: who it is.
        participant: Box<ParticipantDecl>,
        /// Whom the generation waits for.
        spec: BarrierSpec,
    },
    /// A barrier that waits fails.
    AbortBarrier {
        /// The job.
        job: JobName,
        /// The barrier.
        barrier: String,
        /// Which use of it; 0 for the one that waits.
        generation: u64,
        /// Why, for people.
        reason: String,
    },
    /// Something is done to a dataset.
    Dataset(DatasetOp),
    /// Trainers come, stay, go or recover.
    Trainer(TrainerOp),
    /// Trainers take shards and give them back.
    Shard(ShardOp),
    /// Something is done to a checkpoint.
    Checkpoint(CheckpointOp),
    /// What nobody names of a sealed run is gone from its store.
    Swept {
        /// The run.
        run: RunNo,
    },
    /// Changes what a namespace may use.
    SetQuota(Quota),
    /// Whoever wanted to know of a run's end was told, or cannot be.
    Noticed {
        /// The run.
        run: RunNo,
        /// The log index of its end.
        index: u64,
        /// Whether it was acknowledged; else it is given up.
        delivered: bool,
    },
    /// Something is done with a join token.
    Token(TokenOp),
    /// As [`OpKind::Suspect`], of a worker that may have started more than it was heard to have.
    SuspectUnheard {
        /// The session.
        session: SessionId,
        /// What it is known to have started, which it keeps for the grace period.
        started: Vec<HeldRows>,
        /// What else it may have started, of its own: free at once, and counted if its session ends unheard.
        unheard: Vec<HeldRows>,
        /// How long, in ledger time.
        grace_ms: u64,
    },
    /// A change of the list of revoked certificates.
    Revocation(RevocationOp),
    /// The leader reports what it has seen of the members.
    Member(MemberOp),
}

/// The name of a shared store.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreName {
    /// The job's namespace.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// The round of its rendezvous; 0 for what outlives rounds.
    pub round: u64,
}

/// An operation on a shared store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOp {
    /// Gives keys their values, all of them or none.
    Set {
        /// Keys and values.
        #[serde(with = "crate::bytes_field::pairs")]
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Adds to the number that the key's value spells, 0 where there is none, and answers the sum.
    Add {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// How much, less than nothing included.
        delta: i64,
    },
    /// Sets the key if its value is the expected one, or if it has none and nothing is expected.
    /// Answers the value that it has then; of a key without one, what was expected.
    CompareSet {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// What its value has to be.
        #[serde(with = "crate::bytes_field")]
        expected: Vec<u8>,
        /// What it becomes.
        #[serde(with = "crate::bytes_field")]
        desired: Vec<u8>,
    },
    /// Adds bytes to the end of the key's value.
    Append {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// The bytes.
        #[serde(with = "crate::bytes_field")]
        value: Vec<u8>,
    },
    /// Removes a key; answers 1, or 0 where it had no value.
    Delete {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
    },
    /// Adds to the end of a queue and answers its length.
    Push {
        /// The queue.
        #[serde(with = "crate::bytes_field")]
        queue: Vec<u8>,
        /// What to add.
        #[serde(with = "crate::bytes_field")]
        value: Vec<u8>,
    },
    /// Takes the first of a queue.
    Pop {
        /// The queue.
        #[serde(with = "crate::bytes_field")]
        queue: Vec<u8>,
    },
}

/// What a failure's class was decided by: never the words of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Exit status of the process that died.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Class of the exception, as its runtime names it; empty where there was none.
    pub exception: String,
    /// Where a longer text is.
    pub text: Option<BlobRef>,
}

/// A worker as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Namespace whose runs it serves.
    pub namespace: String,
    /// Its name, unique in the namespace.
    pub name: String,
    /// Drawn when its process started.
    pub instance: u64,
    /// Where a person finds it.
    pub address: String,
    /// The session that it had, if it knows one.
    pub resume: Option<SessionId>,
    /// Whether the leader has seen the holder of this name alive within the failure timeout.
    pub holder_alive: bool,
    /// What it offers; the position is the slot's number.
    pub slots: Vec<SlotOffer>,
    /// With `resume`: what it still holds. All else is given back.
    pub held: Vec<HeldRows>,
    /// Store URLs that it can use beside the cluster's.
    pub stores: Vec<String>,
    /// Versions of its parts.
    pub versions: BTreeMap<String, String>,
    /// What the holder of this name may have been running when it was last heard, as the leader knows it.
    pub started: Vec<HeldRows>,
}

/// Rows under one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRows {
    /// Their run.
    pub run: RunNo,
    /// The attempt.
    pub attempt: Attempt,
    /// The rows.
    pub rows: Rows,
}

/// An object in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// blake3 of its bytes. With the run it gives the object's key.
    pub digest: [u8; 32],
    /// Its length.
    pub bytes: u32,
}

/// A segment of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDecl {
    /// Its number.
    pub number: SegmentNo,
    /// Its rows.
    pub rows: u32,
    /// Where it is.
    pub blob: BlobRef,
}

/// A part of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartDecl {
    /// Where it is.
    pub blob: BlobRef,
    /// Prompt tokens of its rows.
    pub tokens_in: u64,
    /// Generated tokens of its rows.
    pub tokens_out: u64,
}

/// What may be done with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunAction {
    /// Grant no more rows; what runs may finish.
    Pause,
    /// Grant again.
    Resume,
    /// End it: nothing more is granted or accepted.
    Cancel,
}

/// Which policy a failure gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureClass {
    /// The row itself is bad: no retry.
    InvalidRow,
    /// Likely to pass: retried with back-off.
    Transient,
    /// Out of memory: retried with back-off.
    OutOfMemory,
    /// The engine died, nobody knows by which row: a strike where it ran alone, else trials.
    EngineDied,
    /// The row's segment is missing or corrupt: retried with back-off.
    InputUnreadable,
    /// The store refuses a result, or to give the input: no fault of the row. The run is paused; from cluster version 3 on
    /// only if the store refuses a second worker too, or no other fits the run.
    StoreRefused,
}

/// A grant names its slot by these.
pub(crate) fn slot_ref(session: SessionId, slot: usize) -> SlotRef {
    SlotRef { session, slot: SlotNo(slot as u16) }
}
