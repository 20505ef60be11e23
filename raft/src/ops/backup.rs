//! Owns: writing one moment of the ledger as a snapshot file.
//!
//! Invariant: the file holds one moment; commands applied while it is written are not in it. Writing it delays
//! neither applying nor the image.
//! Absent: the receiver of the file, and its use; see `restore`.

use std::collections::BTreeSet;
use std::io::Write;

use rollout_storage::{Snapshot, SnapshotFileWriter, SnapshotHeader, SnapshotMember, StorageError};

use crate::state::identity::Identity;
use crate::state::machine::{LoadError, meta_of};
use crate::types::{SnapshotMeta, term_of};

/// Why a snapshot file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The image cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The image is damaged.
    #[error("{0}")]
    Image(String),
    /// Nothing was ever applied: there is nothing to restore.
    #[error("nothing was applied yet")]
    Empty,
    /// The receiver of the bytes accepts no more of them.
    #[error("the snapshot cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

impl From<LoadError> for BackupError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Storage(error) => Self::Storage(error),
            other => Self::Image(other.to_string()),
        }
    }
}

/// One moment, held until this is dropped.
#[derive(Debug)]
pub struct Backup {
    checkpoint: Snapshot,
    header: SnapshotHeader,
    bytes_estimated: u64,
}

impl Backup {
    /// Completes the header from what the checkpoint holds. Blocks.
    pub(crate) fn new(
        checkpoint: Snapshot,
        header: SnapshotHeader,
        bytes_estimated: u64,
    ) -> Result<Self, BackupError> {
        let meta = meta_of(&checkpoint.open_image()?)?;
        let header = completed(header, &meta).ok_or(BackupError::Empty)?;
        Ok(Self { checkpoint, header, bytes_estimated })
    }

    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// About how many bytes the file will have.
    pub fn bytes_estimated(&self) -> u64 {
        self.bytes_estimated
    }

    /// Writes the file, and returns its digest. Blocks.
    pub fn write_to(&self, out: impl Write) -> Result<[u8; 32], BackupError> {
        let mut file = SnapshotFileWriter::new(out, &self.header)?;
        self.checkpoint
            .open_image()?
            .for_each::<BackupError>(|key, value| Ok(file.record(key, value)?))?;
        Ok(file.finish()?.1)
    }
}

/// The part of the header that is known before the state.
pub(crate) fn header(identity: &Identity, program: &str, wall_ms: u64) -> SnapshotHeader {
    SnapshotHeader {
        cluster_id: identity.cluster_id.to_string(),
        member: identity.name.clone(),
        index: 0,
        term: 0,
        taken_unix_ms: wall_ms,
        cluster_version: 0,
        program: program.to_owned(),
        salvaged: false,
        members: Vec::new(),
    }
}

/// A header completed from the state; `None` for a state to which nothing was applied.
pub(crate) fn completed(mut header: SnapshotHeader, meta: &SnapshotMeta) -> Option<SnapshotHeader> {
    let applied = meta.last_log_id.as_ref()?;
    (header.index, header.term) = (applied.index(), term_of(applied));
    // A cluster restored from the file starts with these voters. Learners are left out: a learner has no vote, and
    // one that replaces a voter has the same name.
    let voters: BTreeSet<u64> = meta.last_membership.voter_ids().collect();
    let of = meta.last_membership.nodes().filter(|(id, _)| voters.contains(id));
    let members = of.map(|(_, member)| SnapshotMember {
        name: member.name.clone(),
        peer_addr: member.peer_addr.clone(),
        client_addr: member.client_addr.clone(),
        zone: member.zone.clone(),
    });
    header.members = members.collect();
    Some(header)
}
