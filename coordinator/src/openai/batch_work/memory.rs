//! How much memory the work on batches may use.
//!
//! *Invariant:* each task reserves its maximum before it begins, and keeps the reservation until its last byte is
//! released. So all tasks together use at most [`WORK_MIB`], and a task waits if its maximum does not fit.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All work of a member, in MiB.
pub(super) const WORK_MIB: u32 = 256;

/// A piece of the file that is being read.
const PIECE_MIB: u32 = (crate::openai::content::PIECE_BYTES >> 20) as u32;
/// The lines around the present one, and a copy while they grow (`rollout_batch::input::batch_file`).
const LINES_MIB: u32 = 32;
/// The canonical form of a line's request, and the bytes of its item id.
const REQUEST_MIB: u32 = 2 * SEGMENT_MIB;
/// An encoded segment.
const SEGMENT_MIB: u32 = (rollout_storage::SEGMENT_BYTES_MAX >> 20) as u32;
/// Bytes of ids before they go to temporary files.
pub(super) const IDS_BYTES: usize = 8 << 20;
/// The ids while they move to temporary files: those, and the buffers of the files. At the end, sorting them takes
/// 48 MiB for [`BATCH_ROWS_MAX`](rollout_ledger::limits::BATCH_ROWS_MAX) rows, when lines and pieces are released.
const IDS_MIB: u32 = 2 * (IDS_BYTES >> 20) as u32;

/// Validation: what it reads, and a segment with its copy when it is encoded.
pub(super) const VALIDATION_MIB: u32 =
    PIECE_MIB + LINES_MIB + REQUEST_MIB + 2 * SEGMENT_MIB + IDS_MIB;

/// A part of the results.
const PART_MIB: u32 = (rollout_storage::PART_BYTES_MAX >> 20) as u32;
/// Bytes of cached parts.
pub(super) const CACHE_BYTES: u64 = 16 << 20;
/// Parts that are in use at a time.
pub(super) const PARTS_IN_USE: usize = 2;
/// Bytes of results that are formatted at a time, unless one result is larger. A part can contain any result.
pub(super) const RESULTS_BYTES: u64 = 4 << 20;
/// The lines of these results: the results or the one result, and up to 1 KiB of each row's input.
const OUTPUT_LINES_MIB: u32 = PART_MIB + 4;
/// A file that is being written: a piece, and half a piece while it grows.
const FILE_MIB: u32 = PIECE_MIB + PIECE_MIB / 2;

/// Assembly: the input of a segment, the parts, the results and lines of some rows, and two files.
pub(super) const ASSEMBLY_MIB: u32 = SEGMENT_MIB
    + (CACHE_BYTES >> 20) as u32
    + PARTS_IN_USE as u32 * PART_MIB
    + PART_MIB
    + OUTPUT_LINES_MIB
    + 2 * FILE_MIB;

const _: () = assert!(VALIDATION_MIB + ASSEMBLY_MIB <= WORK_MIB, "two tasks must fit");

/// The memory of all work.
pub(super) struct Memory(Arc<Semaphore>);

impl Default for Memory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WORK_MIB as usize)))
    }
}

impl Memory {
    /// Waits until so much is free, and reserves it. `None` only if the semaphore is closed, which nobody does.
    pub(super) async fn reserve(&self, mib: u32) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_many_owned(mib).await.ok()
    }
}
