//! Checks the order of the log against the order of time and of epochs.
//!
//! *Invariant:* an operation that was answered before another was called precedes it in the log. A higher epoch
//! follows a lower one, one index has one epoch, and one position belongs to one request.

use crate::formats::ReportedPosition;
use crate::history::LogPosition;
use crate::operations::{Operation, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// For each operation, the last position that had been answered when it was called.
pub(super) fn floors(operations: &[Operation]) -> Vec<Option<LogPosition>> {
    let mut answered: Vec<(u64, LogPosition)> = operations
        .iter()
        .filter_map(|operation| Some((operation.answered_at()?, position(operation)?.at)))
        .collect();
    answered.sort_unstable();
    let mut called: Vec<usize> = (0..operations.len()).collect();
    called.sort_by_key(|which| operations[*which].called_at);
    let mut floors = vec![None; operations.len()];
    let (mut next, mut highest) = (0, None);
    for which in called {
        while let Some((_, at)) = answered.get(next).filter(|a| a.0 < operations[which].called_at) {
            highest = highest.max(Some(*at));
            next += 1;
        }
        floors[which] = highest;
    }
    floors
}

/// The number of answers with a log position.
pub(super) fn positioned(operations: &[Operation]) -> u64 {
    operations.iter().filter(|operation| position(operation).is_some()).count() as u64
}

/// The conflicts, in words.
pub(super) fn broken(operations: &[Operation], floors: &[Option<LogPosition>]) -> Vec<String> {
    let mut found = Vec::new();
    for (operation, floor) in operations.iter().zip(floors) {
        let (Some(position), Some(floor)) = (position(operation), floor) else { continue };
        // Two reads may be as of the same index.
        let reads = position.at.position == u32::MAX;
        if position.at < *floor || (position.at == *floor && !reads) {
            let (what, at) = (describe(operation), position.at);
            let key = operation.key.as_deref().unwrap_or("?");
            found.push(format!(
                "item {key}: {what} stands at {at}, but when it was called, {floor} was answered"
            ));
        }
    }
    let mut epochs: Vec<(u64, u64, &Operation)> = operations
        .iter()
        .filter_map(|operation| {
            let position = position(operation)?;
            Some((position.at.index, position.epoch?, operation))
        })
        .collect();
    epochs.sort_by_key(|(index, epoch, _)| (*index, *epoch));
    for pair in epochs.windows(2) {
        let ((before, lower, _), (index, epoch, operation)) = (pair[0], pair[1]);
        if epoch < lower || (index == before && epoch != lower) {
            found.push(format!(
                "index {index} is of epoch {epoch} ({}), but {before} of epoch {lower}",
                describe(operation)
            ));
        }
    }
    found
}

/// Positions that two requests claim. Allowed are one operation that moves rows from one worker to another, whose
/// position both get, and a request that was sent more than once, whose answer may be that of a copy.
pub(super) fn used_twice(operations: &[Operation]) -> Vec<String> {
    let mut used: BTreeMap<LogPosition, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        let own = position(operation).filter(|position| !position.repeated);
        if let Some(ReportedPosition { at, .. }) =
            own.filter(|position| position.at.position != u32::MAX)
        {
            used.entry(at).or_default().push(operation);
        }
    }
    let mut found = Vec::new();
    for (at, all) in used {
        let moves = all.iter().any(|operation| &*operation.f == "yield");
        let moved = |operation: &Operation| moves && matches!(&*operation.f, "claim" | "lease");
        let own: Vec<&Operation> = all.into_iter().filter(|operation| !moved(operation)).collect();
        let requests: BTreeSet<_> = own.iter().map(|operation| sent_by(operation)).collect();
        if requests.len() > 1 {
            let described: Vec<String> = own.into_iter().map(describe).collect();
            found.push(format!("two requests stand at {at}: {}", described.join(", and ")));
        }
    }
    found
}

/// The identity of a request: its id, or, if none is recorded, the operation itself.
fn sent_by(operation: &Operation) -> (Option<&str>, i64) {
    match &operation.request {
        Some(request) => (Some(&**request), 0),
        None => (None, operation.process),
    }
}

fn position(operation: &Operation) -> Option<ReportedPosition> {
    match &operation.outcome {
        Outcome::Answered { position, .. } => *position,
        Outcome::Unknown => None,
    }
}

/// An operation with its answer and lines.
pub(super) fn describe(operation: &Operation) -> String {
    let Operation { f, input, line, .. } = operation;
    match &operation.outcome {
        Outcome::Answered { value, line: end, .. } => {
            format!("{f} {input} -> {value} (lines {line} and {end})")
        }
        Outcome::Unknown => format!("{f} {input} (line {line})"),
    }
}
