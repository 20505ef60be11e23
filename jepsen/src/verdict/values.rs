//! Reads the parts of recorded values. A part that is missing or of another type becomes a value that no client sends.

use crate::value::Value;

/// The elements of a list, or none.
pub(super) fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(values) => values,
        _ => &[],
    }
}

/// A number, or -1.
pub(super) fn int(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::Int(number)) => *number,
        _ => -1,
    }
}

/// A text, or `?`.
pub(super) fn text(value: Option<&Value>) -> &str {
    match value {
        Some(Value::Text(text)) => text,
        _ => "?",
    }
}
