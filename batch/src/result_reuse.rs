//! Owns: results of earlier revisions that a new one need not compute again.
//!
//! The items of the new input and the finished ones of earlier revisions are joined by item ID. Results of matching
//! items are copied from the old parts into parts of the new run, row by row, and declared together with the segments.
//! Invariant: a result is reused only for a row of the same item ID, all 256 bits of it, from the part row that the
//! ledger names and that itself names that row. Segments and parts have the digests that the ledger keeps. The same
//! revisions give the same parts, byte for byte. Memory does not grow with the rows.
//! Absent: failures: a row that failed in an earlier revision runs again. Which revisions exist (`batch::revision`).

mod copy;
mod join;
mod source;

use rollout_proto::{Client, v1};

pub use self::join::Items;
pub use self::source::Source;
use crate::export::parts::CACHE_BYTES;
use crate::submission::error::BatchError;
use crate::submission::upload::Destination;

#[derive(Debug, Clone, Default)]
pub struct ReusedResults {
    /// Parts of the new run, by segment.
    pub parts: Vec<v1::CarriedPart>,
    /// Rows in them.
    pub rows: u64,
    /// Rows whose result is lost or would be too large: they run again.
    pub left: u64,
}

/// Joins the items of a new input with the finished rows of `sources`, the latest first, and writes parts of the new
/// run.
pub async fn reuse_results(
    client: &Client,
    sources: Vec<Source>,
    mut items: Items,
    segments: &[v1::SegmentDecl],
    destination: &Destination,
) -> Result<ReusedResults, BatchError> {
    let cache_bytes = CACHE_BYTES / sources.len().max(1) as u64;
    let mut parts = Vec::with_capacity(sources.len());
    for (rank, source) in (0..).zip(sources) {
        parts.push(source.read(client, rank, cache_bytes, &mut items).await?);
    }
    let rows = segments.iter().map(|segment| u64::from(segment.rows)).sum();
    let joining = tokio::task::spawn_blocking(move || items.join(rows));
    let matches = joining.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let matches = matches.map_err(join::temporary)?;
    copy::copy(&parts, matches, segments, destination).await
}
