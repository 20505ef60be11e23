//! The kinds of operations.
//!
//! *Invariant:* as in [`crate::machine::command`]: no variant's encoding changes, and new ones are added at the end.

use super::{
    BlobRef, Evidence, FailureClass, HeldRows, PartDecl, Registration, RunAction, SegmentDecl,
    StoreName, StoreOp,
};
use crate::batch::spec::RunSpec;
use crate::fleet::setting::SettingOp;
use crate::identity::member::MemberOp;
use crate::identity::quota::Quota;
use crate::identity::revocation::RevocationOp;
use crate::identity::token::TokenOp;
use crate::kernel::id::{RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::training::barrier::BarrierSpec;
use crate::training::checkpoint::CheckpointOp;
use crate::training::dataset::DatasetOp;
use crate::training::job::{JobName, ParticipantDecl};
use crate::training::rendezvous::Terms;
use crate::training::shard::ShardOp;
use crate::training::trainer::TrainerOp;
use serde::{Deserialize, Serialize};

/// The operations. The coordinator checks which client may request which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpKind {
    /// Opens a client session.
    OpenClient {
        /// For people.
        name: String,
        /// The owner, as `role/name` of its certificate. Only its requests belong to this session.
        holder: String,
    },
    /// Creates a run, or finds the same one.
    CreateRun {
        /// Namespace, which must exist.
        namespace: String,
        /// Name within it.
        name: String,
        /// The spec.
        spec: Box<RunSpec>,
        /// The folder of its objects if this creates it: its name with a unique suffix.
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
        /// The action.
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
    /// A worker is silent: its unstarted rows become pending, and it gets no more.
    Suspect {
        /// The session.
        session: SessionId,
        /// The rows it is known to have started, which it keeps for the grace period.
        started: Vec<HeldRows>,
        /// How long, in ledger time.
        grace_ms: u64,
    },
    /// A suspect worker is back.
    Unsuspect {
        /// The session.
        session: SessionId,
    },
    /// A worker takes no more work, on its own or an operator's request.
    Drain {
        /// The session.
        session: SessionId,
        /// The ledger time within which it must be gone; 0 for no bound. A later call may only bring the deadline
        /// nearer.
        deadline_ms: u64,
    },
    /// Grants pending rows to a slot.
    Claim {
        /// The pulling slot.
        slot: SlotRef,
        /// The pulling process: rows that a dead process pulled must not go to its successor, which would not know of
        /// them.
        instance: u64,
        /// Counts the slot's pulls: the same one gets the same answer.
        seq: u64,
        /// How many rows at most.
        rows_max: u32,
    },
    /// Rows are done: their results are in a durable part.
    Complete {
        /// The reporting slot.
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
        /// The reporting slot.
        slot: SlotRef,
        /// The failed rows.
        held: HeldRows,
        /// Which policy applies.
        class: FailureClass,
        /// Machine-readable reason.
        code: String,
        /// For people.
        message: String,
        /// The evidence for the class.
        evidence: Evidence,
    },
    /// Returns rows, unstarted or unfinished, through no fault of theirs.
    Nack {
        /// The reporting slot.
        slot: SlotRef,
        /// The returned rows.
        held: Vec<HeldRows>,
    },
    /// Creates a namespace, or changes its cap.
    SetNamespace {
        /// Its name.
        name: String,
        /// Rows that its runs together may have at workers; 0 for no cap.
        running_rows_max: u64,
    },
    /// Moves unstarted rows that a slot yielded to an idle one.
    Steal {
        /// The slot that yielded them.
        victim: SlotRef,
        /// The yielded rows.
        held: Vec<HeldRows>,
        /// The slot that gets them. Rows that it cannot take become pending.
        thief: SlotRef,
        /// The pulling process of the thief.
        instance: u64,
        /// The thief's pull that this answers.
        seq: u64,
    },
    /// Gives a slot rows that other slots already run, at the tail of a run that allows it: the first result wins.
    Duplicate {
        /// The pulling slot.
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
        /// The engine's slot.
        slot: SlotRef,
        /// Numbers the deaths that the slot's process reports, from 1; 0: it does not count them.
        number: u64,
        /// The started and unfinished rows, of all runs.
        started: Vec<HeldRows>,
        /// [`FailureClass::EngineDied`] or [`FailureClass::OutOfMemory`], by the evidence.
        class: FailureClass,
        /// Machine-readable reason.
        code: String,
        /// For people.
        message: String,
        /// The evidence about the death.
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
    /// Marks rows that were never granted as done: their results were carried over from an earlier
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
    /// Deletes an ended run; its name stays taken until its objects are gone.
    DeleteRun {
        /// The run.
        run: RunNo,
    },
    /// The objects of a deleted run are gone; this removes the run.
    ForgetRun {
        /// The run.
        run: RunNo,
    },
    /// Operations on a shared store, in order, each with its own answer. Without operations, this still counts as a
    /// use and keeps the store alive.
    Store {
        /// Which.
        store: StoreName,
        /// At most [`limits::STORE_OPS_MAX`](crate::kernel::limits::STORE_OPS_MAX), of which at most
        /// [`limits::STORE_VALUE_OPS_MAX`](crate::kernel::limits::STORE_VALUE_OPS_MAX) may return a value.
        ops: Vec<StoreOp>,
    },
    /// Drops a shared store with its contents.
    DropStore {
        /// Which.
        store: StoreName,
    },
    /// Takes part in a job and joins its rendezvous, replacing an earlier participant of the name.
    Join {
        /// The job, made if need be.
        job: JobName,
        /// The participant.
        participant: Box<ParticipantDecl>,
        /// The rendezvous configuration.
        terms: Terms,
    },
    /// Takes part in a job without joining its rendezvous, replacing an earlier participant of the name.
    Participate {
        /// The job, made if need be.
        job: JobName,
        /// The participant.
        participant: Box<ParticipantDecl>,
    },
    /// A participant leaves.
    Leave {
        /// Its ticket.
        ticket: SessionId,
    },
    /// A participant was silent for too long.
    LoseParticipant {
        /// Its ticket.
        ticket: SessionId,
        /// The length of the silence; `None` if the leader has never heard it.
        silent_ms: Option<u64>,
    },
    /// Closes a job's rendezvous for new participants.
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
        /// The generation.
        generation: u64,
        /// The ticket of the arriving participant; `None` for the participant of that name, created if needed.
        ticket: Option<SessionId>,
        /// Identifies the participant if it has no ticket.
        participant: Box<ParticipantDecl>,
        /// The participants that the generation waits for.
        spec: BarrierSpec,
    },
    /// A barrier that waits fails.
    AbortBarrier {
        /// The job.
        job: JobName,
        /// The barrier.
        barrier: String,
        /// The generation; 0 for the one that waits.
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
    /// Records that the store no longer has objects of a sealed run that its manifest does not name.
    Swept {
        /// The run.
        run: RunNo,
    },
    /// Changes a namespace's quota.
    SetQuota(Quota),
    /// The coordinator delivered a notification of a run's end, or gave it up.
    Noticed {
        /// The run.
        run: RunNo,
        /// The log index of its end.
        index: u64,
        /// Whether it was acknowledged; otherwise it is given up.
        delivered: bool,
    },
    /// An operation on a join token.
    Token(TokenOp),
    /// As [`OpKind::Suspect`], for a worker that may have started more rows than it reported.
    SuspectUnheard {
        /// The session.
        session: SessionId,
        /// The rows it is known to have started, which it keeps for the grace period.
        started: Vec<HeldRows>,
        /// Further rows of its own that it may have started: pending at once, and counted if its session ends without
        /// a word.
        unheard: Vec<HeldRows>,
        /// How long, in ledger time.
        grace_ms: u64,
    },
    /// A change of the list of revoked certificates.
    Revocation(RevocationOp),
    /// The leader's observation of the members.
    Member(MemberOp),
    /// As [`OpKind::Store`], by a member of the store's round.
    RoundStore {
        /// Which.
        store: StoreName,
        /// The member's ticket.
        ticket: SessionId,
        /// As those of [`OpKind::Store`].
        ops: Vec<StoreOp>,
    },
    /// An operator changes a setting of the cluster.
    Setting(SettingOp),
}
