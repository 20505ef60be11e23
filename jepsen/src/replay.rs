//! Replays a history in the order of its log: every answer says where it stands, and there the
//! object must have been such that it gives that answer.
//!
//! Beside the search, which ignores places, this needs no luck: one wrong answer is enough, and
//! which of two orders the members took is not left open.
//!
//! *Invariant:* a violation is a proof, given the places. An operation takes effect at its place;
//! one that was sent more than once, there or earlier; one without an answer, anywhere after
//! its call or never. None takes effect before what had been answered when it was called.
//!
//! Absent: answers without a place. They are the search's alone.

mod frontier;
mod order;

use crate::formats::ReadError;
use crate::history::LogPosition;
use crate::models::Model;
use crate::operations::{Operation, Outcome, READS};
use frontier::{Frontier, Open};
use std::collections::BTreeMap;

/// States of one object that are followed at once, each as often as there are ways to it.
const STATES_MAX: usize = 20_000;
/// Violations that are told; one is enough for the verdict.
const TOLD_MAX: usize = 10;

/// What a replay found.
#[derive(Debug, Default)]
pub struct Replayed {
    /// What was wrong, for a person.
    pub violations: Vec<String>,
    /// Objects of which too many states were possible to follow them to the end.
    pub unfinished: u64,
    /// Answers that had a place.
    pub placed: u64,
}

/// An operation that takes effect at a place that is not known exactly.
struct Floating<O> {
    op: O,
    /// It stands behind this, which was answered before it was called.
    after: Option<LogPosition>,
    /// By its answer's place it has taken effect; else nobody knows whether it ever does.
    answered: bool,
}

enum Step<O> {
    /// The answer at this place.
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

/// What of the order of the log does not agree with that of time and epochs, or is said of one place twice, and how many
/// answers have places.
pub fn out_of_order(operations: &[Operation]) -> (Vec<String>, u64) {
    let mut broken = order::broken(operations, &order::floors(operations));
    broken.extend(order::used_twice(operations));
    (told_of(broken, "places that are out of order"), order::placed(operations))
}

/// The first of what was found, and how many more there are.
fn told_of(mut found: Vec<String>, of: &str) -> Vec<String> {
    let more = found.len().saturating_sub(TOLD_MAX);
    found.truncate(TOLD_MAX);
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
        found.placed += u64::from(put(model, object, operation, after)?);
    }
    for (key, mut object) in objects {
        // What one worker gives up another may get in the same breath.
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
    found.violations = told_of(found.violations, "answers that the log does not explain");
    Ok(found)
}

/// Adds an operation to its object. True if it has a place.
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
    let (place, op) = match &operation.outcome {
        Outcome::Answered { value, place, line, .. } => (*place, read(Some(value), *line)?),
        Outcome::Unknown => (None, read(None, operation.line)?),
    };
    let answered = operation.outcome != Outcome::Unknown;
    let Some(op) = op else { return Ok(place.is_some()) };
    match place {
        Some(place) if !place.repeated => {
            object.events.push(Event { at: place.at, step: Step::Here(op), operation });
        }
        Some(place) => {
            let step = Step::By(object.floating.len());
            object.floating.push(Floating { op, after, answered: true });
            object.events.push(Event { at: place.at, step, operation });
        }
        None if answered && READS.contains(&&*operation.f) => {}
        None => object.floating.push(Floating { op, after, answered: false }),
    }
    Ok(place.is_some())
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
        format!("{} at {}", order::told(last.operation), last.at)
    });
    format!(
        "{} at {}, but there it was {}; before it: {last}",
        order::told(event.operation),
        event.at,
        states.join(" or ")
    )
}

#[cfg(test)]
mod tests;
