//! Owns: finished rows that are added to a part.
//!
//! Invariant: a part holds rows of one run, sorted by attempt and number, and its sets name exactly its rows in their
//! order. It never exceeds the size limit of a part.
//! Absent: durability, which `spool` and `upload` provide.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use rollout_proto::v1;
use rollout_storage::{
    PART_BYTES_MAX, PART_ROWS_MAX, PartRow, PartRowKind, PartWriter, SpooledRow,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::config::PartConfig;
use crate::engine::Completion;
use crate::leased_rows::ranges;

/// A row's overhead beside its body, rounded up.
const ROW_OVERHEAD: usize = 32;
/// The largest body of a result.
pub(crate) const BODY_BYTES_MAX: usize = PART_BYTES_MAX - 64 * 1024;

/// A row's body in a part, as the export of a run reads it.
#[derive(Debug, Serialize, Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    completion: Cow<'a, str>,
    #[serde(borrow)]
    finish_reason: Cow<'a, str>,
    prompt_tokens: u64,
    completion_tokens: u64,
    /// The time by this host's clock, informational only.
    generated_at: String,
    /// Further results of the row, an object.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    extra: Option<&'a RawValue>,
}

/// A part on this worker, or the file with a slot's rows of it: its run, and a number that is unique on this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartId {
    pub(crate) run: u32,
    pub(crate) number: u64,
}

/// One finished row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The slot of the row; 0 until the row is in a part.
    pub(crate) slot: u32,
    pub(crate) attempt: u64,
    pub(crate) row: u64,
    /// The completion as JSON.
    pub(crate) body: Bytes,
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
}

impl Finished {
    pub(crate) fn new(attempt: u64, row: u64, completion: &Completion) -> serde_json::Result<Self> {
        let body = Body {
            completion: completion.text.as_str().into(),
            finish_reason: completion.finish_reason.as_str().into(),
            prompt_tokens: completion.prompt_tokens,
            completion_tokens: completion.completion_tokens,
            generated_at: now_text(),
            extra: extra(&completion.extra)?,
        };
        Ok(Self {
            slot: 0,
            attempt,
            row,
            body: serde_json::to_vec(&body)?.into(),
            tokens_in: completion.prompt_tokens,
            tokens_out: completion.completion_tokens,
        })
    }

    /// A row that an earlier process left behind.
    pub(crate) fn recovered(row: SpooledRow) -> Self {
        let tokens = serde_json::from_slice::<Body<'_>>(&row.body);
        let (tokens_in, tokens_out) =
            tokens.map(|c| (c.prompt_tokens, c.completion_tokens)).unwrap_or_default();
        let body = Bytes::from(row.body);
        Self { slot: 0, attempt: row.attempt, row: row.row, body, tokens_in, tokens_out }
    }

    pub(crate) fn as_part_row(&self) -> PartRow<'_> {
        let (row, attempt) = (self.row, self.attempt);
        PartRow { row, attempt, kind: PartRowKind::Completed, body: &self.body }
    }
}

/// An engine's extra fields, which must be an object.
fn extra(text: &str) -> serde_json::Result<Option<&RawValue>> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text)?;
    serde_json::from_str(text).map(Some)
}

/// The time in UTC, to the second.
fn now_text() -> String {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    // invariant: years of four digits can be formatted; another year is no reason to fail a row.
    now.format(&Rfc3339).unwrap_or_default()
}

/// A part that still grows or waits for its upload.
#[derive(Debug, Clone)]
pub(crate) struct OpenPart {
    pub(crate) id: PartId,
    pub(crate) rows: Vec<Finished>,
    pub(crate) bytes: usize,
    pub(crate) opened: Instant,
    /// Where its rows are spooled: the slots, and their files.
    pub(crate) files: BTreeSet<(u32, PartId)>,
    /// When the store first refused it.
    pub(crate) refused_since: Option<Instant>,
}

/// A part as bytes, with its report to the leader.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) bytes: Bytes,
    pub(crate) sets: Vec<v1::HeldRows>,
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
}

impl OpenPart {
    pub(crate) fn new(id: PartId) -> Self {
        Self {
            id,
            rows: Vec::new(),
            bytes: 0,
            opened: Instant::now(),
            files: BTreeSet::new(),
            refused_since: None,
        }
    }

    /// Whether the part stays within its limits with this row.
    pub(crate) fn fits(&self, row: &Finished) -> bool {
        self.rows.len() < PART_ROWS_MAX
            && self.bytes + row.body.len() + ROW_OVERHEAD <= BODY_BYTES_MAX + ROW_OVERHEAD
    }

