//! The replicated commands, and the operations that a leader merges into one command.
//!
//! *Invariant:* the encoding of a variant never changes; new variants are added at the end, and used only once the
//! replicated cluster version says that every member knows them.
//!
//! A merged command is no transaction: each operation has its own position, its own reply and its own rejection.

mod op_kind;
mod scope;
mod store_op;

use crate::batch::spec::SlotOffer;
use crate::kernel::codec;
use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo, SessionId, SlotNo, SlotRef};
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::kernel::blob_ref::BlobRef;
pub use crate::kernel::held_rows::HeldRows;
#[cfg(test)]
pub(crate) use op_kind::KINDS;
pub use op_kind::{OpKind, op};
pub use scope::{Scope, ScopedOp};
#[cfg(test)]
pub(crate) use store_op::STORE_OPS;
pub use store_op::{StoreName, StoreOp};

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The open epoch of the leader that proposed it. A command with another epoch is rejected whole.
    pub epoch: CoordEpoch,
    /// Ledger time at the leader.
    pub at: LedgerMs,
    /// Wall time at the leader, in milliseconds since 1970. Informational only.
    pub wall_ms: u64,
    /// The command's body.
    pub body: Body,
}

/// The body of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Opens dispatch for the command's epoch, which must be the term that committed it.
    OpenEpoch,
    /// Operations in order, at most [`limits::OPS_PER_COMMAND_MAX`](crate::kernel::limits).
    Ops(Vec<Op>),
    /// Time passes: everything due by [`Command::at`] happens.
    Tick,
    /// Every member computes its digests when it has applied this entry.
    DigestAt,
    /// Raises the cluster version, which gates commands and formats. Never lowers it.
    SetVersion(u32),
    /// As [`Body::Ops`], with the scopes of the operations' callers.
    ScopedOps(Vec<ScopedOp>),
}

impl OpKind {
    /// The operation's bytes, for a member that sends it to the leader.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads these bytes; `None` for anything else, such as a kind of a later build.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes)
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Set by clients: a repeat is answered from memory and not executed again.
    pub request: Option<RequestId>,
    /// The command's body.
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

/// The evidence for a failure's class, which never depends on the words of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Exit status of the process that died.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Class of the exception, as its runtime names it; empty if there was none.
    pub exception: String,
    /// The object with a longer text.
    pub text: Option<BlobRef>,
}

/// A worker as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The namespace whose runs it serves.
    pub namespace: String,
    /// Its name, unique in the namespace.
    pub name: String,
    /// Drawn when its process started.
    pub instance: u64,
    /// Its address, informational only.
    pub address: String,
    /// The session that it had, if it knows one.
    pub resume: Option<SessionId>,
    /// Whether the leader has seen the holder of this name alive within the failure timeout.
    pub holder_alive: bool,
    /// Its slots' offers; the position is the slot's number.
    pub slots: Vec<SlotOffer>,
    /// With `resume`: the rows that it still holds. All others are returned.
    pub held: Vec<HeldRows>,
    /// Store URLs that it can use besides the cluster's.
    pub stores: Vec<String>,
    /// Versions of its parts.
    pub versions: BTreeMap<String, String>,
    /// What the earlier holder of this name may have been running when it was last heard, as the leader knows.
    pub started: Vec<HeldRows>,
}

/// A segment of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDecl {
    /// Its number.
    pub number: SegmentNo,
    /// Its rows.
    pub rows: u32,
    /// Its object.
    pub blob: BlobRef,
}

/// A part of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartDecl {
    /// Its object.
    pub blob: BlobRef,
    /// Prompt tokens of its rows.
    pub tokens_in: u64,
    /// Generated tokens of its rows.
    pub tokens_out: u64,
}

/// An action on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunAction {
    /// Grant no more rows; running rows may finish.
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
    /// The engine died, and the row that caused it is unknown: a strike if the row ran alone, otherwise trials.
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

came_with!(Body, BODIES, {
    1: Body::OpenEpoch | Body::Ops(_) | Body::Tick | Body::DigestAt | Body::SetVersion(_),
    4: Body::ScopedOps(_),
});

came_with!(RunAction, RUN_ACTIONS, {
    1: RunAction::Pause | RunAction::Resume | RunAction::Cancel,
});

came_with!(FailureClass, FAILURES, {
    1: FailureClass::InvalidRow | FailureClass::Transient | FailureClass::OutOfMemory
        | FailureClass::EngineDied | FailureClass::InputUnreadable | FailureClass::StoreRefused,
});
