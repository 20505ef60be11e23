//! Owns: the header of the image, and converting between the image and a ledger.
//!
//! Invariant: an image becomes a ledger only if its position, its ledger and its cluster agree.
//! Absent: when it is written; see `image_writer`.

use bytes::Bytes;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Ledger, META_KEY};
use rollout_storage::{ImageBatch, ImageReader, ImageStore, StorageError};

use super::State;
use super::state::check_supported;
use crate::codec::{
    decode_log_id, decode_stored_membership, encode_log_id, encode_stored_membership,
};
use crate::member::ClusterId;
use crate::state::records::with_records;
use crate::types::{LogId, SnapshotMeta, log_id, term_of};

pub(crate) const APPLIED: &[u8] = b"raft/applied";
pub(crate) const MEMBERSHIP: &[u8] = b"raft/membership";

/// Why an image cannot become a ledger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the image of the ledger cannot be read: {0}")]
    Ledger(#[from] rollout_ledger::LoadError),
    #[error("the image of the ledger is inconsistent: {0}")]
    Inconsistent(String),
    /// This build does not run the cluster's version.
    #[error("{0}")]
    Version(String),
}

pub(super) fn batch_of(state: &mut State) -> ImageBatch {
    let delta = state.ledger.drain_dirty();
    let mut puts = delta.puts;
    let applied = state.applied.map(|id| match seeded(Bug::ImageMissesLastEntry) {
        true => log_id(term_of(&id), id.index() + 1),
        false => id,
    });
    if let Some(applied) = &applied {
        puts.push((APPLIED.to_vec(), encode_log_id(applied)));
    }
    puts.push((MEMBERSHIP.to_vec(), encode_stored_membership(&state.membership)));
    ImageBatch { puts, deletes: delta.deletes, delete_prefixes: delta.delete_prefixes }
}

/// The metadata of an image, from its own records.
pub(crate) fn meta_of(image: &ImageReader) -> Result<SnapshotMeta, LoadError> {
    decode_meta(image.get(APPLIED)?, image.get(MEMBERSHIP)?)
}

fn decode_meta(
    applied: Option<Vec<u8>>,
    membership: Option<Vec<u8>>,
) -> Result<SnapshotMeta, LoadError> {
    let bad = |error: crate::codec::CodecError| LoadError::Inconsistent(error.to_string());
    let last_log_id =
        applied.map(|bytes| decode_log_id(Bytes::from(bytes))).transpose().map_err(bad)?;
    let last_membership = membership
        .map(|bytes| decode_stored_membership(Bytes::from(bytes)))
        .transpose()
        .map_err(bad)?
        .unwrap_or_default();
    Ok(SnapshotMeta { last_log_id, last_membership })
}

/// Makes this member's snapshot as new as its image. If power failed between installing an image and taking its
/// snapshot, the older snapshot is still there, but not the log after it: consensus would treat that as damage at
/// every start.
pub(super) fn renew_snapshot(image: &ImageStore, imaged: Option<LogId>) -> Result<(), LoadError> {
    let Some(snapshot) = image.current_snapshot() else { return Ok(()) };
    let taken = meta_of(&snapshot.open_image()?)?.last_log_id;
    if taken < imaged {
        tracing::info!(?taken, ?imaged, "the snapshot is older than the image and is taken again");
        drop(snapshot);
        image.snapshot()?;
    }
    Ok(())
}

/// The state of an image, if this build runs one of these cluster versions.
pub(crate) fn load_state(
    cluster: ClusterId,
    image: &ImageStore,
    versions: (u32, u32),
) -> Result<State, LoadError> {
    let meta = decode_meta(image.get(APPLIED)?, image.get(MEMBERSHIP)?)?;
    let Some(applied) = meta.last_log_id else {
        let ledger = Ledger::new(cluster.0);
        return Ok(State { ledger, applied: None, membership: meta.last_membership });
    };
    // Before the other records: those of a later version may be unreadable, and the error must name the version.
    if let Some(record) = image.get(META_KEY)? {
        let version = Ledger::image_version(&record)?;
        check_supported(version, versions).map_err(LoadError::Version)?;
    }
    let ledger = with_records(image, Box::new(|| {}), Ledger::load)??;
    if ledger.cluster_id() != cluster.0 {
        let found = ClusterId(ledger.cluster_id());
        let text = format!("the image is of cluster {found}, this member belongs to {cluster}");
        return Err(LoadError::Inconsistent(text));
    }
    if ledger.applied().index != applied.index() && !seeded(Bug::ImageMissesLastEntry) {
        let text = format!(
            "the ledger stands at {}, the log position beside it at {applied}",
            ledger.applied().index
        );
        return Err(LoadError::Inconsistent(text));
    }
    Ok(State { ledger, applied: Some(applied), membership: meta.last_membership })
}
