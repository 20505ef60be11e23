//! Checks what users do with whole batches besides waiting: a cancelled batch keeps what was done and accepts nothing
//! more, a deleted batch is gone, and retried rows end once more without changing what was done.
//!
//! *Invariant:* an answer constrains only operations that were called after it.

use super::rows::numbers;
use crate::expected_outcome::ExpectedOutcome;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::BTreeMap;

/// What was found, and how much there was.
#[derive(Default)]
pub(super) struct Endings {
    pub(super) violations: Vec<String>,
    pub(super) counts: Vec<(&'static str, usize)>,
}

/// An answer: when it was asked and answered, and its value.
type TimedAnswer<'a> = (u64, u64, &'a Value);

/// The answers about one batch.
#[derive(Default)]
struct BatchAnswers<'a> {
    answers: BTreeMap<&'a str, Vec<TimedAnswer<'a>>>,
    /// When each function was called, whatever its outcome.
    calls: BTreeMap<&'a str, Vec<u64>>,
    number: u64,
    rows: u64,
}

/// A leader's counts of rows by state.
struct Counts {
    waiting: u64,
    running: u64,
    done: u64,
    failed: u64,
}

fn counts(answer: &Value) -> Option<Counts> {
    let [_, _, waiting, running, done, failed] = numbers(answer)?;
    Some(Counts { waiting, running, done, failed })
}

/// Judges every batch.
pub(super) fn judged(operations: &[Operation]) -> Endings {
    let mut batches: BTreeMap<&str, BatchAnswers<'_>> = BTreeMap::new();
    for operation in operations {
        let batch = batches.entry(operation.key.as_deref().unwrap_or("?")).or_default();
        batch.calls.entry(&operation.f).or_default().push(operation.called_at);
        if let ("submit", Some([number, rows])) = (&*operation.f, numbers(&operation.input)) {
            (batch.number, batch.rows) = (number, rows);
        }
        if let Outcome::Answered { value, at, .. } = &operation.outcome {
            let answers = batch.answers.entry(&operation.f).or_default();
            answers.push((operation.called_at, *at, value));
        }
    }
    let mut violations = Vec::new();
    for (key, batch) in &batches {
        let mut found = batch.cancelled();
        found.extend(batch.deleted());
        found.extend(batch.retried());
        found.extend(batch.kept());
        found.extend(batch.falls());
        violations.extend(found.into_iter().map(|what| format!("{key}: {what}")));
    }
    let count = |f: &str| batches.values().filter(|batch| batch.all(f).next().is_some()).count();
    let counts = vec![
        ("batches that were cancelled", count("cancel")),
        ("batches whose failed rows were tried again", count("retry")),
        ("batches that were deleted", count("delete")),
    ];
    Endings { violations, counts }
}

