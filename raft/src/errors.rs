//! Owns: the errors of this crate's interface.
//!
//! Invariant: an error says whether a command may have been applied.
//! Absent: wire codes; the coordinator maps errors to them.

use rollout_storage::{StorageError, means_no_space};

use crate::config::BadConfig;
use crate::member::MemberRecord;

/// This member does not lead, or cannot prove that it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this member does not lead; {}", hint(leader.as_ref()))]
pub struct NotLeader {
    /// The leader, if known.
    pub leader: Option<MemberRecord>,
}

fn hint(leader: Option<&MemberRecord>) -> String {
    match leader {
        Some(leader) => format!("{} at {} does", leader.name, leader.client_addr),
        None => "no leader is known".to_owned(),
    }
}

/// Why a command has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Not appended, and never will be: this member does not lead in the given epoch, or has not heard a quorum for
    /// longer than a proposal waits.
    #[error("this member does not lead in that epoch; {}", hint(leader.as_ref()))]
    NotLeader {
        /// The leader, if known. It may be this member, in a later epoch.
        leader: Option<MemberRecord>,
    },
    /// Appended, then leadership was lost: it may be applied, or not.
    #[error("leadership was lost while the command was under way: its outcome is unknown")]
    Unknown,
    /// Not appended: consensus has ended in this process.
    #[error("this member is stopping")]
    Stopped,
    /// Not appended: the leader's queue of proposals is full.
    #[error(
        "operations that this leader has not appended yet take {max} bytes, which is the most: try again later"
    )]
    Overloaded { max: usize },
    /// Not appended: over [`crate::RaftConfig::command_bytes_max`].
    #[error("the command has {bytes} bytes, the most is {max}")]
    TooLarge { bytes: usize, max: usize },
}

/// Why a member does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// The disk failed, or its content is damaged or belongs to another member.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] rollout_proto::TlsError),
    /// The data directory contradicts itself.
    #[error("{dir}: {what}")]
    Contradiction {
        dir: String,
        /// The contradiction, and what to do.
        what: String,
    },
    /// Consensus could not be started from the data on disk.
    #[error("consensus cannot start: {0}")]
    Start(String),
}

impl OpenError {
    /// True if the disk is full: the same directory will work once there is room.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_no_space(),
            Self::Start(text) => means_no_space(text),
            _ => false,
        }
    }
}

/// Why a cluster was not formed, or a member not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The list of members cannot form a cluster.
    #[error("{0}")]
    BadMembers(String),
    /// A member could not be reached. Nothing irreversible has happened: try again.
    #[error("member {name} at {addr} cannot be reached: {why}")]
    Unreachable {
        name: String,
        /// The address that was dialed.
        addr: String,
        /// The phase and the error.
        why: String,
    },
    /// A member does not match the request. Nothing was changed at it.
    #[error("{0}")]
    Refused(String),
    /// No member has that name. Nothing was changed.
    #[error("{0}")]
    NoMember(String),
    /// The change would cost the cluster its majority, or leave it without a majority that can continue at once.
    /// Nothing was changed.
    #[error("{0}")]
    Unsafe(String),
    /// This member does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// It was begun and did not finish in time; list the members to see how far it got.
    #[error("{0}")]
    Unfinished(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_without_disk_space_is_distinguished_from_other_failures() {
        let start = |text: &str| OpenError::Start(text.to_owned()).is_no_space();
        assert!(start("data/log: open: IO error: No space left on device: While mkdir"));
        assert!(start("data/log: open: IO error: Disk quota exceeded: While mkdir"));
        assert!(!start("data/log: open: IO error: Input/output error: While fsync"));
    }
}