    pub(crate) fn push(&mut self, row: Finished) {
        self.bytes += row.body.len() + ROW_OVERHEAD;
        self.rows.push(row);
    }

    /// Whether its rows or bytes require closing it now.
    pub(crate) fn is_full(&self, config: &PartConfig) -> bool {
        self.rows.len() >= config.rows || self.bytes >= config.bytes
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Finished) -> bool) {
        self.rows.retain(keep);
        self.bytes = self.rows.iter().map(|row| row.body.len() + ROW_OVERHEAD).sum();
    }

    /// The part's bytes; sorts its rows. An error means that the caller did not check [`fits`](Self::fits).
    pub(crate) fn encode(&mut self) -> Result<Encoded, rollout_storage::Full> {
        self.rows.sort_by_key(|row| (row.attempt, row.row));
        let mut writer = PartWriter::new();
        for row in &self.rows {
            writer.push(row.as_part_row())?;
        }
        let sets = self.rows.chunk_by(|a, b| a.attempt == b.attempt).map(|set| v1::HeldRows {
            run: self.id.run,
            attempt: set[0].attempt,
            rows: Some(ranges(set.iter().map(|row| row.row))),
        });
        Ok(Encoded {
            bytes: writer.finish(),
            sets: sets.collect(),
            tokens_in: self.rows.iter().map(|row| row.tokens_in).sum(),
            tokens_out: self.rows.iter().map(|row| row.tokens_out).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rollout_storage::Part;

    use super::*;

    fn finished(attempt: u64, row: u64) -> Finished {
        let completion = Completion {
            text: format!("MOCK:{row}"),
            finish_reason: "stop".into(),
            prompt_tokens: 1,
            completion_tokens: 2,
            extra: String::new(),
        };
        Finished::new(attempt, row, &completion).unwrap()
    }

    #[test]
    fn sets_name_the_rows_of_a_part_in_its_order() {
        let mut part = OpenPart::new(PartId { run: 3, number: 0 });
        for (attempt, row) in [(9, 5), (8, 7), (9, 4), (8, 1), (9, 6)] {
            part.push(finished(attempt, row));
        }
        let encoded = part.encode().unwrap();
        let rows: Vec<_> =
            Part::decode(encoded.bytes).unwrap().rows().map(|r| (r.attempt, r.row)).collect();
        assert_eq!(rows, [(8, 1), (8, 7), (9, 4), (9, 5), (9, 6)]);
        let sets: Vec<_> = encoded
            .sets
            .iter()
            .map(|s| (s.attempt, s.rows.clone().unwrap().starts, s.rows.clone().unwrap().lens))
            .collect();
        assert_eq!(sets, [(8, vec![1, 7], vec![1, 1]), (9, vec![4], vec![3])]);
        assert_eq!((encoded.tokens_in, encoded.tokens_out), (5, 10));
    }

    #[test]
    fn every_part_that_fits_can_be_encoded() {
        let mut part = OpenPart::new(PartId { run: 3, number: 0 });
        let mut big = finished(1, 0);
        big.body = Bytes::from(vec![b'x'; BODY_BYTES_MAX]);
        assert!(part.fits(&big));
        part.push(big);
        assert!(!part.fits(&finished(1, 1)));
        part.encode().unwrap();
        let mut part = OpenPart::new(PartId { run: 3, number: 0 });
        for row in 0.. {
            let next = finished(1, row);
            if !part.fits(&next) {
                break;
            }
            part.push(next);
        }
        assert_eq!(part.rows.len(), PART_ROWS_MAX);
        part.encode().unwrap();
    }

    #[test]
    fn extra_fields_are_written_as_they_are_and_must_be_an_object() {
        let with = |extra: &str| {
            let completion = Completion { extra: extra.into(), ..Completion::default() };
            Finished::new(1, 2, &completion)
        };
        let body = with(r#"{"embedding":[0.10,1e-3]}"#).unwrap().body;
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.ends_with(r#","extra":{"embedding":[0.10,1e-3]}}"#), "{text}");
        for bad in ["[]", "1", "{", r#"{"a":}"#, "{} {}"] {
            assert!(with(bad).is_err(), "{bad}");
        }
        assert!(!std::str::from_utf8(&with("").unwrap().body).unwrap().contains("extra"));
    }

    #[test]
    fn a_recovered_row_knows_its_tokens() {
        let row = finished(1, 2);
        let spooled = SpooledRow {
            row: 2,
            attempt: 1,
            kind: PartRowKind::Completed,
            body: row.body.to_vec(),
        };
        assert_eq!(Finished::recovered(spooled), row);
    }
}
