//! Owns: a run's rows as they get their outcome, while the run continues.
//!
//! Invariant: each row's completion is returned once and each row's failure once, whatever happens to members and
//! streams: this code remembers what it returned, and reads outcomes from the leader's ledger alone. Events only tell
//! which segments to read; if events are lost, all open segments are read.
//! Absent: order; rows come as they are committed.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::TryStreamExt;
use rollout_proto::{Client, v1};
use rollout_storage::BlobStore;

use super::format::{Lines, OutputFormat};
use super::full_spec;
use super::live;
use super::segment::Fetch;
use crate::event_stream::{EventStream, LogPosition, Start, StreamItem};
use crate::submission::error::BatchError;
use crate::submission::submit;

/// Which outcomes are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OutcomeFilter {
    /// Both.
    All,
    /// Completions.
    Done,
    /// Rows that failed for good.
    Failed,
}

/// The selected rows of a run.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    pub wanted: OutcomeFilter,
    /// About how many rows, spread over the input; None for all.
    pub sample: Option<u64>,
}

/// Rows that finish within this time are read together.
const MERGE: Duration = Duration::from_millis(100);
/// The kinds of events about outcomes.
const KINDS: [&str; 8] = [
    "completed",
    "failed",
    "run_finished",
    "run_cancelled",
    "run_deadline_exceeded",
    "run_sealed",
    "run_deleted",
    "retried",
];

/// Receives lines; false ends the reading, an error fails it.
pub type Take<'a> = dyn FnMut(&str) -> Result<bool, BatchError> + 'a;

struct Segment {
    first_row: u64,
    /// Returned so far, for each row: its completion, its failure.
    given: Vec<(bool, bool)>,
    /// Rows without a completion at the last read.
    open: usize,
}

/// A run whose rows are read.
pub struct Follow<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
    described: v1::DescribeRunResponse,
    store: BlobStore,
    selection: Selection,
    segments: Vec<Segment>,
}

impl<'a> Follow<'a> {
    /// A reader of a run that was just described.
    pub fn new(
        client: &'a Client,
        (namespace, name): (&'a str, &'a str),
        described: v1::DescribeRunResponse,
        store: BlobStore,
        selection: Selection,
    ) -> Self {
        Self { client, namespace, name, described, store, selection, segments: Vec::new() }
    }

    /// Passes the rows so far to `take` and, if `follow`, later ones until the run ends. Returns the last state of the
    /// run.
    pub async fn run(
        mut self,
        follow: bool,
        take: &mut Take<'_>,
    ) -> Result<v1::RunSummary, BatchError> {
        let run_spec = full_spec(&self.store, &self.described).await?;
        let format = Lines::new(&run_spec, OutputFormat::of_spec(&run_spec))?;
        let fetch = Fetch::new(self.store.clone(), format, self.name.to_owned(), true);
        let mut events = self.events();
        if follow {
            // Events are received from here on; earlier outcomes are read below.
            events.next().await?;
        }
        loop {
            // The state before the reading: a run that had already ended gets no more outcomes.
            let run = self.describe().await?;
            let open = self.open_segments(&run);
            if !self.look(&fetch, open, take).await? || !follow || has_ended(&run) {
                return Ok(run);
            }
            if !self.listen(&mut events, &fetch, take).await? {
                return Ok(run);
            }
        }
    }

    fn events(&self) -> EventStream {
        let filter = v1::EventFilter {
            namespace: self.namespace.to_owned(),
            run: self.name.to_owned(),
            kinds: KINDS.map(str::to_owned).to_vec(),
            ..v1::EventFilter::default()
        };
        EventStream::new(self.client, filter, true, Start::Now)
    }

    async fn describe(&mut self) -> Result<v1::RunSummary, BatchError> {
        self.described = submit::describe(self.client, self.namespace, self.name).await?;
        Ok(self.described.run.clone().unwrap_or_default())
    }

    /// Reads the segments that events name. Returns when all segments must be read; false: the reader is gone.
    async fn listen(
        &mut self,
        events: &mut EventStream,
        fetch: &Fetch,
        take: &mut Take<'_>,
    ) -> Result<bool, BatchError> {
        loop {
            let mut touched = BTreeSet::new();
            let mut again = self.record(events.next().await?, events, &mut touched);
            let merged = tokio::time::sleep(MERGE);
            tokio::pin!(merged);
            while !again {
                tokio::select! {
                    item = events.next() => again = self.record(item?, events, &mut touched),
                    () = &mut merged => break,
                }
            }
            if again {
                return Ok(true);
            }
            for number in touched {
                if !self.look(fetch, number..number + 1, take).await? {
                    return Ok(false);
                }
            }
        }
    }

    /// Records the segments that events touch; true if all segments must be read.
    fn record(
        &self,
        item: StreamItem,
        events: &mut EventStream,
        touched: &mut BTreeSet<u32>,
    ) -> bool {
        let happened = match item {
            StreamItem::Events(happened) => happened,
            StreamItem::End => return true,
            StreamItem::Compacted { oldest } => {
                events.resume_at(LogPosition { index: oldest, position: 0 });
                return true;
            }
        };
        let mut again = false;
        for event in happened {
            let rows = event.rows.unwrap_or_default();
            again |= rows.starts.is_empty();
            for (start, len) in rows.starts.iter().zip(&rows.lens) {
                let end = start + u64::from(*len);
                let mut at = self.segments.partition_point(|s| s.end() <= *start);
                while self.segments.get(at).is_some_and(|s| s.first_row < end) {
                    touched.insert(at as u32);
                    at += 1;
                }
                // Input that was added since.
                again |= self.segments.last().is_none_or(|last| last.end() < end);
            }
        }
        again
    }

