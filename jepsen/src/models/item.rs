//! One row of a run, as its submitter and the workers see it: granted under rising attempts, and decided once.
//!
//! A lease may lapse at any time without any operation, so the next worker's grant needs no give-back before it; from
//! then on the earlier attempt is over for good. If a run allows duplicates, a lease may exist beside an earlier one
//! that is not over; the first to finish decides the row.

use super::Model;
use crate::value::Value;
use std::sync::Arc;

/// How many transient failures make a row fail for good, as the workload asks for.
pub const STRIKES_MAX: u8 = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct Item;

/// The decision about a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Decided {
    /// Not decided.
    #[default]
    Open,
    /// The result in this part.
    Done(Arc<str>),
    /// It failed for good.
    Failed,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ItemState {
    attempt: i64,
    /// Attempts that may decide it.
    live: Vec<i64>,
    strikes: u8,
    decided: Decided,
}

/// An operation on a row, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ItemOp {
    /// It was granted under this attempt, which ends all others.
    Claim(i64),
    /// It was granted under this attempt, perhaps beside others.
    Lease(i64),
    /// This attempt's result, in this part, was taken.
    Complete(i64, Arc<str>),
    /// This attempt's failure was taken; true: of a kind that is final at once.
    Fail(i64, bool),
    /// This attempt was given back.
    Nack(i64),
    /// This attempt learned that the row is no longer its own.
    Refused(i64),
    /// A read returned this.
    Read(Decided),
}

impl Model for Item {
    type State = ItemState;
    type Op = ItemOp;

    const KEYED: bool = true;

    fn initial(&self) -> ItemState {
        ItemState::default()
    }

