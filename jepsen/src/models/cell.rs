//! One key of a training job's store with `get`, `set`, `swap` (compare_set), `add`, `append` and `delete`, and with
//! `wait` and `reach`, which check that the key has a value, or a number of at least a given size. Initially nil.
//!
//! *Invariant:* no key is ever set to the empty string, and `add` is used only on keys whose values are all numbers.

use super::{Effect, Model, Need, Shape};
use crate::value::Value;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default)]
pub struct Cell;

/// An operation on the key, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CellOp {
    /// Answered this value, or nil.
    Get(Value),
    /// Put this value.
    Set(Value),
    /// Was to replace the first value by the second; nil: no value. Answered the third, if known.
    Swap(Value, Value, Option<Value>),
    /// Added this much; the sum, if known.
    Add(i64, Option<i64>),
    /// Appended to the text; its new length, if known.
    Append(Arc<str>, Option<i64>),
    /// Deleted the value; whether there was one, if known.
    Delete(Option<bool>),
    /// Found whether there is a value.
    Has(bool),
    /// Found that the value is a number not below this, or that it is not.
    Reached(i64, bool),
}

/// The answer of a swap in a state, and the new state.
fn swapped(state: &Value, expected: &Value, desired: &Value) -> (Value, Value) {
    match state {
        Value::Nil if *expected == Value::Nil => (desired.clone(), desired.clone()),
        Value::Nil => (expected.clone(), Value::Nil),
        current if current == expected => (desired.clone(), desired.clone()),
        current => (current.clone(), current.clone()),
    }
}

