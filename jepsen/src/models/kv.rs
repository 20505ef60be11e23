//! One key of a store with `get`, `put` and `append`, at first `""`.

use super::{Effect, Model, Need, Shape};
use crate::value::Value;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kv;

/// An operation on the key, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvOp {
    /// Answered this text.
    Get(Arc<str>),
    /// Replaced the text.
    Put(Arc<str>),
    /// Added to its end.
    Append(Arc<str>),
}

impl Model for Kv {
    type State = Arc<str>;
    type Op = KvOp;

    const KEYED: bool = true;

    fn initial(&self) -> Arc<str> {
        "".into()
    }

    fn step(&self, state: &Arc<str>, op: &KvOp) -> Option<Arc<str>> {
        match op {
            KvOp::Get(seen) => (seen == state).then(|| state.clone()),
            KvOp::Put(to) => Some(to.clone()),
            KvOp::Append(more) => Some(format!("{state}{more}").into()),
        }
    }

    fn read(&self, f: &str, input: &Value, answer: Option<&Value>) -> Result<Option<KvOp>, String> {
        let text = |value: &Value, what: &str| match value {
            Value::Text(text) => Ok(text.clone()),
            other => Err(format!("{what} a string, not {other}")),
        };
        match f {
            "get" => match answer {
                Some(seen) => Ok(Some(KvOp::Get(text(seen, "a get answers")?))),
                None => Ok(None),
            },
            "put" | "append" => {
                let given = text(input, &format!("a {f} is given"))?;
                if let Some(other) = answer
                    && other != input
                    && *other != Value::Nil
                {
                    return Err(format!("a {f} of {input} that answers {other}"));
                }
                Ok(Some(if f == "put" { KvOp::Put(given) } else { KvOp::Append(given) }))
            }
            other => Err(format!("kv has get, put and append, not {other:?}")),
        }
    }

    fn shape(&self, op: &KvOp) -> Option<Shape<Arc<str>>> {
        let (needs, effect) = match op {
            KvOp::Get(seen) => (Need::Exactly(seen.clone()), Effect::None),
            KvOp::Put(to) => (Need::Anything, Effect::Sets(to.clone())),
            KvOp::Append(more) if more.is_empty() => (Need::Anything, Effect::None),
            KvOp::Append(_) => (Need::Anything, Effect::Changes),
        };
        Some(Shape { needs, effect })
    }

    fn leads_to(&self, from: &Arc<str>, to: &Arc<str>) -> bool {
        to.starts_with(&**from)
    }

    fn state_bytes(&self, state: &Arc<str>) -> usize {
        state.len()
    }

    fn show(&self, state: &Arc<str>) -> String {
        format!("{state:?}")
    }
}
