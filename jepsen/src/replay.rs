//! Replays a history in log order: every answer carries its log position, and at that position the object must have
//! been in a state that gives the answer.
//!
//! Unlike the search, which ignores log positions, one wrong answer always suffices, and the order in which the
//! members applied two operations is known.
//!
//! *Invariant:* a violation is a proof, given the positions. An operation takes effect at its position; an operation
//! that was sent more than once, there or earlier; an operation without an answer, anywhere after its call, or never.
//! No operation takes effect before one that had been answered when it was called.
//!
//! Absent: answers without a position. Only the search judges them.

mod frontier;
mod order;

use crate::formats::ReadError;
use crate::history::LogPosition;
use crate::models::Model;
use crate::operations::{Operation, Outcome, READS};
use frontier::{Frontier, Open};
use std::collections::BTreeMap;

/// The most states of one object to follow at once, counting each way to a state.
const STATES_MAX: usize = 20_000;
/// The most violations to report; one is enough for the verdict.
const SHOWN_MAX: usize = 10;

/// The result of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The violations, in words.
    pub violations: Vec<String>,
    /// Objects with too many possible states to follow to the end.
    pub unfinished: u64,
    /// Answers with a log position.
    pub positioned: u64,
}

/// An operation that takes effect at a position that is not known exactly.
struct Floating<O> {
    op: O,
    /// It comes after this position, which was answered before it was called.
    after: Option<LogPosition>,
    /// It has taken effect by its answer's position; otherwise it may never take effect.
    answered: bool,
}

enum Step<O> {
    /// The answer at this position.
    Here(O),
    /// This one has taken effect by now.
    By(usize),
}

struct Event<'a, O> {
    at: LogPosition,
    step: Step<O>,
    operation: &'a Operation,
}

struct Object<'a, O> {
    events: Vec<Event<'a, O>>,
    floating: Vec<Floating<O>>,
}

impl<O> Default for Object<'_, O> {
    fn default() -> Self {
        Self { events: Vec::new(), floating: Vec::new() }
    }
}

/// Conflicts between the log order and the order of time and epochs, positions that are used twice, and the number of
/// answers with a position.
pub fn out_of_order(operations: &[Operation]) -> (Vec<String>, u64) {
    let mut broken = order::broken(operations, &order::floors(operations));
    broken.extend(order::used_twice(operations));
    (shortened(broken, "places that are out of order"), order::positioned(operations))
}

/// The first findings, and the number of the rest.
fn shortened(mut found: Vec<String>, of: &str) -> Vec<String> {
    let more = found.len().saturating_sub(SHOWN_MAX);
    found.truncate(SHOWN_MAX);
    if more > 0 {
        found.push(format!("and {more} more {of}"));
    }
    found
}

/// Replays every object.
///
/// # Errors
/// An operation that the model cannot understand, with its line.
pub fn replay<M: Model>(model: &M, operations: &[Operation]) -> Result<Replayed, ReadError> {
    let floors = order::floors(operations);
    let mut found = Replayed::default();
    let mut objects: BTreeMap<Option<&str>, Object<'_, M::Op>> = BTreeMap::new();
    for (operation, after) in operations.iter().zip(floors) {
        let object = objects.entry(operation.key.as_deref()).or_default();
        found.positioned += u64::from(put(model, object, operation, after)?);
    }
    for (key, mut object) in objects {
        // One operation may take a row from one worker and give it to another.
        object
            .events
            .sort_by_key(|event| (event.at, matches!(&*event.operation.f, "claim" | "lease")));
        match run(model, &object) {
            Ok(()) => {}
            Err(None) => found.unfinished += 1,
            Err(Some(what)) => {
                found.violations.push(format!("item {}: {what}", key.unwrap_or("?")));
            }
        }
    }
    found.violations = shortened(found.violations, "answers that the log does not explain");
    Ok(found)
}

/// Adds an operation to its object. True if it has a log position.
fn put<'a, M: Model>(
    model: &M,
    object: &mut Object<'a, M::Op>,
    operation: &'a Operation,
    after: Option<LogPosition>,
) -> Result<bool, ReadError> {
    let read = |answer, line| {
        let read = model.read(&operation.f, &operation.input, answer);
        read.map_err(|what| ReadError::at(line, what))
    };
    let (position, op) = match &operation.outcome {
        Outcome::Answered { value, position, line, .. } => (*position, read(Some(value), *line)?),
        Outcome::Unknown => (None, read(None, operation.line)?),
    };
    let answered = operation.outcome != Outcome::Unknown;
    let Some(op) = op else { return Ok(position.is_some()) };
    match position {
        Some(position) if !position.repeated => {
            object.events.push(Event { at: position.at, step: Step::Here(op), operation });
        }
        Some(position) => {
            let step = Step::By(object.floating.len());
            object.floating.push(Floating { op, after, answered: true });
            object.events.push(Event { at: position.at, step, operation });
        }
        None if answered && READS.contains(&&*operation.f) => {}
        None => object.floating.push(Floating { op, after, answered: false }),
    }
    Ok(position.is_some())
}

/// Follows every state that an object may have had. `Err(None)`: there were too many.
fn run<M: Model>(model: &M, object: &Object<'_, M::Op>) -> Result<(), Option<String>> {
    let mut possible = Frontier::of(model.initial());
    let mut last: Option<&Event<'_, M::Op>> = None;
    let mut later: Vec<usize> = (0..object.floating.len()).collect();
    later.sort_by_key(|which| std::cmp::Reverse(object.floating[*which].after));
    let mut open: Vec<Open<'_, M::Op>> = Vec::new();
    for event in &object.events {
        while let Some(number) = later.pop_if(|next| object.floating[*next].after < Some(event.at))
        {
            let Floating { op, answered, .. } = &object.floating[number];
            open.push(Open { number, op, answered: *answered });
        }
        if !possible.close(model, &open, STATES_MAX) {
            return Err(None);
        }
        let next = match &event.step {
            Step::By(one) => {
                open.retain(|open| open.number != *one);
                possible.having(*one)
            }
            Step::Here(op) => possible.step(model, op),
        };
        if next.is_empty() {
            return Err(Some(wrong(model, event, &possible, last)));
        }
        possible = next;
        last = Some(event);
    }
    Ok(())
}

fn wrong<M: Model>(
    model: &M,
    event: &Event<'_, M::Op>,
    possible: &Frontier<M::State>,
    last: Option<&Event<'_, M::Op>>,
) -> String {
    let mut states: Vec<String> = possible.states().map(|state| model.show(state)).collect();
    states.sort_unstable();
    states.dedup();
    let last = last.map_or("nothing".to_owned(), |last| {
        format!("{} at {}", order::describe(last.operation), last.at)
    });
    format!(
        "{} at {}, but there it was {}; before it: {last}",
        order::describe(event.operation),
        event.at,
        states.join(" or ")
    )
}

#[cfg(test)]
mod tests;
