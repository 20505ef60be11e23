//! Owns: finished results written as parts of a new run.
//!
//! Invariant: a part belongs to one segment, its rows ascend, and each carries its number in the new run. The matches
//! alone decide which rows share a part, so two clients write the same parts.
//! Absent: declaring them.

use rollout_proto::v1;
use rollout_storage::{BlobError, PartRow, PartRowKind, PartWriter, part_key};

use super::ReusedResults;
use super::join::{Matches, RowLocation, temporary};
use super::source::SourceParts;
use crate::export::parts::ObjectError;
use crate::submission::error::BatchError;
use crate::submission::submit::REUSED_PARTS_PER_REQUEST;
use crate::submission::upload::{Destination, put};

/// Copies the matched results, segment by segment.
pub(super) async fn copy(
    sources: &[SourceParts],
    mut matches: Matches,
    segments: &[v1::SegmentDecl],
    destination: &Destination,
) -> Result<ReusedResults, BatchError> {
    let mut reused = ReusedResults::default();
    let mut end = 0;
    for segment in segments {
        end += u64::from(segment.rows);
        let mut open = Open { segment, destination, writer: PartWriter::new(), rows: Vec::new() };
        let mut parts = 0;
        while let Some((row, location)) = matches.next_before(end).map_err(temporary)? {
            let Some(result) = result(sources, location).await? else {
                reused.left += 1;
                continue;
            };
            if parts == REUSED_PARTS_PER_REQUEST {
                reused.left += 1;
                continue;
            }
            if !open.push(row, &result) {
                open.close(&mut reused).await?;
                parts += 1;
                let fits = parts < REUSED_PARTS_PER_REQUEST && open.push(row, &result);
                reused.left += u64::from(!fits);
            }
        }
        open.close(&mut reused).await?;
    }
    Ok(reused)
}

/// A finished row as in its part.
struct Finished {
    attempt: u64,
    body: Vec<u8>,
}

/// The result at a location; `None` if it is lost, or differs from the ledger's record.
async fn result(
    sources: &[SourceParts],
    location: RowLocation,
) -> Result<Option<Finished>, BatchError> {
    let Some(source) = sources.get(usize::from(location.source)) else { return Ok(None) };
    let Some(blob) = source.parts.get(location.part as usize) else { return Ok(None) };
    let part = match source.cache.get(blob).await {
        Ok(part) => part,
        Err(ObjectError::Store(BlobError::Missing { .. } | BlobError::Corrupt { .. })) => {
            return Ok(None);
        }
        Err(ObjectError::Store(error)) => return Err(error.into()),
        Err(ObjectError::Format { .. } | ObjectError::Digest { .. }) => return Ok(None),
    };
    let found = part.row(location.part_row as usize);
    let found = found.filter(|row| row.row == location.row && row.kind == PartRowKind::Completed);
    Ok(found.map(|row| Finished { attempt: row.attempt, body: row.body.to_vec() }))
}

/// The part that is being filled.
struct Open<'a> {
    segment: &'a v1::SegmentDecl,
    destination: &'a Destination,
    writer: PartWriter,
    rows: Vec<u64>,
}

impl Open<'_> {
    /// Adds a row; false if it does not fit.
    fn push(&mut self, row: u64, result: &Finished) -> bool {
        let (attempt, kind) = (result.attempt, PartRowKind::Completed);
        let pushed = self.writer.push(PartRow { row, attempt, kind, body: &result.body });
        if pushed.is_ok() {
            self.rows.push(row);
        }
        pushed.is_ok()
    }

    /// Writes the rows so far, and begins another part.
    async fn close(&mut self, reused: &mut ReusedResults) -> Result<(), BatchError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.writer).finish();
        let Destination { store, namespace, folder } = self.destination;
        let key = part_key(namespace, folder, blake3::hash(&bytes).as_bytes());
        let blob = put(store, &key, bytes).await?;
        reused.rows += rows.len() as u64;
        reused.parts.push(v1::CarriedPart {
            segment: self.segment.number,
            segment_digest: self.segment.blob.clone().unwrap_or_default().digest,
            blob: Some(blob),
            rows: Some(ranges(&rows)),
        });
        Ok(())
    }
}

/// Ascending rows as ranges.
fn ranges(rows: &[u64]) -> v1::Rows {
    let mut ranges = v1::Rows::default();
    for run in rows.chunk_by(|a, b| a + 1 == *b) {
        ranges.starts.push(run[0]);
        ranges.lens.push(run.len() as u32);
    }
    ranges
}
