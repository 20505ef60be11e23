//! Owns: a run's results as files, made from its segments and parts.
//!
//! Invariant: readers follow the ledger: a row's result is the one that the ledger names, its bytes have the digest
//! that the ledger keeps, and the row in the part says that it is that row. The same run gives the same bytes.
//! Absent: waiting for a run.

pub mod follow;
pub mod format;
pub mod manifest;
pub mod output;
pub mod parts;
pub mod row;
pub mod verify;

mod compare;
mod live;
mod names;
mod place;
mod results;
mod sealed;
mod segment;

use futures::StreamExt;
use futures::stream::BoxStream;
use rollout_proto::{Client, v1};
use rollout_storage::BlobStore;

use self::format::{Lines, OutputFormat};
use self::parts::{CACHE_BYTES, PartCache};
pub use self::place::local_dir;
pub use self::segment::SegmentOutput;
use crate::batch::error::BatchError;
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
    /// What lines are of.
    pub format: OutputFormat,
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
        let segments = sealed::segments(store, name.to_owned(), sealed.chunks).boxed();
        return Ok(Listing { spec: sealed.spec.unwrap_or_default(), segments });
    }
    let segments = live::segments(client, store, run.cloned().unwrap_or_default()).boxed();
    Ok(Listing { spec: described.spec.clone().unwrap_or_default(), segments })
}

/// A run's spec in full, sealed or not.
pub async fn full_spec(
    store: &BlobStore,
    described: &v1::DescribeRunResponse,
) -> Result<v1::RunSpec, BatchError> {
    let run = described.run.as_ref();
    let name = run.map_or("", |run| run.name.as_str());
    let spec = match run.and_then(|run| run.manifest.as_ref()) {
        Some(manifest) => sealed::manifest(store, name, manifest).await?.spec,
        None => described.spec.clone(),
    };
    Ok(spec.unwrap_or_default())
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
    /// Tokens of the prompts of completed rows.
    pub prompt_tokens: u64,
    /// Tokens of their completions.
    pub completion_tokens: u64,
}

impl Totals {
    /// Counts a segment.
    fn add(&mut self, output: &SegmentOutput) {
        self.rows += output.rows;
        self.done += output.done;
        self.failed += output.failed;
        self.open += output.open;
        self.segments += 1;
        self.prompt_tokens += output.prompt_tokens;
        self.completion_tokens += output.completion_tokens;
    }
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
    let format = Lines::new(&run_spec, source.format)?;
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
        totals.add(&output);
        progress.writing(totals.rows, counts.rows);
    }
    totals.parts = parts.fetched();
    sink.finish()?;
    Ok(totals)
}
