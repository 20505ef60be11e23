//! A value of a history, independent of the format it was read from.
//!
//! *Invariant:* two values are equal exactly if a client could not tell them apart; the written order of unordered
//! values (sets, maps) does not matter. Values that no model computes with (floats, keywords) are kept as their text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// What an operation was given or answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Nothing: `nil` or `null`.
    #[default]
    Nil,
    Bool(bool),
    Int(i64),
    Text(Arc<str>),
    /// Several values, in order.
    List(Vec<Value>),
    /// Several values without an order, each once.
    Set(BTreeSet<Value>),
    /// A map, without an order.
    Map(BTreeMap<Value, Value>),
    /// Anything else, as it was written.
    Other(Arc<str>),
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// A number with a fraction, in its canonical form: negative zero becomes zero.
    pub(crate) fn float(number: f64) -> Self {
        Self::Other(format!("{:?}", number + 0.0).into())
    }
}

/// Writes values with a gap between each two.
fn joined<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    values: impl IntoIterator<Item = T>,
) -> fmt::Result {
    for (nth, value) in values.into_iter().enumerate() {
        let gap = if nth == 0 { "" } else { " " };
        write!(f, "{gap}{value}")?;
    }
    Ok(())
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Bool(truth) => write!(f, "{truth}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Other(text) => f.write_str(text),
            Self::List(values) => {
                f.write_str("[")?;
                joined(f, values)?;
                f.write_str("]")
            }
            Self::Set(values) => {
                f.write_str("#{")?;
                joined(f, values)?;
                f.write_str("}")
            }
            Self::Map(entries) => {
                for (nth, (key, value)) in entries.iter().enumerate() {
                    let gap = if nth == 0 { "{" } else { ", " };
                    write!(f, "{gap}{key} {value}")?;
                }
                f.write_str(if entries.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match json {
            Json::Null => Self::Nil,
            Json::Bool(truth) => Self::Bool(truth),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Self::Int(whole),
                (None, Some(float)) if number.is_f64() => Self::float(float),
                _ => Self::Other(number.to_string().into()),
            },
            Json::String(text) => Self::Text(text.into()),
            Json::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            Json::Object(entries) => {
                let entry = |(key, value): (String, Json)| (Self::text(&key), Self::from(value));
                Self::Map(entries.into_iter().map(entry).collect())
            }
        }
    }
}
