//! Judges a whole history: each key by itself, all within one budget.
//!
//! *Invariant:* [`Verdict::Violation`] and [`Verdict::Linearizable`] are proofs. A search that the budget cut short
//! is [`Verdict::Unknown`], which is no pass.
//!
//! The keys take turns, and each turn has ten times the allowance of the one before, so that one hard key does not
//! hide an easy violation of another.

mod witness;

pub use witness::{Step, Witness};

use crate::formats::ReadError;
use crate::models::Model;
use crate::operations::{Operation, Outcome};
use crate::search::{Interval, Search, Stop};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many configurations each key may visit before all others had their turn.
const FIRST_TURN: u64 = 1_000;
/// The most violated keys to explain.
const EXPLAINED_MAX: usize = 5;

/// The budget for one history.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Configurations visited, over all keys.
    pub configurations: u64,
    pub time: Duration,
}

/// The verdict on a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// One order explains every answer.
    Linearizable,
    /// No order does.
    Violation,
    /// The budget did not suffice to tell.
    Unknown,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Linearizable => "linearizable",
            Self::Violation => "violation",
            Self::Unknown => "unknown",
        })
    }
}

/// A verdict and its cost.
#[derive(Clone, Debug)]
pub struct Judgment {
    pub verdict: Verdict,
    /// How many operations were judged, and how many of those without an answer.
    pub operations: usize,
    /// How many of them have no answer.
    pub unanswered: usize,
    /// Over how many keys.
    pub keys: usize,
    /// Configurations visited.
    pub configurations: u64,
    /// Why the verdict is unknown.
    pub limit: Option<&'static str>,
    /// The keys whose answers no order explains, as far as the budget allowed.
    pub violated: Vec<Violated>,
}

/// The location of a violation.
#[derive(Clone, Debug)]
pub struct Violated {
    /// The key, if the history has keys.
    pub key: Option<Arc<str>>,
    /// The evidence in words, if requested and if this is one of the first violations.
    pub witness: Option<Witness>,
}

/// An operation as a model understands it.
pub(crate) struct Understood<'a, O> {
    operation: &'a Operation,
    /// With its answer; `None` if it has none or tells nothing.
    answered: Option<O>,
    /// As it would be if its answer had been lost.
    unanswered: Option<O>,
}

type Keys<'a, O> = BTreeMap<Option<&'a str>, Vec<Understood<'a, O>>>;

struct Turn<'a, 'h, M: Model> {
    key: Option<&'h str>,
    search: Search<'a, M>,
    verdict: Option<Stop>,
}

/// Judges the operations of one history; with `explain`, adds witnesses to the first violations, which at most
/// doubles the time.
///
/// # Errors
/// An operation that the model cannot understand, with its line.
pub fn judge<M: Model>(
    model: &M,
    operations: &[Operation],
    budget: Budget,
    explain: bool,
) -> Result<Judgment, ReadError> {
    let deadline = Instant::now().checked_add(budget.time);
    let keys = understand(model, operations)?;
    let mut turns: Vec<Turn<'_, '_, M>> = Vec::with_capacity(keys.len());
    for (key, understood) in &keys {
        let search = Search::until(model, &intervals(understood, Prefix::ALL).0, deadline);
        turns.push(Turn { key: *key, search, verdict: None });
    }
    take_turns(&mut turns, budget, deadline);
    let configurations = turns.iter().map(|t| t.search.configurations()).sum();
    let ended = |stop: &Stop| matches!(stop, Stop::Found | Stop::Exhausted);
    let unfinished = turns.iter().find_map(|t| t.verdict.filter(|stop| !ended(stop)));
    let exhausted = turns.iter().filter(|t| t.verdict == Some(Stop::Exhausted));
    let violated: Vec<Option<&str>> = exhausted.map(|t| t.key).collect();
    let verdict = match (violated.is_empty(), unfinished) {
        (false, _) => Verdict::Violation,
        (true, None) => Verdict::Linearizable,
        (true, Some(_)) => Verdict::Unknown,
    };
    let limit = unfinished.filter(|_| verdict == Verdict::Unknown).map(|stop| match stop {
        Stop::OutOfTime => "time",
        Stop::OutOfMemory => "memory",
        _ => "configurations",
    });
    drop(turns);
    let deadline = Instant::now().checked_add(budget.time);
    let witness = |(nth, key): (usize, Option<&str>)| {
        let explained = keys.get(&key).filter(|_| explain && nth < EXPLAINED_MAX);
        let witness = explained
            .map(|understood| witness::find(model, understood, budget.configurations, deadline));
        Violated { key: key.map(Into::into), witness }
    };
    let violated = violated.into_iter().enumerate().map(witness).collect();
    let unanswered = operations.iter().filter(|o| o.outcome == Outcome::Unknown).count();
    let (operations, keys) = (operations.len(), keys.len());
    Ok(Judgment { verdict, operations, unanswered, keys, configurations, limit, violated })
}