impl<'a> BatchAnswers<'a> {
    /// The answers to these operations.
    fn all(&self, f: &str) -> impl Iterator<Item = TimedAnswer<'a>> {
        self.answers.get(f).into_iter().flatten().copied()
    }

    /// The first of these answers.
    fn first(&self, f: &str) -> Option<TimedAnswer<'a>> {
        self.all(f).min_by_key(|answer| answer.1)
    }

    /// Checks cancellation: done rows stay done, no row runs, and none starts again.
    fn cancelled(&self) -> Vec<String> {
        let Some((_, cancelled_at, answer)) = self.first("cancel") else { return Vec::new() };
        let mut found = Vec::new();
        let Some(was) = counts(answer) else {
            return vec![format!("it was cancelled, and answered {answer}")];
        };
        for (asked_at, _, answer) in self.all("kept").chain(self.all("progress")) {
            let Some(now) = counts(answer).filter(|_| asked_at > cancelled_at) else { continue };
            if (now.done, now.failed) != (was.done, was.failed) {
                let (then, now) = ((was.done, was.failed), (now.done, now.failed));
                found.push(format!(
                    "when it was cancelled {then:?} rows were done and failed, and later {now:?}"
                ));
            }
            if now.running + now.waiting > 0 {
                found.push(format!("rows of it are under way after it was cancelled: {answer}"));
            }
        }
        for (asked_at, _, lines) in self.all("partial") {
            let states = states(lines);
            let count = |state: &str| states.values().filter(|row| row.0 == state).count() as u64;
            let (done, failed) = (count("done"), count("failed"));
            if asked_at > cancelled_at && (done, failed) != (was.done, was.failed) {
                let then = (was.done, was.failed);
                found.push(format!(
                    "cancelled with {then:?} rows, and exported with {done} and {failed}"
                ));
            }
        }
        for f in ["resume", "retry"] {
            if self.all(f).any(|(asked_at, ..)| asked_at > cancelled_at) {
                found.push(format!("a {f} was not refused after it was cancelled"));
            }
        }
        found
    }

    /// Checks deletion: the batch goes away, and once it is gone it does not come back.
    fn deleted(&self) -> Vec<String> {
        let Some((_, deleted_at, _)) = self.first("delete") else { return Vec::new() };
        let none = Value::text("none");
        let gone = self.all("described").filter(|answer| *answer.2 == none);
        let gone_at = gone.map(|answer| answer.1).min().unwrap_or(u64::MAX);
        let mut found = Vec::new();
        for (asked_at, _, state) in self.all("described") {
            let goes = *state == none || *state == Value::text("RUN_STATE_DELETING");
            if asked_at > deleted_at && !goes {
                found.push(format!("it is {state} after it was deleted"));
            } else if asked_at > gone_at && *state != none {
                found.push(format!("it is {state} after it was gone"));
            }
        }
        found
    }

    /// Checks retries: exactly the rows that failed for good are tried again.
    fn retried(&self) -> Vec<String> {
        if self.calls.contains_key("cancel") {
            return Vec::new();
        }
        let failing = |row: &u64| ExpectedOutcome::of(self.number, *row).class().is_some();
        let failing_rows = (0..self.rows).filter(failing).count() as u64;
        let ended_at = self.first("export").map_or(u64::MAX, |answer| answer.1);
        let mut found = Vec::new();
        let mut earlier = self.calls.get("retry").into_iter().flatten().copied().min();
        for (asked_at, _, answer) in self.all("retry").filter(|answer| answer.0 > ended_at) {
            // At a second retry, the rows of the first may not have failed again yet.
            let first = earlier.take_if(|first| *first == asked_at).is_some();
            let again = match answer {
                Value::Int(again) => u64::try_from(*again).unwrap_or(u64::MAX),
                _ => u64::MAX,
            };
            if again > failing_rows || (first && again < failing_rows) {
                found.push(format!("{answer} rows are tried again, of {failing_rows} that failed"));
            }
        }
        found
    }

    /// A row that was done once stays done, with the same part.
    fn kept(&self) -> Vec<String> {
        let mut exports: Vec<TimedAnswer<'_>> =
            self.all("export").chain(self.all("partial")).collect();
        exports.sort_by_key(|answer| answer.0);
        let mut found = Vec::new();
        for pair in exports.windows(2).filter(|pair| pair[0].1 < pair[1].0) {
            let (before, after) = (states(pair[0].2), states(pair[1].2));
            for (row, was) in before.into_iter().filter(|(_, was)| was.0 == "done") {
                if after.get(&row) != Some(&was) {
                    let now = after.get(&row);
                    found.push(format!("row {row} was {was:?}, and is {now:?}"));
                }
            }
        }
        found
    }

    /// The counts of done and failed rows never decrease, except for failed rows that are retried.
    fn falls(&self) -> Vec<String> {
        let retried = self.calls.contains_key("retry");
        let mut seen: Vec<(u64, u64, Counts)> = self
            .all("progress")
            .filter_map(|(asked_at, at, answer)| Some((asked_at, at, counts(answer)?)))
            .collect();
        seen.sort_by_key(|seen| seen.0);
        let mut found = Vec::new();
        for pair in seen.windows(2).filter(|pair| pair[0].1 < pair[1].0) {
            let (was, now) = (&pair[0].2, &pair[1].2);
            if now.done < was.done || (now.failed < was.failed && !retried) {
                let (was, now) = ((was.done, was.failed), (now.done, now.failed));
                found.push(format!("{was:?} rows were done and failed, and later {now:?}"));
            }
        }
        found
    }
}

/// Each row's state in an output, and its part.
fn states(lines: &Value) -> BTreeMap<i64, (String, String)> {
    let Value::List(lines) = lines else { return BTreeMap::new() };
    let mut rows = BTreeMap::new();
    for line in lines {
        let Value::List(words) = line else { continue };
        if let [Value::Int(row), Value::Text(state), _, Value::Text(part), ..] = words.as_slice() {
            rows.insert(*row, (state.to_string(), part.to_string()));
        }
    }
    rows
}

#[cfg(test)]
mod tests;
