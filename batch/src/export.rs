//! Owns: a run's results as files, made from its segments and parts.
//!
//! Invariant: the ledger decides: a row's result is the one that the ledger names, its bytes have the digest that the
//! ledger keeps, and the row in the part names that row. The same run gives the same bytes.
//! Absent: waiting for a run.

pub mod atomic_file;
pub mod failures;
pub mod follow;
pub mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod layout;
// Without `tables`, nothing writes an output directory, and parts of `manifest`, `owner`, `names` and `output_sink` are
// unused.
#[cfg_attr(not(feature = "tables"), allow(dead_code))]
pub mod manifest;
#[cfg(feature = "tables")]
pub mod output;
#[cfg_attr(not(feature = "tables"), allow(dead_code))]
pub mod owner;
pub mod parts;
pub mod row;
#[cfg(feature = "tables")]
pub mod verify;

#[cfg(feature = "tables")]
mod compare;
mod live;
#[cfg_attr(not(feature = "tables"), allow(dead_code))]
mod names;
#[cfg_attr(not(feature = "tables"), allow(dead_code))]
mod output_sink;
mod piece;
mod results;
mod sealed;
mod segment;
#[cfg(feature = "tables")]
mod spool;
mod usage;

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use rollout_proto::{Client, v1};
use rollout_storage::BlobStore;

use self::failures::Failures;
use self::format::{Lines, OutputFormat};
pub use self::output_sink::local_dir;
pub use self::piece::{LeftOut, Piece, Reading};
use self::segment::Step;
pub use self::segment::{Fetch, ReadBounds, SegmentOutput};
use crate::submission::error::BatchError;

/// Segments that are fetched and formatted ahead of the current one, each up to its first piece.
const SEGMENTS_AHEAD: usize = 4;

/// Called with the rows that were read so far, and all rows of the run.
pub type OnRows<'a> = dyn Fn(u64, u64) + Send + Sync + 'a;

/// Receives the rows of a run, segment by segment, in order.
pub trait Sink {
    /// A segment begins.
    fn segment(&mut self, segment: &SegmentOutput) -> Result<(), BatchError>;
    /// Its next rows.
    fn rows(&mut self, piece: &Piece) -> Result<(), BatchError>;
    /// Does a bounded part of the remaining work after all rows were seen. False: the rest is for `finish`.
    fn settle(&mut self) -> Result<bool, BatchError> {
        Ok(false)
    }
    /// Completes the output.
    fn finish(self: Box<Self>) -> Result<(), BatchError>;
}

/// A run to read.
pub struct Source<'a> {
    pub client: &'a Client,
    /// The store of the run's objects.
    pub store: BlobStore,
    /// The run.
    pub described: &'a v1::DescribeRunResponse,
    /// Whether rows without an outcome are omitted; otherwise they are an error.
    pub partial: bool,
    /// The format of the lines.
    pub format: OutputFormat,
}

/// A run's segments with their outcomes, in order, and its full spec.
pub struct Listing<'a> {
    pub spec: v1::RunSpec,
    pub segments: BoxStream<'a, Result<v1::ReadResultsResponse, BatchError>>,
}

/// Lists a run: from the leader or, once it is sealed, from its manifest, which also has its full spec.
pub async fn listing<'a>(
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

/// Totals over everything read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows of the input.
    pub rows: u64,
    /// Completions.
    pub done: u64,
    /// Rows that failed permanently.
    pub failed: u64,
    /// Rows without an outcome.
    pub open: u64,
    pub segments: u32,
    /// Parts, counted once per fetch.
    pub parts: u64,
    /// Tokens of the prompts of completed rows.
    pub prompt_tokens: u64,
    /// Tokens of their completions.
    pub completion_tokens: u64,
}

/// The result of reading a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOutcome {
    pub totals: Totals,
    /// Why rows failed.
    pub failures: Failures,
}

impl Totals {
    /// Counts rows.
    fn add(&mut self, piece: &Piece) {
        self.rows += piece.rows;
        self.done += piece.done;
        self.failed += piece.failed;
        self.open += piece.open;
        self.prompt_tokens = self.prompt_tokens.saturating_add(piece.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(piece.completion_tokens);
    }
}

/// Reads all results into a sink.
pub async fn read(
    source: &Source<'_>,
    mut sink: Box<dyn Sink + Send + '_>,
    on_rows: &OnRows<'_>,
) -> Result<ReadOutcome, BatchError> {
    let described = source.described;
    let summary = described.run.clone().unwrap_or_default();
    let counts = summary.counts.unwrap_or_default();
    let open = counts.rows.saturating_sub(counts.done + counts.failed);
    if !source.partial && open > 0 {
        return Err(BatchError::NotEnded { name: summary.name, open });
    }
    if !source.partial && !summary.input_closed {
        let (namespace, name) = (summary.namespace, summary.name);
        return Err(BatchError::InputOpen { namespace, name });
    }
    let Listing { spec: run_spec, segments: results } =
        listing(source.client, &source.store, described).await?;
    let format = Lines::new(&run_spec, source.format)?;
    let name = summary.name.clone();
    let fetch = Arc::new(Fetch::new(source.store.clone(), format, name, source.partial));
    let started =
        results.map(|listed| std::future::ready(listed.map(|listed| fetch.spawn(listed))));
    let mut started = std::pin::pin!(started.buffered(SEGMENTS_AHEAD));
    let (mut totals, mut failures) = (Totals::default(), Failures::default());
    while let Some(steps) = started.next().await {
        let mut steps = steps?;
        let mut end = totals.rows;
        while let Some(step) = steps.recv().await {
            match step? {
                Step::Segment(segment) => {
                    end += segment.rows;
                    totals.segments += 1;
                    if segment.first_row != totals.rows {
                        let message = format!(
                            "segment {} begins at row {}, expected {}",
                            segment.number, segment.first_row, totals.rows
                        );
                        return Err(fetch.inconsistent(message));
                    }
                    sink.segment(&segment)?;
                }
                Step::Rows(piece) => {
                    sink.rows(&piece)?;
                    totals.add(&piece);
                    failures.add(&piece.failures);
                    on_rows(totals.rows, counts.rows);
                }
            }
        }
        // A segment that was not read to its end is incomplete.
        if totals.rows != end {
            return Err(fetch.inconsistent(format!("row {} was not read", totals.rows)));
        }
    }
    totals.parts = fetch.parts.fetched();
    while sink.settle()? {
        // Otherwise a signal that ends the caller's wait would be noticed only at the end.
        tokio::task::yield_now().await;
    }
    sink.finish()?;
    Ok(ReadOutcome { totals, failures })
}
