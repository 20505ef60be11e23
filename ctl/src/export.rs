//! Owns: a run's results as files, made from its segments and parts.
//!
//! Invariant: readers follow the ledger: a row's result is the one that the ledger names, its bytes have the digest
//! that the ledger keeps, and the row in the part says that it is that row. The same run gives the same bytes.
//! Absent: waiting for a run.

pub mod files;
pub mod follow;
pub mod parts;
pub mod row;
pub mod verify;

mod compare;
mod results;
mod sealed;
mod segment;

use futures::StreamExt;
use futures::stream::BoxStream;
use rollout_proto::{Client, v1};
use rollout_storage::BlobStore;

use self::parts::{CACHE_BYTES, PartCache};
use self::results::Results;
use self::row::RowFormat;
pub use self::segment::SegmentOutput;
use crate::batch::error::BatchError;
use crate::batch::spec;
use crate::progress::Progress;

/// Segments that are fetched and formatted at a time.
const SEGMENTS_AHEAD: usize = 4;

/// Takes the rows of a run, segment by segment, in order.
pub trait Sink {
    /// One segment.
    fn segment(&mut self, output: &SegmentOutput) -> Result<(), BatchError>;
    /// The end.
    fn finish(self: Box<Self>) -> Result<(), BatchError>;
}

/// A run whose results are wanted.
pub struct Source<'a> {
    /// The cluster.
    pub client: &'a Client,
    /// Where the run's objects are.
    pub store: BlobStore,
    /// The run.
    pub described: &'a v1::DescribeRunResponse,
    /// Whether rows without an outcome are left out; else they are an error.
    pub partial: bool,
}

/// A run's segments with their outcomes, in order, and its spec in full.
pub(crate) struct Listing<'a> {
    pub(crate) spec: v1::RunSpec,
    pub(crate) segments: BoxStream<'a, Result<v1::ReadResultsResponse, BatchError>>,
}

/// Lists a run: from the leader or, once it is sealed, from its manifest, which has its spec in full too.
pub(crate) async fn listing<'a>(
    client: &Client,
    store: &'a BlobStore,
    described: &'a v1::DescribeRunResponse,
) -> Result<Listing<'a>, BatchError> {
    let run = described.run.as_ref();
    let name = run.map_or("", |run| run.name.as_str());
    if let Some(manifest) = run.and_then(|run| run.manifest.as_ref()) {
        let sealed = sealed::manifest(store, name, manifest).await?;
        let segments = sealed::segments(store, name, sealed.chunks).boxed();
        return Ok(Listing { spec: sealed.spec.unwrap_or_default(), segments });
    }
    let segments = Results::new(client, &run.cloned().unwrap_or_default()).stream().boxed();
    Ok(Listing { spec: described.spec.clone().unwrap_or_default(), segments })
}

/// What was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows of the input.
    pub rows: u64,
    /// Completions.
    pub done: u64,
    /// Rows that failed for good.
    pub failed: u64,
    /// Rows without an outcome.
    pub open: u64,
    /// Segments.
    pub segments: u32,
    /// Parts, one per time that it was fetched.
    pub parts: u64,
}

/// Reads all results into a sink.
pub async fn read(
    source: &Source<'_>,
    mut sink: Box<dyn Sink + Send + '_>,
    progress: &Progress,
) -> Result<Totals, BatchError> {
    let described = source.described;
    let summary = described.run.clone().unwrap_or_default();
    let counts = summary.counts.unwrap_or_default();
    let open = counts.rows.saturating_sub(counts.done + counts.failed);
    if !source.partial && open > 0 {
        return Err(BatchError::NotEnded { name: summary.name, open });
    }
    if !source.partial && !summary.input_closed {
        return Err(BatchError::InputOpen { name: summary.name });
    }
    let Listing { spec: run_spec, segments: results } =
        listing(source.client, &source.store, described).await?;
    let format = RowFormat::new(&run_spec, spec::model_id(&run_spec))?;
    let parts = PartCache::new(source.store.clone(), CACHE_BYTES);
    let fetch = segment::Fetch {
        store: &source.store,
        parts: &parts,
        format: &format,
        run: &summary.name,
        partial: source.partial,
    };
    let stream = results.map(|listed| async {
        match listed {
            Ok(listed) => fetch.segment(listed).await,
            Err(error) => Err(error),
        }
    });
    let mut outputs = std::pin::pin!(stream.buffered(SEGMENTS_AHEAD));
    let mut totals = Totals::default();
    while let Some(output) = outputs.next().await {
        let output = output?;
        if output.first_row != totals.rows {
            let message = format!(
                "segment {} begins at row {}, expected {}",
                output.number, output.first_row, totals.rows
            );
            return Err(BatchError::Inconsistent { name: summary.name.clone(), message });
        }
        sink.segment(&output)?;
        totals.rows += output.rows;
        totals.done += output.done;
        totals.failed += output.failed;
        totals.open += output.open;
        totals.segments += 1;
        progress.writing(totals.rows, counts.rows);
    }
    totals.parts = parts.fetched();
    sink.finish()?;
    Ok(totals)
}
