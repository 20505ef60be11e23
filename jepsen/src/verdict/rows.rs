//! Checks whole batches: every row ends once, as its prompt asks.
//!
//! *Invariant:* a row that is missing, duplicated, invented, or has another outcome than expected is a violation. A
//! batch without an export is a doubt, except for a cancelled one, which need not contain any row.

use crate::expected_outcome::ExpectedOutcome;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The violations, and the doubts.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) violations: Vec<String>,
    pub(super) doubts: Vec<String>,
    pub(super) batches: usize,
}

/// Compares exports with what was submitted, and counts with each other.
pub(super) fn judged(operations: &[Operation]) -> Rows {
    let mut rows = Rows::default();
    let mut exported = BTreeSet::new();
    let mut cancelled = BTreeSet::new();
    let mut submitted: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for operation in operations {
        let key = operation.key.as_deref().unwrap_or("?");
        if let ("submit", Some([batch, count])) = (&*operation.f, numbers(&operation.input)) {
            submitted.insert(key, (batch, count));
        }
    }
    for operation in operations {
        let key = operation.key.as_deref().unwrap_or("?");
        let Outcome::Answered { value, .. } = &operation.outcome else { continue };
        match &*operation.f {
            f @ ("export" | "partial") => {
                exported.insert(key);
                match submitted.get(key) {
                    Some((batch, count)) => {
                        let seen = rows.compare(key, *batch, *count, value);
                        if f == "export" {
                            rows.whole(key, *count, &seen);
                        }
                    }
                    None => rows.violations.push(format!("{key} was exported, never submitted")),
                }
            }
            "progress" | "kept" => rows.conserved(key, value),
            "cancel" => {
                cancelled.insert(key);
            }
            _ => {}
        }
    }
    for key in submitted.keys().filter(|key| !exported.contains(*key)) {
        let what = if cancelled.contains(key) { "was not read" } else { "did not end" };
        rows.doubts.push(format!("{key} {what}"));
    }
    rows.batches = submitted.len();
    rows
}

pub(super) fn numbers<const N: usize>(value: &Value) -> Option<[u64; N]> {
    let Value::List(values) = value else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect::<Option<Vec<u64>>>()?.try_into().ok()
}

impl Rows {
    /// `exported`: for each line of the output its row, `"done"` or `"failed"`, the completion or the class, and
    /// perhaps more. Returns the rows.
    fn compare(&mut self, key: &str, batch: u64, count: u64, exported: &Value) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        let lines = match exported {
            Value::List(lines) => lines.as_slice(),
            _ => &[],
        };
        for line in lines {
            let Value::List(parts) = line else { continue };
            let [Value::Int(row), Value::Text(state), Value::Text(text), ..] = parts.as_slice()
            else {
                self.violations.push(format!("{key}: a line that says {line}"));
                continue;
            };
            let Some(row) = u64::try_from(*row).ok().filter(|row| *row < count) else {
                self.violations.push(format!("{key}: row {row} was never submitted"));
                continue;
            };
            if !seen.insert(row) {
                self.violations.push(format!("{key}: row {row} has two results"));
            }
            let outcome = ExpectedOutcome::of(batch, row);
            let right = match outcome.class() {
                Some(class) => &**state == "failed" && &**text == class,
                None => {
                    let completion = format!("MOCK:{}", outcome.prompt(batch, row));
                    &**state == "done" && **text == *completion
                }
            };
            if !right {
                self.violations.push(format!("{key}: row {row}, {outcome:?}, {state}: {text:?}"));
            }
        }
        seen
    }

    fn whole(&mut self, key: &str, count: u64, seen: &BTreeSet<u64>) {
        let lost: Vec<u64> = (0..count).filter(|row| !seen.contains(row)).collect();
        if let Some(first) = lost.first() {
            self.violations.push(format!("{key}: {} rows lost, the first {first}", lost.len()));
        }
    }

    /// `counts`: the reported rows, pending, waiting, running, done, failed.
    fn conserved(&mut self, key: &str, counts: &Value) {
        let Some([count, pending, waiting, running, done, failed]) = numbers(counts) else {
            return;
        };
        let sum = pending + waiting + running + done + failed;
        if sum != count {
            self.violations
                .push(format!("{key}: {count} rows, but {sum} by their states: {counts}"));
        }
    }
}
