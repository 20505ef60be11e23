//! Content of files: objects in folders of the cluster's store.
//!
//! *Invariant:* a folder is written by one request and never again, so no two contents share an object, and removing a
//! folder removes nothing of another file. Its name is the mark of the cluster that wrote it and the id of the file or
//! part for which it was written.
//!
//! A request names the ledger time at which it began to write. [`limits::CONTENT_WRITE_MS_MAX`] later the ledger refuses
//! it. So the garbage collector may remove a folder that no record names once that time has passed: no later operation can
//! name it.
//!
//! Absent: the keys of objects (`rollout_storage::content_key`).

use crate::kernel::blob_ref::BlobRef;
use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

/// Objects of one folder, in the order of the content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The folder, within those of the namespace.
    pub folder: String,
    /// Its objects. One may occur several times.
    pub pieces: Vec<BlobRef>,
}

impl Extent {
    /// The length of its content in bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
    }

    /// Refuses a folder that is not `<mark>-<id>`, and pieces out of bounds.
    pub(super) fn check(&self, id: &str) -> Result<(), Rejection> {
        let marked = self.folder.strip_suffix(id).and_then(|mark| mark.strip_suffix('-'));
        let is_mark = |mark: &str| {
            (1..=limits::CONTENT_MARK_BYTES_MAX).contains(&mark.len())
                && mark.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if !marked.is_some_and(is_mark) {
            let folder = &self.folder;
            return Err(Rejection::Invalid(format!("{folder} is not a folder for {id}")));
        }
        let sizes = 1..=limits::CONTENT_PIECE_BYTES_MAX;
        if !self.pieces.iter().all(|piece| sizes.contains(&piece.bytes)) {
            let max = limits::CONTENT_PIECE_BYTES_MAX;
            return Err(Rejection::Invalid(format!("a piece of a file has 1 to {max} bytes")));
        }
        Ok(())
    }
}

/// The length of a content in bytes.
pub(super) fn bytes_of(content: &[Extent]) -> u64 {
    content.iter().map(Extent::bytes).sum()
}

/// How many pieces a content has.
pub(super) fn pieces_of(content: &[Extent]) -> u64 {
    content.iter().map(|extent| extent.pieces.len() as u64).sum()
}

/// Whether two contents have the same pieces, in whatever folders.
pub(super) fn same_pieces(one: &[Extent], other: &[Extent]) -> bool {
    let pieces = |content: &'_ [Extent]| -> Vec<BlobRef> {
        content.iter().flat_map(|extent| extent.pieces.clone()).collect()
    };
    pieces(one) == pieces(other)
}

/// When an operation that began to write at `begun_at`, or an earlier one, is refused.
pub(super) fn write_ends(begun_at: LedgerMs) -> LedgerMs {
    LedgerMs(begun_at.0.saturating_add(limits::CONTENT_WRITE_MS_MAX))
}

/// An id of an object: its prefix, and letters and digits.
pub(super) fn check_id(prefix: &str, id: &str) -> Result<(), Rejection> {
    let drawn = id.strip_prefix(prefix).unwrap_or_default();
    let good = (1..=limits::API_ID_BYTES_MAX).contains(&drawn.len())
        && drawn.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match good {
        true => Ok(()),
        false => {
            let max = limits::API_ID_BYTES_MAX;
            Err(Rejection::Invalid(format!("an id is {prefix} and 1 to {max} letters and digits")))
        }
    }
}
