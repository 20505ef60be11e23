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

mod order;

use crate::formats::ReadError;
use crate::history::LogPosition;
use crate::models::Model;
use crate::operations::{Operation, Outcome};
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

/// States of one object that are followed at once.
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

/// A state, and which floating operations have taken effect in it.
type Possible<S> = (S, Vec<usize>);

/// Replays every object, and compares the order of the log with that of time and epochs.
///
/// # Errors
/// An operation that the model cannot understand, with its line.
pub fn replay<M: Model>(model: &M, operations: &[Operation]) -> Result<Replayed, ReadError> {
    let floors = order::floors(operations);
    let mut found = Replayed { violations: order::broken(operations, &floors), ..<_>::default() };
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
    let more = found.violations.len().saturating_sub(TOLD_MAX);
    found.violations.truncate(TOLD_MAX);
    if more > 0 {
        found.violations.push(format!("and {more} more answers that the log does not explain"));
    }
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
            object.floating.push(Floating { op, after });
            object.events.push(Event { at: place.at, step, operation });
        }
        None if answered && &*operation.f == "read" => {}
        None => object.floating.push(Floating { op, after }),
    }
    Ok(place.is_some())
}

/// Follows every state that an object may have had. `Err(None)`: there were too many.
fn run<M: Model>(model: &M, object: &Object<'_, M::Op>) -> Result<(), Option<String>> {
    let mut possible: HashSet<Possible<M::State>> = HashSet::from([(model.initial(), Vec::new())]);
    let mut last: Option<&Event<'_, M::Op>> = None;
    for event in &object.events {
        possible = closure(model, possible, &object.floating, event.at).ok_or(None)?;
        let next: HashSet<_> = match &event.step {
            Step::By(one) => {
                possible.iter().filter(|(_, used)| used.contains(one)).cloned().collect()
            }
            Step::Here(op) => possible
                .iter()
                .filter_map(|(state, used)| Some((model.step(state, op)?, used.clone())))
                .collect(),
        };
        if next.is_empty() {
            return Err(Some(wrong(model, event, &possible, last)));
        }
        possible = next;
        last = Some(event);
    }
    Ok(())
}

/// Every state that floating operations lead to, if they take effect before `at`.
fn closure<S: Clone + Eq + Hash, M: Model<State = S>>(
    model: &M,
    mut all: HashSet<Possible<S>>,
    floating: &[Floating<M::Op>],
    at: LogPosition,
) -> Option<HashSet<Possible<S>>> {
    let mut left: Vec<Possible<S>> = all.iter().cloned().collect();
    while let Some((state, used)) = left.pop() {
        for (which, one) in floating.iter().enumerate() {
            if used.contains(&which) || one.after.is_some_and(|after| after >= at) {
                continue;
            }
            let Some(next) = model.step(&state, &one.op) else { continue };
            let mut with = used.clone();
            with.push(which);
            with.sort_unstable();
            if all.insert((next.clone(), with.clone())) {
                left.push((next, with));
            }
            if all.len() > STATES_MAX {
                return None;
            }
        }
    }
    Some(all)
}

fn wrong<M: Model>(
    model: &M,
    event: &Event<'_, M::Op>,
    possible: &HashSet<Possible<M::State>>,
    last: Option<&Event<'_, M::Op>>,
) -> String {
    let mut states: Vec<String> = possible.iter().map(|(state, _)| model.show(state)).collect();
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
