//! Owns: one segment's rows put together with their results.
//!
//! Invariant: each row has one outcome or, where that is allowed, none; a result counts only where the part's row says
//! that it is this row. What is wanted of a part is copied, so that memory does not grow with the parts that a
//! segment's rows are spread over. A segment that cannot be read any more hides no outcome: where that is why all of
//! its rows failed, they are errors without their input.
//! Absent: order among segments.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore, PartRowKind, Segment};
use serde::Deserialize;

use super::format::Lines;
use super::parts::{ObjectError, PartCache, digest_of, fetch};
use super::row::Outcome;
use crate::batch::error::BatchError;

/// Parts of one segment that are fetched at a time.
const PARTS_AHEAD: usize = 8;
/// The class of rows whose segment no worker could read.
const INPUT_UNREADABLE: &str = "input_unreadable";

/// The rows of a segment, ready to be written.
#[derive(Debug)]
pub struct SegmentOutput {
    /// Its number.
    pub number: u32,
    /// The number of its first row.
    pub first_row: u64,
    /// Its rows.
    pub rows: u64,
    /// The segment, or why it cannot be read.
    pub segment: Result<Segment, String>,
    /// The blake3 of its object.
    pub digest: [u8; 32],
    /// Lines of completions.jsonl.
    pub completions: String,
    /// Lines of errors.jsonl.
    pub errors: String,
    /// Completions.
    pub done: u64,
    /// Rows that failed for good.
    pub failed: u64,
    /// Rows without an outcome.
    pub open: u64,
    /// Tokens of the prompts of completed rows.
    pub prompt_tokens: u64,
    /// Tokens of their completions.
    pub completion_tokens: u64,
}

/// What a result says that it cost.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

pub(super) struct Fetch<'a> {
    pub(super) store: &'a BlobStore,
    pub(super) parts: &'a PartCache,
    pub(super) format: &'a Lines,
    pub(super) run: &'a str,
    pub(super) partial: bool,
}

/// Why a segment cannot be read.
enum Lost {
    /// Its bytes are not there any more.
    Always(BatchError),
    /// The store did not answer.
    Now(BatchError),
}

/// What the part says of a row.
struct Found {
    part: usize,
    kind: PartRowKind,
    body: Vec<u8>,
}

