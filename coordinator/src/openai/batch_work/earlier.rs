//! What an earlier owner of a batch has read: the ids and the model of the rows in its segments.
//!
//! *Invariant:* ids come from the segments that the ledger names, so a repeated id is noticed whichever members read
//! its two lines. Memory has one segment at a time.

use super::error::WorkError;
use super::reader::Waits;
use rollout_batch::input::batch_file::{BatchFile, Checks, Position};
use rollout_batch::input::duplicates::Duplicates;
use rollout_batch::input::row::own_id_of;
use rollout_batch::input::task::Task;
use rollout_ledger::SegmentDecl;
use rollout_storage::{BlobStore, Segment, segment_key};

/// Adds the ids of earlier segments, and returns the model of their rows; none if there is no segment.
///
/// # Errors
/// A segment or a temporary file cannot be read.
pub(super) fn read(
    (store, waits): (&BlobStore, &Waits),
    (namespace, folder): (&str, &str),
    segments: &[SegmentDecl],
    checks: &Checks,
    ids: &mut Duplicates,
) -> Result<Option<String>, WorkError> {
    let mut model = None;
    for decl in segments {
        let key = segment_key(namespace, folder, &decl.blob.digest);
        let bytes = waits.wait(store.get(&key, &decl.blob.digest))?;
        let bytes = bytes.map_err(|error| WorkError::reading(&error))?;
        let segment = Segment::decode(bytes).map_err(WorkError::failed)?;
        for row in segment.rows() {
            let id = own_id_of(row.body, Task::Openai).unwrap_or_default();
            ids.push(Duplicates::hash(&id), 0, row.line).map_err(WorkError::failed)?;
            if model.is_none() {
                model = model_of(row.body, checks);
            }
        }
    }
    Ok(model)
}

/// The model of a line that is valid.
fn model_of(line: &[u8], checks: &Checks) -> Option<String> {
    let mut file = BatchFile::new(line, Position::default(), checks.clone());
    file.next_line().ok()?;
    file.model().map(str::to_owned)
}
