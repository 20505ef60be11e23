//! Owns: some rows of a segment combined with their results.
//!
//! Invariant: each row has one outcome or, if that is allowed, none. A result counts only if the part's row names this
//! row. A piece holds at most the bound's bytes of results, or one row. Needed rows are copied out of a part, so memory
//! does not grow with the number of parts that a segment's rows are spread over.
//! Absent: where the rows go.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use rollout_proto::v1;
use rollout_storage::{BlobError, Part, PartRowKind};
use tokio::sync::SemaphorePermit;

use super::failures::Failures;
use super::parts::{digest_of, fetch};
use super::row::Outcome;
use super::segment::{Fetch, SegmentOutput};
use super::usage::Usage;
use crate::submission::error::BatchError;

/// Bytes of results in a piece, unless [`ReadBounds`](super::segment::ReadBounds) says otherwise.
pub(super) const PIECE_BYTES: u64 = 16 << 20;
/// Parts that are in use at a time, unless the bounds say otherwise. At their maximum size that is 256 MiB.
pub(super) const PARTS_AT_A_TIME: usize = 16;
/// How many of these one segment may use.
const PARTS_AHEAD: usize = 8;

/// Consecutive rows, ready to be written.
#[derive(Debug, Default)]
pub struct Piece {
    /// How many.
    pub rows: u64,
    /// Lines of completions.jsonl, or of output.jsonl in OpenAI's format.
    pub completions: String,
    /// Lines of errors.jsonl.
    pub errors: String,
    /// Completions.
    pub done: u64,
    /// Rows that failed permanently.
    pub failed: u64,
    /// Rows without an outcome.
    pub open: u64,
    /// Tokens of the prompts of completed rows.
    pub prompt_tokens: u64,
    /// Of these, from a cache, as an OpenAI response says.
    pub cached_tokens: u64,
    /// Tokens of their completions.
    pub completion_tokens: u64,
    /// Of these, for reasoning, as an OpenAI response says.
    pub reasoning_tokens: u64,
    /// Why rows failed.
    pub failures: Failures,
}

impl Piece {
    fn add_usage(&mut self, used: Usage) {
        // Saturating, because a worker may report any number.
        for (sum, tokens) in [
            (&mut self.prompt_tokens, used.prompt_tokens),
            (&mut self.cached_tokens, used.cached_tokens),
            (&mut self.completion_tokens, used.completion_tokens),
            (&mut self.reasoning_tokens, used.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(tokens);
        }
    }
}

/// Which lines leave out what a row's result or failure says, because their file has no room for it. They are lines of
/// errors.jsonl.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeftOut {
    pub results: bool,
    pub failures: bool,
}

/// A segment that is being read.
pub struct Reading<'a> {
    fetch: &'a Fetch,
    listed: v1::ReadResultsResponse,
    pub segment: SegmentOutput,
    /// For the next pieces. Only OpenAI's format has such lines.
    pub left_out: LeftOut,
    /// The first row of the next piece, counted from the segment's first.
    next: usize,
    /// The next failure.
    failure: usize,
}

/// Rows of one part, in order: their positions in the segment and in the part.
struct WantedRows {
    part: usize,
    rows: Vec<(usize, usize)>,
}

/// The part's content for a row.
struct FoundRow {
    part: usize,
    kind: PartRowKind,
    body: Vec<u8>,
}

/// The results of the rows of a piece, and its end: before the first row that does not fit.
struct FoundRows {
    first: usize,
    end: usize,
    bytes: u64,
    bytes_max: u64,
    rows: BTreeMap<usize, FoundRow>,
}

impl FoundRows {
    fn add(&mut self, row: usize, found: FoundRow) {
        if row >= self.end {
            return;
        }
        self.bytes += found.body.len() as u64;
        self.rows.insert(row, found);
        while self.bytes > self.bytes_max
            && let Some(last) = self.rows.keys().next_back().copied()
        {
            // A larger row gets its own piece.
            self.end_before(last.max(self.first + 1));
            if last == self.first {
                return;
            }
        }
    }