fn number(state: &Value) -> Option<i64> {
    match state {
        Value::Nil => Some(0),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn found(answer: Option<&Value>) -> Result<Option<bool>, String> {
    match answer {
        None => Ok(None),
        Some(Value::Bool(found)) => Ok(Some(*found)),
        Some(other) => Err(format!("a wait that answers {other}")),
    }
}

fn spelled(number: i64) -> Value {
    Value::text(&number.to_string())
}

impl Model for Cell {
    type State = Value;
    type Op = CellOp;

    const KEYED: bool = true;

    fn initial(&self) -> Value {
        Value::Nil
    }

    fn step(&self, state: &Value, op: &CellOp) -> Option<Value> {
        match op {
            CellOp::Get(seen) => (seen == state).then(|| state.clone()),
            CellOp::Set(to) => Some(to.clone()),
            CellOp::Swap(expected, desired, answer) => {
                let (expected_answer, left) = swapped(state, expected, desired);
                answer.as_ref().is_none_or(|answer| *answer == expected_answer).then_some(left)
            }
            CellOp::Add(delta, sum) => {
                let now = number(state)?.checked_add(*delta)?;
                sum.is_none_or(|sum| sum == now).then(|| spelled(now))
            }
            CellOp::Append(more, length) => {
                let whole = match state {
                    Value::Text(text) => format!("{text}{more}"),
                    _ => more.to_string(),
                };
                length
                    .is_none_or(|n| i64::try_from(whole.len()) == Ok(n))
                    .then(|| Value::text(&whole))
            }
            CellOp::Delete(was) => {
                was.is_none_or(|was| was == (*state != Value::Nil)).then_some(Value::Nil)
            }
            CellOp::Has(found) => (*found == (*state != Value::Nil)).then(|| state.clone()),
            CellOp::Reached(least, found) => {
                let there = *state != Value::Nil && number(state).is_some_and(|n| n >= *least);
                (there == *found).then(|| state.clone())
            }
        }
    }

    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<CellOp>, String> {
        match (f, input) {
            ("get", _) => Ok(answer.map(|seen| CellOp::Get(seen.clone()))),
            ("set", Value::Text(text)) if !text.is_empty() => Ok(Some(CellOp::Set(input.clone()))),
            ("swap", Value::List(pair)) if pair.len() == 2 => {
                Ok(Some(CellOp::Swap(pair[0].clone(), pair[1].clone(), answer.cloned())))
            }
            ("add", Value::Int(delta)) => match answer {
                None => Ok(Some(CellOp::Add(*delta, None))),
                Some(Value::Int(sum)) => Ok(Some(CellOp::Add(*delta, Some(*sum)))),
                Some(other) => Err(format!("an add that answers {other}")),
            },
            ("append", Value::Text(more)) => match answer {
                None => Ok(Some(CellOp::Append(more.clone(), None))),
                Some(Value::Int(length)) => Ok(Some(CellOp::Append(more.clone(), Some(*length)))),
                Some(other) => Err(format!("an append that answers {other}")),
            },
            ("delete", _) => match answer {
                None => Ok(Some(CellOp::Delete(None))),
                Some(Value::Int(count @ (0 | 1))) => Ok(Some(CellOp::Delete(Some(*count == 1)))),
                Some(other) => Err(format!("a delete that answers {other}")),
            },
            // A wait that gave up has checked, and found no value.
            ("wait", _) => Ok(found(answer)?.map(CellOp::Has)),
            ("reach", Value::Int(least)) => {
                Ok(found(answer)?.map(|found| CellOp::Reached(*least, found)))
            }
            (f, input) => Err(format!("a store has no {f:?} of {input}")),
        }
    }

    fn shape(&self, op: &CellOp) -> Option<Shape<Value>> {
        let (needs, effect) = match op {
            CellOp::Get(seen) => (Need::Exactly(seen.clone()), Effect::None),
            CellOp::Set(to) => (Need::Anything, Effect::Sets(to.clone())),
            CellOp::Has(true) => (Need::AllBut(Value::Nil), Effect::None),
            CellOp::Has(false) | CellOp::Delete(Some(false)) => {
                (Need::Exactly(Value::Nil), Effect::None)
            }
            CellOp::Delete(Some(true)) => (Need::AllBut(Value::Nil), Effect::Sets(Value::Nil)),
            CellOp::Delete(None) => (Need::Anything, Effect::Sets(Value::Nil)),
            // If the sum equals the delta, the state before may have been nil or zero.
            CellOp::Add(delta, Some(sum)) if sum != delta => {
                (Need::Exactly(spelled(sum - delta)), Effect::Sets(spelled(*sum)))
            }
            _ => return None,
        };
        Some(Shape { needs, effect })
    }

    fn show(&self, state: &Value) -> String {
        state.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_means_what_torch_means_by_it() {
        let text = Value::text;
        for (state, expected, desired, told, left) in [
            (Value::Nil, Value::Nil, text("a"), text("a"), text("a")),
            (Value::Nil, text("x"), text("a"), text("x"), Value::Nil),
            (text("x"), text("x"), text("a"), text("a"), text("a")),
            (text("y"), text("x"), text("a"), text("y"), text("y")),
            (text("y"), Value::Nil, text("a"), text("y"), text("y")),
        ] {
            let op = CellOp::Swap(expected, desired.clone(), Some(told));
            assert_eq!(Cell.step(&state, &op), Some(left), "{op:?} in {state}");
            let CellOp::Swap(expected, ..) = op else { continue };
            let lied = CellOp::Swap(expected, desired, Some(text("lie")));
            assert_eq!(Cell.step(&state, &lied), None, "{lied:?} in {state}");
        }
    }

    #[test]
    fn an_append_and_a_delete_say_what_was_there() {
        let (old, more) = (Value::text("ab"), Arc::<str>::from("cde"));
        let append = |length| CellOp::Append(more.clone(), Some(length));
        assert_eq!(Cell.step(&old, &append(5)), Some(Value::text("abcde")));
        assert_eq!(Cell.step(&Value::Nil, &append(3)), Some(Value::text("cde")));
        assert_eq!(Cell.step(&old, &append(3)), None, "what was there is lost");
        assert_eq!(Cell.step(&old, &append(8)), None, "it was added twice");
        assert_eq!(Cell.step(&old, &CellOp::Delete(Some(true))), Some(Value::Nil));
        assert_eq!(Cell.step(&old, &CellOp::Delete(Some(false))), None);
        assert_eq!(Cell.step(&Value::Nil, &CellOp::Delete(Some(true))), None);
    }

    #[test]
    fn a_wait_that_woke_saw_a_value_and_one_that_gave_up_saw_none() {
        assert_eq!(Cell.step(&Value::Nil, &CellOp::Has(true)), None);
        assert_eq!(Cell.step(&Value::text("1"), &CellOp::Has(false)), None);
        assert!(Cell.step(&Value::text("1"), &CellOp::Has(true)).is_some());
        for (state, found) in
            [(Value::Nil, false), (Value::text("6"), false), (Value::text("7"), true)]
        {
            assert!(Cell.step(&state, &CellOp::Reached(7, found)).is_some(), "{state}");
            assert_eq!(Cell.step(&state, &CellOp::Reached(7, !found)), None, "{state}");
        }
        assert_eq!(Cell.step(&Value::text("4"), &CellOp::Add(3, Some(7))), Some(Value::text("7")));
        assert_eq!(Cell.step(&Value::Nil, &CellOp::Add(3, Some(4))), None);
    }
}
