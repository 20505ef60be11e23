//! One key of a store with `get`, `put` and `append`, initially `""`.

mod text;

pub use text::Text;

use super::{Effect, Model, Need, Shape};
use crate::value::Value;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default)]
pub struct Kv;

/// An operation on the key, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvOp {
    /// Answered this text.
    Get(Text),
    /// Replaced the text.
    Put(Text),
    /// Added to its end.
    Append(Arc<str>),
}

impl Model for Kv {
    type State = Text;
    type Op = KvOp;

    const KEYED: bool = true;

    fn initial(&self) -> Text {
        Text::default()
    }

    fn step(&self, state: &Text, op: &KvOp) -> Option<Text> {
        match op {
            KvOp::Get(seen) => (seen == state).then(|| state.clone()),
            KvOp::Put(to) => Some(to.clone()),
            KvOp::Append(more) => Some(state.with(more)),
        }
    }

    fn read(&self, f: &str, input: &Value, answer: Option<&Value>) -> Result<Option<KvOp>, String> {
        let text = |value: &Value, what: &str| match value {
            Value::Text(text) => Ok(text.clone()),
            other => Err(format!("{what} a string, not {other}")),
        };
        match f {
            "get" => match answer {
                Some(seen) => Ok(Some(KvOp::Get(Text::new(&text(seen, "a get answers")?)))),
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
                Ok(Some(match f {
                    "put" => KvOp::Put(Text::new(&given)),
                    _ => KvOp::Append(given),
                }))
            }
            other => Err(format!("kv has get, put and append, not {other:?}")),
        }
    }

    fn shape(&self, op: &KvOp) -> Option<Shape<Text>> {
        let (needs, effect) = match op {
            KvOp::Get(seen) => (Need::Exactly(seen.clone()), Effect::None),
            KvOp::Put(to) => (Need::Anything, Effect::Sets(to.clone())),
            KvOp::Append(more) if more.is_empty() => (Need::Anything, Effect::None),
            KvOp::Append(_) => (Need::Anything, Effect::Changes),
        };
        Some(Shape { needs, effect })
    }

    fn leads_to(&self, from: &Text, to: &Text) -> bool {
        to.may_start_with(from)
    }

    fn state_bytes(&self, state: &Text) -> usize {
        state.own_bytes() // The rest is another state's, or an operation's.
    }

    fn show(&self, state: &Text) -> String {
        format!("{state:?}")
    }
}
