//! Owns: the ledger's records of an image as an iterator.
//!
//! Invariant: records arrive in the order of their keys, without this crate's own, and a damaged record is an error,
//! never a shorter iteration.
//! Absent: what a record means.

use std::sync::mpsc;

use rollout_storage::{ImageStore, StorageError};

/// Keys of the image that belong to this crate; the ledger never sees them.
const OWN_PREFIX: &[u8] = b"raft/";

/// Whether a record belongs to this crate.
pub(crate) fn is_own(key: &[u8]) -> bool {
    key.starts_with(OWN_PREFIX)
}

/// Records that may wait between the reader and the consumer.
const AHEAD: usize = 1024;

/// A key and its value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// Feeds every record of the ledger to `consume` while they are read on a thread of their own. `started` runs
/// when the point in time that is read is fixed: later writes are not seen. Blocks.
pub(crate) fn with_records<R>(
    image: &ImageStore,
    started: Box<dyn FnOnce() + Send>,
    consume: impl FnOnce(mpsc::IntoIter<Record>) -> R,
) -> Result<R, StorageError> {
    let (ahead, records) = mpsc::sync_channel(AHEAD);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut started = Some(started);
            image.for_each::<StorageError>(|key, value| {
                if let Some(started) = started.take() {
                    started();
                }
                if !is_own(key) {
                    // The consumer may stop early; then its result counts, and the rest is dropped.
                    drop(ahead.send((key.to_vec(), value.to_vec())));
                }
                Ok(())
            })
        });
        let result = consume(records.into_iter());
        match reader.join() {
            Ok(read) => read.map(|()| result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