impl Fetch<'_> {
    pub(super) async fn segment(
        &self,
        listed: v1::ReadResultsResponse,
    ) -> Result<SegmentOutput, BatchError> {
        let blob = listed.blob.clone().unwrap_or_default();
        let digest = digest_of(&blob).map_err(|error| self.object(error))?;
        let segment = match self.input(&blob, &digest).await {
            Ok(segment) => segment,
            Err(Lost::Always(error)) if self.failed_for_it(&listed) => {
                return self.without_input(&listed, digest, &error.to_string());
            }
            Err(Lost::Always(error) | Lost::Now(error)) => return Err(error),
        };
        let rows = segment.len();
        if rows as u32 != listed.rows
            || listed.parts.len() != rows
            || listed.part_rows.len() != rows
        {
            let message = format!(
                "segment {} has {rows} rows, the ledger lists {} with {} outcomes",
                listed.number,
                listed.rows,
                listed.parts.len()
            );
            return Err(self.inconsistent(message));
        }
        let found = self.results(&listed).await?;
        let texts = self.texts(&listed).await?;
        self.put_together(&listed, segment, digest, &found, &texts)
    }

    async fn input(&self, blob: &v1::BlobRef, digest: &[u8; 32]) -> Result<Segment, Lost> {
        let bytes = fetch(self.store, &blob.key, digest).await.map_err(|error| match error {
            BlobError::Missing { .. } | BlobError::Corrupt { .. } => Lost::Always(error.into()),
            error => Lost::Now(error.into()),
        })?;
        Segment::decode(bytes).map_err(|source| {
            let key = blob.key.clone();
            Lost::Always(self.object(ObjectError::Format { key, source }))
        })
    }

    /// True where every row that has an outcome failed because its input could not be read.
    fn failed_for_it(&self, listed: &v1::ReadResultsResponse) -> bool {
        let all = self.partial || listed.failures.len() as u64 == u64::from(listed.rows);
        all && listed.parts.iter().all(|part| *part == 0)
            && listed.failures.iter().all(|failure| failure.class == INPUT_UNREADABLE)
    }

    fn without_input(
        &self,
        listed: &v1::ReadResultsResponse,
        digest: [u8; 32],
        reason: &str,
    ) -> Result<SegmentOutput, BatchError> {
        let failed = listed.failures.len() as u64;
        let mut output = SegmentOutput {
            number: listed.number,
            first_row: listed.first_row,
            rows: listed.rows.into(),
            segment: Err(format!("segment {}: {reason}", listed.number)),
            digest,
            completions: String::new(),
            errors: String::new(),
            done: 0,
            failed,
            open: u64::from(listed.rows).saturating_sub(failed),
            prompt_tokens: 0,
            completion_tokens: 0,
        };
        for failure in &listed.failures {
            self.format
                .write_without_input(&mut output.errors, failure)
                .map_err(|message| self.inconsistent(format!("row {}: {message}", failure.row)))?;
        }
        Ok(output)
    }

    /// The result of each row that has one.
    async fn results(
        &self,
        listed: &v1::ReadResultsResponse,
    ) -> Result<Vec<Option<Found>>, BatchError> {
        let mut wanted: Vec<Vec<(usize, usize)>> = vec![Vec::new(); listed.part_table.len()];
        for (row, (part, part_row)) in listed.parts.iter().zip(&listed.part_rows).enumerate() {
            if *part == 0 {
                continue;
            }
            match wanted.get_mut(*part as usize - 1) {
                Some(rows) => rows.push((row, *part_row as usize)),
                None => {
                    let message = format!("segment {} names no part {part}", listed.number);
                    return Err(self.inconsistent(message));
                }
            }
        }
        let each = futures::stream::iter(wanted.into_iter().enumerate())
            .filter(|(_, rows)| std::future::ready(!rows.is_empty()))
            .map(|(part, rows)| self.rows_of(listed, part, rows))
            .buffer_unordered(PARTS_AHEAD);
        let mut found: Vec<Option<Found>> = Vec::new();
        found.resize_with(listed.parts.len(), || None);
        let mut each = std::pin::pin!(each);
        while let Some(rows) = each.try_next().await? {
            for (row, result) in rows {
                found[row] = Some(result);
            }
        }
        Ok(found)
    }

    /// The long texts of failures, where they are wanted. One that is gone is none.
    async fn texts(
        &self,
        listed: &v1::ReadResultsResponse,
    ) -> Result<BTreeMap<u64, String>, BatchError> {
        let mut texts = BTreeMap::new();
        for failure in listed.failures.iter().filter(|_| self.format.wants_evidence()) {
            let text = failure.evidence.as_ref().and_then(|evidence| evidence.text.as_ref());
            let Some(blob) = text else { continue };
            let digest = digest_of(blob).map_err(|error| self.object(error))?;
            match fetch(self.store, &blob.key, &digest).await {
                Ok(bytes) => {
                    texts.insert(failure.row, String::from_utf8_lossy(&bytes).into_owned());
                }
                Err(BlobError::Missing { .. } | BlobError::Corrupt { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(texts)
    }

    async fn rows_of(
        &self,
        listed: &v1::ReadResultsResponse,
        part: usize,
        rows: Vec<(usize, usize)>,
    ) -> Result<Vec<(usize, Found)>, BatchError> {
        let blob = &listed.part_table[part];
        let decoded = self.parts.get(blob).await.map_err(|error| self.object(error))?;
        let mut found = Vec::with_capacity(rows.len());
        for (row, part_row) in rows {
            let number = listed.first_row + row as u64;
            match decoded.row(part_row) {
                Some(result) if result.row == number => {
                    let body = result.body.to_vec();
                    found.push((row, Found { part, kind: result.kind, body }));
                }
                Some(result) => {
                    let other = result.row;
                    let message = format!(
                        "row {part_row} of part {} is the run's row {other}, not {number}",
                        blob.key
                    );
                    return Err(self.inconsistent(message));
                }
                None => {
                    let message = format!("part {} has no row {part_row}", blob.key);
                    return Err(self.inconsistent(message));
                }
            }
        }
        Ok(found)
    }

    fn put_together(
        &self,
        listed: &v1::ReadResultsResponse,
        segment: Segment,
        digest: [u8; 32],
        found: &[Option<Found>],
        texts: &BTreeMap<u64, String>,
    ) -> Result<SegmentOutput, BatchError> {
        let mut failures = listed.failures.iter().peekable();
        let mut output = SegmentOutput {
            number: listed.number,
            first_row: listed.first_row,
            rows: segment.len() as u64,
            segment: Ok(segment.clone()),
            digest,
            completions: String::new(),
            errors: String::new(),
            done: 0,
            failed: 0,
            open: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
        };
        for (row, found) in segment.rows().zip(found) {
            let number = listed.first_row + output.done + output.failed + output.open;
            let failure = failures.next_if(|failure| failure.row == number);
            let part = found.as_ref().map(|found| &listed.part_table[found.part]);
            let outcome = match (failure, found) {
                (Some(failure), found) => {
                    let body = found.as_ref().map(|found| &found.body[..]);
                    let text = texts.get(&number).map(String::as_str);
                    Outcome::Failed { failure, part, body, text }
                }
                (None, Some(Found { kind: PartRowKind::Completed, body, .. })) => {
                    let used: Usage = serde_json::from_slice(body).unwrap_or_default();
                    output.prompt_tokens += used.prompt_tokens;
                    output.completion_tokens += used.completion_tokens;
                    Outcome::Done { part: part.unwrap_or(&listed.part_table[0]), body }
                }
                (None, Some(_)) => {
                    let message =
                        format!("the part of row {number} has a failure, the ledger has none");
                    return Err(self.inconsistent(message));
                }
                (None, None) if self.partial => {
                    output.open += 1;
                    continue;
                }
                (None, None) => {
                    return Err(self.inconsistent(format!("row {number} has no outcome")));
                }
            };
            let (lines, count) = match outcome {
                Outcome::Done { .. } => (&mut output.completions, &mut output.done),
                Outcome::Failed { .. } => (&mut output.errors, &mut output.failed),
            };
            self.format
                .write(lines, row.item_id, row.body, &outcome)
                .map_err(|message| self.inconsistent(format!("row {number}: {message}")))?;
            *count += 1;
        }
        match failures.next() {
            None => Ok(output),
            Some(failure) => {
                let message = format!(
                    "segment {} lists a failure of row {}, out of order",
                    listed.number, failure.row
                );
                Err(self.inconsistent(message))
            }
        }
    }

    fn inconsistent(&self, message: String) -> BatchError {
        BatchError::Inconsistent { name: self.run.to_owned(), message }
    }

    fn object(&self, error: ObjectError) -> BatchError {
        match error {
            ObjectError::Store(error) => BatchError::Store(error),
            other => self.inconsistent(other.to_string()),
        }
    }
}
