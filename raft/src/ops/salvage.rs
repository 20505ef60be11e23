//! Owns: a snapshot file of one member's directory, made without the others: the last resort after a majority was
//! lost for good.
//!
//! Invariant: the directory does not change, so that trying loses nothing. The file has everything that this member
//! ever received, including what a quorum never confirmed; what only others had received is not in it.
//! Absent: a check that the others are really gone. If they are not, two clusters claim to be one.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use openraft::entry::RaftEntry as _;
use rollout_storage::{
    Identity as Stored, RaftLog, SnapshotFileWriter, SnapshotHeader, StorageError,
};

use crate::codec::{decode_entry, decode_log_id, encode_log_id, encode_stored_membership};
use crate::errors::OpenError;
use crate::ops::backup::{completed, header};
use crate::state::identity::{Identity, contradiction};
use crate::state::log_store::{COMMITTED, READ_BYTES};
use crate::state::machine::{self, APPLIED, MEMBERSHIP, State, load_state};
use crate::state::stores::{IMAGE_DIR, LOG_DIR, Stores};
use crate::types::SnapshotMeta;

/// The contents found in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The header of the file.
    pub header: SnapshotHeader,
    pub digest: [u8; 32],
    /// The last index that this member knew to be committed. The cluster may never have
    /// acknowledged later entries of the file.
    pub committed: u64,
}

/// Why nothing was salvaged.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The directory is not that of a member, is in use, or is damaged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The image or the log cannot be read.
    #[error("{0}")]
    Content(String),
    /// The file exists, or cannot be written.
    #[error("{}: cannot write: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

impl From<StorageError> for SalvageError {
    fn from(error: StorageError) -> Self {
        Self::Open(error.into())
    }
}

/// The owner of a directory: the member's name and its cluster. Blocks.
pub fn owner(dir: &Path) -> Result<Identity, SalvageError> {
    let Some(stored) = Stored::load(dir)? else {
        return Err(contradiction(dir, "it is the directory of no member".to_owned()).into());
    };
    let cluster_id =
        stored.cluster_id.parse().map_err(|error| contradiction(dir, format!("{error}")))?;
    Ok(Identity { cluster_id, member_id: stored.member_id, name: stored.name })
}

/// Writes everything that the member of `dir` has to the new file `out`, durably. The member must not be running.
/// Blocks.
pub fn salvage(
    dir: &Path,
    out: &Path,
    program: &str,
    wall_ms: u64,
) -> Result<Salvaged, SalvageError> {
    let identity = owner(dir)?;
    for part in [LOG_DIR, IMAGE_DIR] {
        if !dir.join(part).is_dir() {
            return Err(contradiction(dir, format!("it has no directory {part:?}")).into());
        }
    }
    let stores = Stores::open(dir)?;
    let content = |error: &dyn std::fmt::Display| SalvageError::Content(error.to_string());
    let mut state =
        load_state(identity.cluster_id, &stores.image, rollout_ledger::SUPPORTED_VERSIONS)
            .map_err(|error| content(&error))?;
    let committed = stores.log.meta(COMMITTED)?;
    let committed = committed.map(|bytes| decode_log_id(Bytes::from(bytes))).transpose();
    let committed_index = committed.map_err(|error| content(&error))?.map_or(0, |id| id.index());
    let imaged = state.applied.as_ref().map_or(0, |id| id.index());
    replay(&stores.log, &mut state)?;
    let mut header = header(&identity, program, wall_ms);
    (header.salvaged, header.cluster_version) = (true, state.ledger.version());
    let meta =
        SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone() };
    let header = completed(header, &meta).ok_or_else(|| content(&"nothing was ever applied"))?;
    let digest = write(out, &header, &state)
        .map_err(|source| SalvageError::Write { path: out.to_owned(), source })?;
    stores.log.close();
    Ok(Salvaged { header, digest, committed: committed_index.max(imaged) })
}

/// Applies, in memory, all that the log has behind the image.
fn replay(log: &RaftLog, state: &mut State) -> Result<(), SalvageError> {
    let bounds = log.bounds();
    let next = |state: &State| state.applied.as_ref().map_or(0, |id| id.index() + 1);
    if let Some((purged, _)) = bounds.purged
        && purged >= next(state)
    {
        let what = format!(
            "the log was purged up to {purged}, the image holds less: what lies between is lost"
        );
        return Err(SalvageError::Content(what));
    }
    let Some((last, _)) = bounds.last else { return Ok(()) };
    while next(state) <= last {
        for (_, bytes) in log.read(next(state), last + 1, READ_BYTES)? {
            let entry = decode_entry(Bytes::from(bytes))
                .map_err(|error| SalvageError::Content(error.to_string()))?;
            if entry.index() != next(state) {
                let what = format!("the log has entry {} at {}", entry.index(), next(state));
                return Err(SalvageError::Content(what));
            }
            let command = machine::read(&entry);
            let command = command.map_err(|error| SalvageError::Content(error.to_string()))?;
            state.step(&entry, command);
            state.ledger.take_events();
        }
    }
    Ok(())
}

fn write(out: &Path, header: &SnapshotHeader, state: &State) -> std::io::Result<[u8; 32]> {
    // Never overwrite a file: the existing one may be the better snapshot.
    let file = OpenOptions::new().write(true).create_new(true).open(out)?;
    let written = write_records(file, header, state);
    if written.is_err() {
        // Its own, and not whole. That it cannot be removed either changes nothing.
        drop(std::fs::remove_file(out));
    }
    written
}

fn write_records(file: File, header: &SnapshotHeader, state: &State) -> std::io::Result<[u8; 32]> {
    let mut writer = SnapshotFileWriter::new(BufWriter::new(file), header)?;
    let mut result = Ok(());
    state.ledger.for_each_record(|key, value| {
        if result.is_ok() {
            result = writer.record(key, value);
        }
    });
    result?;
    if let Some(applied) = &state.applied {
        writer.record(APPLIED, &encode_log_id(applied))?;
    }
    writer.record(MEMBERSHIP, &encode_stored_membership(&state.membership))?;
    let (file, digest) = writer.finish()?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    Ok(digest)
}
