//! A register with compare-and-set, initially nil.

use super::{Effect, Model, Need, Shape};
use crate::value::Value;

#[derive(Clone, Copy, Debug, Default)]
pub struct CasRegister;

/// An operation on the register, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegisterOp {
    /// Answered this value.
    Read(Value),
    /// Put this value.
    Write(Value),
    /// Found the first value and put the second.
    Swapped(Value, Value),
    /// Did not find this value and changed nothing.
    NotSwapped(Value),
}

impl Model for CasRegister {
    type State = Value;
    type Op = RegisterOp;

    const KEYED: bool = false;

    fn initial(&self) -> Value {
        Value::Nil
    }

    fn step(&self, state: &Value, op: &RegisterOp) -> Option<Value> {
        match op {
            RegisterOp::Read(seen) => (seen == state).then(|| state.clone()),
            RegisterOp::Write(to) => Some(to.clone()),
            RegisterOp::Swapped(from, to) => (from == state).then(|| to.clone()),
            RegisterOp::NotSwapped(from) => (from != state).then(|| state.clone()),
        }
    }

    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<RegisterOp>, String> {
        match f {
            "read" => Ok(answer.map(|seen| RegisterOp::Read(seen.clone()))),
            "write" => match answer {
                Some(other) if other != input && *other != Value::Nil => {
                    Err(format!("a write of {input} that answers {other}"))
                }
                _ => Ok(Some(RegisterOp::Write(input.clone()))),
            },
            "cas" => {
                let Value::List(pair) = input else {
                    return Err(format!("a cas is given [from to], not {input}"));
                };
                let [from, to] = pair.as_slice() else {
                    return Err(format!("a cas is given [from to], not {input}"));
                };
                match answer {
                    Some(Value::Bool(false)) => Ok(Some(RegisterOp::NotSwapped(from.clone()))),
                    Some(other)
                        if other != input && !matches!(other, Value::Nil | Value::Bool(true)) =>
                    {
                        Err(format!("a cas of {input} that answers {other}"))
                    }
                    _ => Ok(Some(RegisterOp::Swapped(from.clone(), to.clone()))),
                }
            }
            other => Err(format!("a cas-register has read, write and cas, not {other:?}")),
        }
    }

    fn shape(&self, op: &RegisterOp) -> Option<Shape<Value>> {
        let (needs, effect) = match op {
            RegisterOp::Read(seen) => (Need::Exactly(seen.clone()), Effect::None),
            RegisterOp::Write(to) => (Need::Anything, Effect::Sets(to.clone())),
            RegisterOp::Swapped(from, to) if from == to => {
                (Need::Exactly(from.clone()), Effect::None)
            }
            RegisterOp::Swapped(from, to) => {
                (Need::Exactly(from.clone()), Effect::Sets(to.clone()))
            }
            RegisterOp::NotSwapped(from) => (Need::AllBut(from.clone()), Effect::None),
        };
        Some(Shape { needs, effect })
    }

    fn leads_to(&self, from: &Value, to: &Value) -> bool {
        from == to
    }

    fn show(&self, state: &Value) -> String {
        state.to_string()
    }
}
