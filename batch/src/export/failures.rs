//! Owns: the kinds of failures found while a run's results were read, and the most common of them.
//!
//! Invariant: at most [`KINDS_MAX`] kinds are kept apart, each with its first row. Rows of further kinds are only
//! counted.
//! Absent: the failures themselves; those are lines of the errors file.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rollout_proto::v1;
use serde::Serialize;

use crate::canonical::Fields;
use crate::quantities::u64_string;

/// Kinds that are kept apart.
const KINDS_MAX: usize = 64;
/// Characters of a message that are kept.
const MESSAGE_CHARS: usize = 300;

/// Failures of one class and code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureKind {
    /// The class, such as `transient`.
    pub class: String,
    /// The code, such as `RO-7001`.
    pub code: String,
    /// How many rows failed permanently with it.
    #[serde(serialize_with = "u64_string")]
    pub rows: u64,
    /// The first of these rows, from 0.
    #[serde(serialize_with = "u64_string")]
    pub example_row: u64,
    /// That row's own ID, as JSON; None if it has none.
    pub example_id: Option<String>,
    /// That row's message, truncated if it is long.
    pub example_message: String,
}

/// Failures by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures {
    kinds: BTreeMap<(String, String), FailureKind>,
    /// Rows of kinds that came after [`KINDS_MAX`] others.
    unsorted: u64,
}

impl Failures {
    /// Counts a row. Rows come in order. `row` is the row's JSON if it is readable.
    pub(super) fn note(&mut self, failure: &v1::FailedRow, row: Option<&[u8]>) {
        let key = (failure.class.clone(), failure.code.clone());
        if let Some(kind) = self.kinds.get_mut(&key) {
            kind.rows += 1;
            return;
        }
        let kind = FailureKind {
            class: failure.class.clone(),
            code: failure.code.clone(),
            rows: 1,
            example_row: failure.row,
            example_id: row.and_then(own_id),
            example_message: shortened(&failure.message),
        };
        self.insert(key, kind);
    }

    /// Adds the failures of later rows.
    pub(super) fn add(&mut self, later: &Self) {
        self.unsorted += later.unsorted;
        for (key, kind) in &later.kinds {
            match self.kinds.get_mut(key) {
                Some(entry) => entry.rows += kind.rows,
                None => self.insert(key.clone(), kind.clone()),
            }
        }
    }

    fn insert(&mut self, key: (String, String), kind: FailureKind) {
        if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(key, kind);
        } else {
            self.unsorted += kind.rows;
        }
    }

    /// All kinds that were kept, the most common first.
    pub fn kinds(&self) -> Vec<FailureKind> {
        let mut kinds: Vec<FailureKind> = self.kinds.values().cloned().collect();
        kinds.sort_by_key(|kind| (std::cmp::Reverse(kind.rows), kind.example_row));
        kinds
    }
}

/// The `id` field of a row, as JSON.
fn own_id(row: &[u8]) -> Option<String> {
    let Fields(fields) = serde_json::from_slice(row).ok()?;
    let id: Option<&(Cow<'_, str>, _)> = fields.iter().find(|(name, _)| name == "id");
    id.map(|(_, value)| value.get().to_owned()).filter(|id| id != "null")
}

/// A message as one line, truncated.
fn shortened(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MESSAGE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(row: u64, code: &str) -> v1::FailedRow {
        v1::FailedRow {
            row,
            class: "transient".into(),
            code: code.into(),
            message: format!("row {row}:\nno luck"),
            attempts: 3,
            evidence: None,
        }
    }

    #[test]
    fn the_commonest_kind_comes_first_with_the_first_row_of_it() {
        let (mut failures, mut later) = (Failures::default(), Failures::default());
        failures.note(&failed(1, "RO-7003"), Some(br#"{"prompt":"a","id":null}"#));
        failures.note(&failed(4, "RO-7001"), Some(br#"{"id":"own-4"}"#));
        later.note(&failed(7, "RO-7001"), None);
        failures.add(&later);
        let kinds = failures.kinds();
        let of = |at: usize| (&*kinds[at].code, kinds[at].rows, kinds[at].example_row);
        assert_eq!((of(0), of(1)), (("RO-7001", 2, 4), ("RO-7003", 1, 1)));
        assert_eq!(kinds[0].example_id.as_deref(), Some("\"own-4\""));
        assert_eq!(kinds[0].example_message, "row 4: no luck");
        assert_eq!(kinds[1].example_id, None);
    }

    #[test]
    fn kinds_and_messages_are_bounded() {
        let mut failures = Failures::default();
        for row in 0..100 {
            failures.note(&failed(row, &format!("C{row}")), None);
        }
        assert_eq!((failures.kinds().len(), failures.unsorted), (KINDS_MAX, 36));
        let long = shortened(&"é".repeat(MESSAGE_CHARS + 1));
        assert_eq!(long.chars().count(), MESSAGE_CHARS + 1);
    }
}
