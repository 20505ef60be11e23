//! Pairs the events of a history: each invocation with its completion.
//!
//! *Invariant:* an operation that did not happen is left out; an operation whose answer is unknown has no end. Two
//! operations are ordered only if one was answered before the other was called; equal times order nothing.

use crate::formats::{Event, Kind, ReadError, ReportedPosition};
use crate::value::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// How many operations one history may have.
const MAX_OPERATIONS: usize = 1 << 27;

/// The functions that change nothing.
pub const READS: &[&str] = &[
    "read",
    "get",
    "export",
    "progress",
    "wait",
    "reach",
    "look",
    "round",
    "alive",
    "pass",
    "over",
    "peers",
    "kept",
    "described",
    "partial",
];

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It took effect and answered this, at this time and line.
    Answered {
        /// The answer; nil if the format repeats no arguments.
        value: Value,
        at: u64,
        /// The line of the completion.
        line: u64,
        /// The operation's log position, as the answer reports it.
        position: Option<ReportedPosition>,
    },
    /// It may take effect at any time after the call, or never.
    Unknown,
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub process: i64,
    /// The function.
    pub f: Arc<str>,
    /// The independent object that it concerns.
    pub key: Option<Arc<str>>,
    /// The request that carried it; one request may carry several operations.
    pub request: Option<Arc<str>>,
    pub input: Value,
    /// When it was called.
    pub called_at: u64,
    /// The line of the invocation.
    pub line: u64,
    pub outcome: Outcome,
}

impl Operation {
    /// When it was answered, if it was.
    pub fn answered_at(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Answered { at, .. } => Some(*at),
            Outcome::Unknown => None,
        }
    }
}

/// Pairs invocations with completions, process by process, in the order of the history.
///
/// # Errors
/// Errors of the reader; a completion without its invocation, or of another one; a process with two operations at
/// once.
pub fn pair(
    events: impl Iterator<Item = Result<Event, ReadError>>,
) -> Result<Vec<Operation>, ReadError> {
    let mut operations: Vec<Option<Operation>> = Vec::new();
    let mut open: HashMap<i64, usize> = HashMap::new();
    for event in events {
        let event = event?;
        let process = event.process;
        match (event.kind, open.get(&process).copied()) {
            (Kind::Invoke, Some(slot)) => {
                let line = operations[slot].as_ref().map_or(0, |o| o.line);
                let what = format!("process {process} still waits for its call of line {line}");
                return Err(ReadError::at(event.line, what));
            }
            (Kind::Invoke, None) => {
                if operations.len() == MAX_OPERATIONS {
                    return Err(ReadError::at(event.line, "too many operations"));
                }
                open.insert(process, operations.len());
                operations.push(Some(invoked(event)));
            }
            (kind, Some(slot)) => {
                open.remove(&process);
                complete(&mut operations[slot], kind, event)?;
            }
            // A process that reports about itself, not about an operation.
            (Kind::Info, None) => {}
            (_, None) => {
                let what = format!("process {process} has no call that this could complete");
                return Err(ReadError::at(event.line, what));
            }
        }
    }
    Ok(operations.into_iter().flatten().collect())
}

fn invoked(event: Event) -> Operation {
    Operation {
        process: event.process,
        f: event.f,
        key: event.key,
        request: event.request,
        input: event.value,
        called_at: event.at,
        line: event.line,
        outcome: Outcome::Unknown,
    }
}

fn complete(slot: &mut Option<Operation>, kind: Kind, event: Event) -> Result<(), ReadError> {
    let Some(operation) = slot else { return Ok(()) };
    let same_key = event.key.is_none() || event.key == operation.key;
    if event.f != operation.f || !same_key {
        let what =
            format!("completes another operation than was called at line {}", operation.line);
        return Err(ReadError::at(event.line, what));
    }
    if event.at < operation.called_at {
        let what = format!("is earlier than its call at line {}", operation.line);
        return Err(ReadError::at(event.line, what));
    }
    match kind {
        Kind::Ok => {
            let Event { value, at, line, position, .. } = event;
            operation.outcome = Outcome::Answered { value, at, line, position };
        }
        Kind::Fail => *slot = None,
        Kind::Info | Kind::Invoke => {}
    }
    Ok(())
}