    fn end_before(&mut self, row: usize) {
        self.end = self.end.min(row);
        for (_, dropped) in self.rows.split_off(&self.end) {
            self.bytes -= dropped.body.len() as u64;
        }
    }
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        fetch: &'a Fetch,
        listed: v1::ReadResultsResponse,
        segment: SegmentOutput,
    ) -> Self {
        let left_out = LeftOut::default();
        Self { fetch, listed, segment, left_out, next: 0, failure: 0 }
    }

    /// The next rows, in the order of the input, as many as the bound of a piece allows; None after the last.
    ///
    /// # Errors
    /// An object cannot be read, or contradicts the ledger.
    pub async fn next(&mut self) -> Result<Option<Piece>, BatchError> {
        if self.next == self.listed.parts.len() {
            return match self.listed.failures.get(self.failure) {
                None => Ok(None),
                Some(failure) => {
                    let message = format!(
                        "segment {} lists a failure of row {}, out of order",
                        self.listed.number, failure.row
                    );
                    Err(self.fetch.inconsistent(message))
                }
            };
        }
        if self.segment.segment.is_err() {
            return self.without_input().map(Some);
        }
        let mut found = self.results().await?;
        let texts = self.texts(&mut found).await?;
        self.put_together(&found, &texts).map(Some)
    }

    /// A complete segment whose input is lost.
    fn without_input(&mut self) -> Result<Piece, BatchError> {
        let failed = self.listed.failures.len();
        let rows = self.segment.rows;
        let open = rows.saturating_sub(failed as u64);
        let mut piece = Piece { rows, failed: failed as u64, open, ..Piece::default() };
        for failure in &self.listed.failures {
            let written = self.fetch.format.write_without_input(&mut piece.errors, failure);
            written.map_err(|message| self.wrong_row(failure.row, &message))?;
            piece.failures.note(failure, None);
        }
        (self.next, self.failure) = (self.listed.parts.len(), failed);
        Ok(piece)
    }

    /// The parts of the rows from the next one on, in the order of each part's first row.
    fn wanted(&self) -> Result<Vec<WantedRows>, BatchError> {
        let parts = 0..self.listed.part_table.len();
        let mut wanted: Vec<WantedRows> =
            parts.map(|part| WantedRows { part, rows: Vec::new() }).collect();
        let outcomes = self.listed.parts.iter().zip(&self.listed.part_rows).enumerate();
        for (row, (part, part_row)) in outcomes.skip(self.next).filter(|(_, (part, _))| **part > 0)
        {
            match wanted.get_mut(*part as usize - 1) {
                Some(wanted) => wanted.rows.push((row, *part_row as usize)),
                None => {
                    let message = format!("segment {} names no part {part}", self.listed.number);
                    return Err(self.fetch.inconsistent(message));
                }
            }
        }
        wanted.retain(|wanted| !wanted.rows.is_empty());
        wanted.sort_by_key(|wanted| wanted.rows[0]);
        Ok(wanted)
    }

    /// The result of each row that has one, as far as they fit into a piece.
    async fn results(&self) -> Result<FoundRows, BatchError> {
        let (first, end) = (self.next, self.listed.parts.len());
        let bytes_max = self.fetch.piece_bytes;
        let mut found = FoundRows { first, end, bytes: 0, bytes_max, rows: BTreeMap::new() };
        let mut wanted = self.wanted()?.into_iter();
        let mut fetching = FuturesUnordered::new();
        loop {
            while fetching.len() < PARTS_AHEAD {
                match wanted.next().filter(|wanted| wanted.rows[0].0 < found.end) {
                    Some(wanted) => fetching.push(self.part(wanted)),
                    None => break,
                }
            }
            let Some((wanted, part, _in_use)) = fetching.try_next().await? else {
                return Ok(found);
            };
            for (row, part_row) in &wanted.rows {
                if *row < found.end {
                    found.add(*row, self.row_of(&part, wanted.part, *row, *part_row)?);
                }
            }
        }
    }

    async fn part(
        &self,
        wanted: WantedRows,
    ) -> Result<(WantedRows, Part, Option<SemaphorePermit<'_>>), BatchError> {
        // The semaphore is never closed.
        let in_use = self.fetch.in_use.acquire().await.ok();
        let blob = &self.listed.part_table[wanted.part];
        let part = self.fetch.parts.get(blob).await.map_err(|error| self.fetch.object(error))?;
        Ok((wanted, part, in_use))
    }

    fn row_of(
        &self,
        decoded: &Part,
        part: usize,
        row: usize,
        part_row: usize,
    ) -> Result<FoundRow, BatchError> {
        let number = self.listed.first_row + row as u64;
        let key = &self.listed.part_table[part].key;
        let message = match decoded.row(part_row) {
            Some(result) if result.row == number => {
                return Ok(FoundRow { part, kind: result.kind, body: result.body.to_vec() });
            }
            Some(result) => {
                let other = result.row;
                format!("row {part_row} of part {key} is the run's row {other}, not {number}")
            }
            None => format!("part {key} has no row {part_row}"),
        };
        Err(self.fetch.inconsistent(message))
    }

    /// The long texts of failures, if the format uses them, as far as they fit into a piece. A lost text is missing.
    async fn texts(&self, found: &mut FoundRows) -> Result<BTreeMap<u64, String>, BatchError> {
        let (mut texts, mut bytes) = (BTreeMap::new(), found.bytes);
        let wanted = self.fetch.format.wants_evidence();
        for failure in self.listed.failures[self.failure..].iter().filter(|_| wanted) {
            let text = failure.evidence.as_ref().and_then(|evidence| evidence.text.as_ref());
            let row = failure.row.saturating_sub(self.listed.first_row) as usize;
            let Some(blob) = text.filter(|_| row < found.end) else { continue };
            bytes = bytes.saturating_add(blob.bytes);
            if bytes > found.bytes_max && row > found.first {
                found.end_before(row);
                return Ok(texts);
            }
            let digest = digest_of(blob).map_err(|error| self.fetch.object(error))?;
            match fetch(&self.fetch.store, &blob.key, &digest).await {
                Ok(bytes) => {
                    texts.insert(failure.row, String::from_utf8_lossy(&bytes).into_owned());
                }
                Err(BlobError::Missing { .. } | BlobError::Corrupt { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(texts)
    }

    fn put_together(
        &mut self,
        found: &FoundRows,
        texts: &BTreeMap<u64, String>,
    ) -> Result<Piece, BatchError> {
        let mut failures = self.listed.failures[self.failure..].iter().peekable();
        let mut piece = Piece { rows: (found.end - found.first) as u64, ..Piece::default() };
        for index in found.first..found.end {
            let number = self.listed.first_row + index as u64;
            let failure = failures.next_if(|failure| failure.row == number);
            let result = found.rows.get(&index);
            let text = texts.get(&number).map(String::as_str);
            let row = self.segment.segment.as_ref().ok().and_then(|segment| segment.row(index));
            let row = row.ok_or_else(|| self.wrong_row(number, "it is not in its segment"))?;
            let Some(outcome) = self.outcome(number, failure, result, text)? else {
                let errors = &mut piece.errors;
                let written = self.fetch.format.write_unfinished(errors, row.item_id, row.body);
                written.map_err(|message| self.wrong_row(number, &message))?;
                piece.open += 1;
                continue;
            };
            let (lines, count, left_out) = match outcome {
                Outcome::Done { body, .. } => {
                    piece.add_usage(Usage::of(body));
                    match self.left_out.results {
                        true => (&mut piece.errors, &mut piece.done, true),
                        false => (&mut piece.completions, &mut piece.done, false),
                    }
                }
                Outcome::Failed { .. } => {
                    (&mut piece.errors, &mut piece.failed, self.left_out.failures)
                }
            };
            let format = &self.fetch.format;
            let written = match left_out {
                true => format.write_left_out(lines, row.item_id, row.body),
                false => format.write(lines, row.item_id, row.body, &outcome),
            };
            written.map_err(|message| self.wrong_row(number, &message))?;
            *count += 1;
            if let Outcome::Failed { failure, .. } = outcome {
                piece.failures.note(failure, Some(row.body));
            }
        }
        self.failure = self.listed.failures.len() - failures.len();
        self.next = found.end;
        Ok(piece)
    }

    /// The outcome of a row; None if it has none yet.
    fn outcome<'r>(
        &'r self,
        number: u64,
        failure: Option<&'r v1::FailedRow>,
        found: Option<&'r FoundRow>,
        text: Option<&'r str>,
    ) -> Result<Option<Outcome<'r>>, BatchError> {
        let message = match (failure, found) {
            (Some(failure), found) => {
                let part = found.map(|found| &self.listed.part_table[found.part]);
                let body = found.map(|found| &found.body[..]);
                return Ok(Some(Outcome::Failed { failure, part, body, text }));
            }
            (None, Some(FoundRow { kind: PartRowKind::Completed, body, part })) => {
                let part = &self.listed.part_table[*part];
                return Ok(Some(Outcome::Done { part, body }));
            }
            (None, Some(_)) => {
                format!("the part of row {number} has a failure, the ledger has none")
            }
            (None, None) if self.fetch.partial => return Ok(None),
            (None, None) => format!("row {number} has no outcome"),
        };
        Err(self.fetch.inconsistent(message))
    }

    fn wrong_row(&self, number: u64, message: &str) -> BatchError {
        self.fetch.inconsistent(format!("row {number}: {message}"))
    }
}

#[cfg(test)]
mod tests;
