//! A value of a history, whatever format it came in.
//!
//! *Invariant:* two values are equal exactly if a client could not tell them apart. What no model
//! computes with (floats, keywords, maps) is kept as its text.

use std::fmt;
use std::sync::Arc;

/// What an operation was given or answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Nothing: `nil` or `null`.
    #[default]
    Nil,
    /// A truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A string.
    Text(Arc<str>),
    /// Several values, in order.
    List(Vec<Value>),
    /// Anything else, as it was written.
    Other(Arc<str>),
}

impl Value {
    /// A string value.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }
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
                for (i, value) in values.iter().enumerate() {
                    let gap = if i == 0 { "" } else { " " };
                    write!(f, "{gap}{value}")?;
                }
                f.write_str("]")
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
            Json::Number(number) => match number.as_i64() {
                Some(number) => Self::Int(number),
                None => Self::Other(number.to_string().into()),
            },
            Json::String(text) => Self::Text(text.into()),
            Json::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            object => Self::Other(object.to_string().into()),
        }
    }
}