/// Lets every key search in turn, even after one is violated, so that violations of the others are reported too.
fn take_turns<M: Model>(turns: &mut [Turn<'_, '_, M>], budget: Budget, deadline: Option<Instant>) {
    let mut left = budget.configurations;
    let mut allowance = FIRST_TURN;
    loop {
        let mut waiting = false;
        for turn in turns.iter_mut().filter(|t| matches!(t.verdict, None | Some(Stop::Paused))) {
            let before = turn.search.configurations();
            let stop = turn.search.run(allowance.min(before.saturating_add(left)), deadline);
            left = left.saturating_sub(turn.search.configurations() - before);
            turn.verdict = Some(stop);
            waiting |= stop == Stop::Paused;
        }
        if !waiting || left == 0 {
            return;
        }
        allowance = allowance.saturating_mul(10);
    }
}

fn understand<'a, M: Model>(
    model: &M,
    operations: &'a [Operation],
) -> Result<Keys<'a, M::Op>, ReadError> {
    let mut keys: Keys<'a, M::Op> = BTreeMap::new();
    for operation in operations {
        let line = operation.line;
        if M::KEYED && operation.key.is_none() {
            return Err(ReadError::at(line, "an operation without a key"));
        }
        let read = |answer| model.read(&operation.f, &operation.input, answer);
        let unanswered = read(None).map_err(|what| ReadError::at(line, what))?;
        let answered = match &operation.outcome {
            Outcome::Unknown => None,
            Outcome::Answered { value, line, .. } => {
                read(Some(value)).map_err(|what| ReadError::at(*line, what))?
            }
        };
        let key = keys.entry(operation.key.as_deref()).or_default();
        key.push(Understood { operation, answered, unanswered });
    }
    Ok(keys)
}

/// A prefix of a history: all answers up to one. If several answers have the same time, their order in the history
/// decides which are in the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix {
    /// The time of its last answer, by which all calls of the prefix were made.
    at: u64,
    /// The number of the operation with this answer.
    last: usize,
}

impl Prefix {
    const ALL: Self = Self { at: u64::MAX, last: usize::MAX };

    /// Whether the operation was called by then.
    fn calls(self, operation: &Operation) -> bool {
        operation.called_at <= self.at
    }

    /// Whether the answer of the operation with this number is in it.
    fn answers(self, operation: &Operation, number: usize) -> bool {
        operation.answered_at().is_some_and(|at| Self { at, last: number } <= self)
    }
}

/// The intervals of a prefix, and the operation of each.
pub(crate) fn intervals<O: Clone>(
    understood: &[Understood<'_, O>],
    prefix: Prefix,
) -> (Vec<Interval<O>>, Vec<usize>) {
    let mut intervals = Vec::new();
    let mut which = Vec::new();
    for (index, one) in understood.iter().enumerate() {
        if !prefix.calls(one.operation) {
            continue;
        }
        let call = one.operation.called_at;
        let in_time = prefix.answers(one.operation, index);
        let ret = one.operation.answered_at().filter(|_| in_time);
        let op = if in_time { &one.answered } else { &one.unanswered };
        if let Some(op) = op {
            intervals.push(Interval { op: op.clone(), call, ret });
            which.push(index);
        }
    }
    (intervals, which)
}
