//! One row of a run, as its submitter and the workers see it: granted under rising attempts, and
//! decided once.
//!
//! A lease may lapse at any time without anybody's doing, so a grant to the next worker needs no
//! give-back before it; but from then on the earlier attempt is over for good.

use super::Model;
use crate::value::Value;
use std::sync::Arc;

/// How many transient failures make a row fail for good, as the workload asks for.
pub const STRIKES_MAX: u8 = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item;

/// What is decided of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Decided {
    /// Nothing.
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
    held: bool,
    strikes: u8,
    decided: Decided,
}

/// An operation on a row, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ItemOp {
    /// It was granted under this attempt.
    Claim(i64),
    /// This attempt's result, in this part, was taken.
    Complete(i64, Arc<str>),
    /// This attempt's failure was taken; true: of a kind that is final at once.
    Fail(i64, bool),
    /// This attempt was given back.
    Nack(i64),
    /// This attempt was told that the row is no longer its own.
    Refused(i64),
    /// So it was read.
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
        let holds = |attempt: &i64| {
            state.held && state.attempt == *attempt && state.decided == Decided::Open
        };
        let mut next = state.clone();
        match op {
            ItemOp::Claim(attempt) => {
                if state.decided != Decided::Open || *attempt <= state.attempt {
                    return None;
                }
                (next.attempt, next.held) = (*attempt, true);
            }
            ItemOp::Complete(attempt, part) => {
                holds(attempt).then_some(())?;
                (next.held, next.decided) = (false, Decided::Done(part.clone()));
            }
            ItemOp::Fail(attempt, last) => {
                holds(attempt).then_some(())?;
                next.held = false;
                next.strikes += u8::from(!last);
                if *last || next.strikes >= STRIKES_MAX {
                    next.decided = Decided::Failed;
                }
            }
            ItemOp::Nack(attempt) => {
                holds(attempt).then_some(())?;
                next.held = false;
            }
            // Whoever was refused once is never heard again.
            ItemOp::Refused(attempt) => next.held &= state.attempt != *attempt,
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
        if f == "claim" {
            return match answer {
                Some(Value::Int(attempt)) => Ok(Some(ItemOp::Claim(*attempt))),
                Some(other) => Err(format!("a claim that answers {other}")),
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
            ("nack", [Value::Int(attempt)]) => (attempt, ItemOp::Nack(*attempt)),
            _ => return Err(format!("a {f} of {input}")),
        };
        match answer {
            None | Some(Value::Bool(true)) => Ok(Some(op)),
            Some(Value::Bool(false)) => Ok(Some(ItemOp::Refused(*attempt))),
            Some(other) => Err(format!("a {f} that answers {other}")),
        }
    }

    fn state_bytes(&self, _state: &ItemState) -> usize {
        0 // Parts' names are shared with the operations.
    }

    fn show(&self, state: &ItemState) -> String {
        match &state.decided {
            Decided::Done(part) => format!("done in part {part}"),
            Decided::Failed => "failed".to_owned(),
            Decided::Open if state.held => format!("granted under attempt {}", state.attempt),
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
    fn the_last_strike_is_final() {
        let fails = (1..=i64::from(STRIKES_MAX))
            .flat_map(|attempt| [ItemOp::Claim(attempt), ItemOp::Fail(attempt, false)]);
        let ops: Vec<ItemOp> = fails.collect();
        assert_eq!(run(&ops).unwrap().decided, Decided::Failed);
        assert_eq!(run(&ops[..ops.len() - 1]).unwrap().decided, Decided::Open);
    }
}
