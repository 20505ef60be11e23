//! Owns: a line of the OpenAI Batch format: `{custom_id, method, url, body}`.
//!
//! Invariant: a body is not parsed: the engine's server decides what it means. Other fields are carried along and
//! ignored.
//! Absent: which URLs an engine serves; a request for any other becomes an error row.

use serde_json::value::RawValue;

use super::column::{Column, FieldValues};
use super::line_fault::{LineCode, LineFault};
use crate::canonical::canonical;

const URL_BYTES_MAX: usize = 256;

/// Why a line's request is refused.
pub(super) struct Refused<'a> {
    /// The value at fault; none if it is missing.
    pub(super) value: Option<&'a RawValue>,
    pub(super) message: String,
    pub(super) fault: LineFault,
}

/// The canonical JSON of a line's request.
pub(super) fn request<'a>(found: &FieldValues<'a>) -> Result<String, Refused<'a>> {
    let get = |column, name: &'static str| {
        found.given(column).ok_or_else(|| Refused {
            value: None,
            message: format!("an OpenAI Batch line needs a \"{name}\""),
            fault: LineFault::missing(name),
        })
    };
    let refused = |value, message: String, code, name| Refused {
        value: Some(value),
        message,
        fault: LineFault::new(code, name),
    };
    let (method, url, body) =
        (get(Column::Method, "method")?, get(Column::Url, "url")?, get(Column::Body, "body")?);
    if method.get() != "\"POST\"" {
        let message = "\"method\" has to be \"POST\"".to_owned();
        return Err(refused(method, message, LineCode::InvalidMethod, "method"));
    }
    if !url.get().starts_with("\"/") || url.get().len() > URL_BYTES_MAX {
        let message = "\"url\" has to be a path, such as \"/v1/chat/completions\"";
        return Err(refused(url, message.to_owned(), LineCode::InvalidUrl, "url"));
    }
    if !body.get().starts_with('{') {
        let message = "\"body\" has to be an object".to_owned();
        return Err(refused(body, message, LineCode::InvalidJsonLine, "body"));
    }
    let text = |value: &'a RawValue, name: &'static str| {
        canonical(value).map_err(|error| {
            refused(value, format!("\"{name}\": {error}"), LineCode::InvalidJsonLine, name)
        })
    };
    let (url, body) = (text(url, "url")?, text(body, "body")?);
    Ok(format!("{{\"body\":{body},\"method\":\"POST\",\"url\":{url}}}"))
}

/// Whether a line looks like one of the OpenAI Batch format.
pub fn looks_like(line: &str) -> bool {
    let Ok(crate::canonical::Fields(fields)) = serde_json::from_str(line) else { return false };
    ["custom_id", "method", "url", "body"]
        .iter()
        .all(|name| fields.iter().any(|(field, _)| field == name))
}
