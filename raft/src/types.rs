//! Owns: the type configuration of openraft.
//!
//! Invariant: a leader id is a term alone (`leader_id_std`), so that a term names at most one leader and can be the
//! fencing token of everything above. The command is opaque bytes; only the ledger reads them.
//! Absent: serde. `codec` decides how these types look on disk and on the wire.

use std::fmt;

use bytes::Bytes;
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use rollout_ledger::Reply;

use crate::member::MemberRecord;

/// A command as it was proposed. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command({} bytes)", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The ledger's answer to one command, one reply per operation.
pub(crate) struct Replies(pub(crate) Vec<Reply>);

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replies({})", self.0.len())
    }
}

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

openraft::declare_raft_types!(
    /// The type configuration that every openraft type of this crate takes.
    pub(crate) Types:
        D = Command,
        R = Replies,
        NodeId = u64,
        Node = MemberRecord,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
);

pub(crate) type Entry = EntryOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, MemberRecord>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<Types>;

/// A log id from its two numbers.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(term.into(), index)
}

/// The term under which an entry was proposed.
pub(crate) fn term_of(id: &LogId) -> u64 {
    id.committed_leader_id().term
}