    /// From the first segment with a row that has no completion to the last segment of the run.
    fn open_segments(&self, run: &v1::RunSummary) -> std::ops::Range<u32> {
        let first = self.segments.iter().position(|segment| segment.open > 0);
        first.unwrap_or(self.segments.len()) as u32..run.segments
    }

    /// Reads segments and returns their new outcomes. False: the reader is gone.
    async fn look(
        &mut self,
        fetch: &Fetch,
        numbers: std::ops::Range<u32>,
        take: &mut Take<'_>,
    ) -> Result<bool, BatchError> {
        let run = self.described.run.clone().unwrap_or_default();
        let rows = run.counts.unwrap_or_default().rows;
        let every = self.selection.sample.map_or(1, |n| (rows / n.max(1)).max(1));
        let results = live::range(self.client, &fetch.store, run, numbers);
        let mut results = std::pin::pin!(results);
        while let Some(mut listed) = results.try_next().await? {
            let number = listed.number as usize;
            if number == self.segments.len() {
                let given = vec![(false, false); listed.rows as usize];
                let open = given.len();
                self.segments.push(Segment { first_row: listed.first_row, given, open });
            }
            let Some(segment) = self.segments.get_mut(number) else { continue };
            if !segment.keep_new(&mut listed, self.selection.wanted, every) {
                continue;
            }
            let mut reading = fetch.begin(listed).await?;
            while let Some(piece) = reading.next().await? {
                if !take(&piece.completions)? || !take(&piece.errors)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Segment {
    fn end(&self) -> u64 {
        self.first_row + self.given.len() as u64
    }

    /// Keeps in `listed` only selected outcomes that were not returned before, and records them as returned. False if
    /// none is left.
    fn keep_new(
        &mut self,
        listed: &mut v1::ReadResultsResponse,
        wanted: OutcomeFilter,
        every: u64,
    ) -> bool {
        let first_row = self.first_row;
        let failed: BTreeSet<u64> = listed.failures.iter().map(|failure| failure.row).collect();
        let chosen = |row: u64| row.is_multiple_of(every);
        let mut any = false;
        self.open = 0;
        for (row, (part, given)) in (first_row..).zip(listed.parts.iter_mut().zip(&mut self.given))
        {
            let is_failed = failed.contains(&row);
            let done = *part > 0 && !is_failed;
            self.open += usize::from(!done);
            let (seen, want) = match is_failed {
                true => (&mut given.1, wanted != OutcomeFilter::Done),
                false => (&mut given.0, wanted != OutcomeFilter::Failed),
            };
            if !want || *seen || !chosen(row) || !(done || is_failed) {
                // Neither returned nor read again; a failure that was returned is dropped below.
                *part = 0;
            } else {
                *seen = true;
                any = true;
                continue;
            }
            if is_failed {
                listed.failures.retain(|failure| failure.row != row);
            }
        }
        any
    }
}

fn has_ended(run: &v1::RunSummary) -> bool {
    use v1::RunState::{Cancelled, DeadlineExceeded, Finished};
    matches!(run.state(), Cancelled | Finished | DeadlineExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(parts: &[u32], failures: &[u64]) -> v1::ReadResultsResponse {
        let failure = |row: &u64| v1::FailedRow { row: *row, ..v1::FailedRow::default() };
        v1::ReadResultsResponse {
            first_row: 100,
            rows: parts.len() as u32,
            parts: parts.to_vec(),
            part_rows: vec![0; parts.len()],
            failures: failures.iter().map(failure).collect(),
            ..v1::ReadResultsResponse::default()
        }
    }

    fn segment(rows: usize) -> Segment {
        Segment { first_row: 100, given: vec![(false, false); rows], open: rows }
    }

    /// The rest: rows with a part, rows that failed.
    fn left(listed: &v1::ReadResultsResponse) -> (Vec<u64>, Vec<u64>) {
        let parts = (listed.first_row..).zip(&listed.parts).filter(|p| *p.1 > 0).map(|p| p.0);
        (parts.collect(), listed.failures.iter().map(|f| f.row).collect())
    }

    #[test]
    fn each_outcome_is_given_once_however_often_it_is_listed() {
        let mut segment = segment(4);
        let mut first = listed(&[1, 0, 0, 2], &[102]);
        assert!(segment.keep_new(&mut first, OutcomeFilter::All, 1));
        assert_eq!(left(&first), (vec![100, 103], vec![102]));
        assert_eq!(segment.open, 2);
        let mut same = listed(&[1, 0, 0, 2], &[102]);
        assert!(!segment.keep_new(&mut same, OutcomeFilter::All, 1));
        // Row 101 finished meanwhile, and its user retried row 102.
        let mut more = listed(&[1, 3, 3, 2], &[]);
        assert!(segment.keep_new(&mut more, OutcomeFilter::All, 1));
        assert_eq!(left(&more), (vec![101, 102], vec![]));
        assert_eq!(segment.open, 0);
    }

    #[test]
    fn only_rows_that_the_filter_selects_are_returned() {
        let mut only_failed = listed(&[1, 0, 0, 2], &[102]);
        assert!(segment(4).keep_new(&mut only_failed, OutcomeFilter::Failed, 1));
        assert_eq!(left(&only_failed), (vec![], vec![102]));
        let mut only_done = listed(&[1, 0, 0, 2], &[102]);
        assert!(segment(4).keep_new(&mut only_done, OutcomeFilter::Done, 1));
        assert_eq!(left(&only_done), (vec![100, 103], vec![]));
        let mut sampled = listed(&[1, 1, 1, 1], &[]);
        assert!(segment(4).keep_new(&mut sampled, OutcomeFilter::All, 3));
        assert_eq!(left(&sampled).0, [102]);
    }
}