    fn step(&self, state: &ItemState, op: &ItemOp) -> Option<ItemState> {
        let holds = |attempt: &i64| state.live.contains(attempt) && state.decided == Decided::Open;
        let mut next = state.clone();
        let end = |next: &mut ItemState, attempt: &i64| next.live.retain(|live| live != attempt);
        match op {
            ItemOp::Claim(attempt) | ItemOp::Lease(attempt) => {
                if state.decided != Decided::Open || *attempt <= state.attempt {
                    return None;
                }
                if matches!(op, ItemOp::Claim(_)) {
                    next.live.clear();
                }
                next.attempt = *attempt;
                next.live.push(*attempt);
            }
            ItemOp::Complete(attempt, part) => {
                holds(attempt).then_some(())?;
                next.live.clear();
                next.decided = Decided::Done(part.clone());
            }
            ItemOp::Fail(attempt, last) => {
                holds(attempt).then_some(())?;
                end(&mut next, attempt);
                next.strikes += u8::from(!last);
                if *last || next.strikes >= STRIKES_MAX {
                    next.decided = Decided::Failed;
                }
            }
            ItemOp::Nack(attempt) => {
                holds(attempt).then_some(())?;
                end(&mut next, attempt);
            }
            // An attempt that was refused once is never accepted again.
            ItemOp::Refused(attempt) => end(&mut next, attempt),
            ItemOp::Read(seen) => (*seen == state.decided).then_some(())?,
        }
        Some(next)
    }

    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<ItemOp>, String> {
        if f == "read" {
            return answer.map(decided).transpose().map(|seen| seen.map(ItemOp::Read));
        }
        if let "claim" | "lease" = f {
            return match answer {
                Some(Value::Int(attempt)) if f == "claim" => Ok(Some(ItemOp::Claim(*attempt))),
                Some(Value::Int(attempt)) => Ok(Some(ItemOp::Lease(*attempt))),
                Some(other) => Err(format!("a {f} that answers {other}")),
                None => Ok(None),
            };
        }
        let given = match input {
            Value::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        let (attempt, op) = match (f, given) {
            ("complete", [Value::Int(attempt), Value::Text(part)]) => {
                (attempt, ItemOp::Complete(*attempt, part.clone()))
            }
            ("fail", [Value::Int(attempt), Value::Bool(last)]) => {
                (attempt, ItemOp::Fail(*attempt, *last))
            }
            // `nack` returns it to all workers, `yield` to one other worker.
            ("nack" | "yield", [Value::Int(attempt)]) => (attempt, ItemOp::Nack(*attempt)),
            _ => return Err(format!("a {f} of {input}")),
        };
        match answer {
            None | Some(Value::Bool(true)) => Ok(Some(op)),
            Some(Value::Bool(false)) => Ok(Some(ItemOp::Refused(*attempt))),
            Some(other) => Err(format!("a {f} that answers {other}")),
        }
    }

    fn state_bytes(&self, state: &ItemState) -> usize {
        size_of::<i64>() * state.live.capacity() // Parts' names are shared with the operations.
    }

    fn show(&self, state: &ItemState) -> String {
        match &state.decided {
            Decided::Done(part) => format!("done in part {part}"),
            Decided::Failed => "failed".to_owned(),
            Decided::Open if !state.live.is_empty() => {
                let live: Vec<String> = state.live.iter().map(i64::to_string).collect();
                format!("granted under attempt {}", live.join(" and "))
            }
            Decided::Open => format!("pending after attempt {}", state.attempt),
        }
    }
}

fn decided(value: &Value) -> Result<Decided, String> {
    match value {
        Value::Nil => Ok(Decided::Open),
        Value::Bool(false) => Ok(Decided::Failed),
        Value::Text(part) => Ok(Decided::Done(part.clone())),
        other => Err(format!("a read that answers {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ops: &[ItemOp]) -> Option<ItemState> {
        ops.iter().try_fold(ItemState::default(), |state, op| Item.step(&state, op))
    }

    #[test]
    fn an_attempt_that_was_overtaken_completes_nothing() {
        let part: Arc<str> = "p".into();
        let done = ItemOp::Complete(4, part.clone());
        assert!(run(&[ItemOp::Claim(4), done.clone()]).is_some());
        assert!(run(&[ItemOp::Claim(4), ItemOp::Claim(6), done.clone()]).is_none());
        assert!(run(&[ItemOp::Claim(4), ItemOp::Refused(4), done.clone()]).is_none());
        assert!(run(&[ItemOp::Claim(4), ItemOp::Nack(4), done.clone()]).is_none());
        assert!(run(&[ItemOp::Claim(4), done.clone(), done.clone()]).is_none());
        assert!(run(&[ItemOp::Claim(4), done.clone(), ItemOp::Claim(6)]).is_none());
        assert!(run(&[ItemOp::Claim(4), ItemOp::Claim(4)]).is_none());
        assert!(run(&[ItemOp::Claim(4), done, ItemOp::Read(Decided::Open)]).is_none());
    }

    #[test]
    fn the_first_of_two_leases_to_finish_decides_and_ends_the_other() {
        let part: Arc<str> = "p".into();
        let both = [ItemOp::Lease(4), ItemOp::Lease(6)];
        let with = |more: &[ItemOp]| run(&[&both, more].concat());
        for first in [4, 6] {
            let done = ItemOp::Complete(first, part.clone());
            assert!(with(std::slice::from_ref(&done)).is_some());
            let other = ItemOp::Complete(10 - first, part.clone());
            assert!(with(&[done, other.clone()]).is_none());
            assert!(with(&[ItemOp::Nack(first), other]).is_some());
        }
        // An exclusive claim ends every other attempt.
        let claimed = [ItemOp::Claim(8), ItemOp::Complete(6, part)];
        assert!(with(&claimed).is_none());
    }

    #[test]
    fn the_last_strike_is_final() {
        let fails = (1..=i64::from(STRIKES_MAX))
            .flat_map(|attempt| [ItemOp::Claim(attempt), ItemOp::Fail(attempt, false)]);
        let ops: Vec<ItemOp> = fails.collect();
        assert_eq!(run(&ops).unwrap().decided, Decided::Failed);
        assert_eq!(run(&ops[..ops.len() - 1]).unwrap().decided, Decided::Open);
    }
}
