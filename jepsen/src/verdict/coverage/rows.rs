//! Counts what happened to rows, as far as answers show it.
//!
//! *Invariant:* these counts serve human readers and the minimums of a pass; none of them is evidence of a violation.

use crate::history::LogPosition;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Rows whose last read found nothing decided.
pub(super) fn undecided(operations: &[Operation]) -> u64 {
    let mut last: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| &*operation.f == "read") {
        let Outcome::Answered { value, at, .. } = &operation.outcome else { continue };
        let last = last.entry(operation.key.as_deref().unwrap_or_default()).or_default();
        *last = (*last).max((*at, *value == Value::Nil));
    }
    last.values().filter(|(_, undecided)| *undecided).count() as u64
}

/// Rows that were stolen, and rows that were granted while an earlier attempt was live, as far as the positions of
/// answers show it.
pub(super) fn shared(operations: &[Operation]) -> (u64, u64) {
    let mut given_up = BTreeSet::new();
    let mut over: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    let mut granted: BTreeMap<&str, Vec<(LogPosition, i64)>> = BTreeMap::new();
    for operation in operations {
        let Outcome::Answered { value, position: Some(position), .. } = &operation.outcome else {
            continue;
        };
        let key = operation.key.as_deref().unwrap_or_default();
        match (&*operation.f, value, &operation.input) {
            ("claim" | "lease", Value::Int(attempt), _) => {
                granted.entry(key).or_default().push((position.at, *attempt));
            }
            (f, Value::Bool(taken), Value::List(input)) => {
                if let Some(Value::Int(attempt)) = input.first().filter(|_| *taken) {
                    over.insert((key, *attempt), position.at.index);
                }
                if f == "yield" && *taken {
                    given_up.insert((key, position.at));
                }
            }
            _ => {}
        }
    }
    let (mut stolen, mut doubled) = (0, 0);
    for (key, mut grants) in granted {
        grants.sort_unstable();
        stolen += grants.iter().filter(|(at, _)| given_up.contains(&(key, *at))).count() as u64;
        for pair in grants.windows(2) {
            // The earlier one finished, or was given back, after the later one was granted.
            let end = over.get(&(key, pair[0].1));
            doubled += u64::from(end.is_some_and(|end| *end > pair[1].0.index));
        }
    }
    (stolen, doubled)
}

/// Rows first reported as ended in a report that was made while a fault was in force.
pub(super) fn under(bands: &[(u64, u64, &str)], operations: &[Operation]) -> u64 {
    let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
    let mut under = 0;
    for operation in operations.iter().filter(|operation| &*operation.f == "progress") {
        let Outcome::Answered { value: Value::List(counts), at, .. } = &operation.outcome else {
            continue;
        };
        let [.., Value::Int(done), Value::Int(failed)] = counts.as_slice() else { continue };
        let before = ended.entry(operation.key.as_deref().unwrap_or_default()).or_default();
        let now = u64::try_from(done + failed).unwrap_or(0).max(*before);
        if bands.iter().any(|(from, to, _)| operation.called_at >= *from && at <= to) {
            under += now - *before;
        }
        *before = now;
    }
    under
}
