//! Owns: a line of the OpenAI Batch format: `{custom_id, method, url, body}`.
//!
//! Invariant: a body is not parsed: the engine's server decides what it means. Other fields are carried along and
//! ignored.
//! Absent: which URLs an engine serves; a request for any other becomes an error row.

use serde_json::value::RawValue;

use super::column::{Column, FieldValues};
use crate::canonical::canonical;

const URL_BYTES_MAX: usize = 256;

/// The canonical JSON of a line's request; an error has the value at fault.
pub(super) fn request<'a>(
    found: &FieldValues<'a>,
) -> Result<String, (Option<&'a RawValue>, String)> {
    let get = |column, name: &str| {
        found
            .given(column)
            .ok_or_else(|| (None, format!("an OpenAI Batch line needs a \"{name}\"")))
    };
    let (method, url, body) =
        (get(Column::Method, "method")?, get(Column::Url, "url")?, get(Column::Body, "body")?);
    if method.get() != "\"POST\"" {
        return Err((Some(method), "\"method\" has to be \"POST\"".to_owned()));
    }
    if !url.get().starts_with("\"/") || url.get().len() > URL_BYTES_MAX {
        let message = "\"url\" has to be a path, such as \"/v1/chat/completions\"";
        return Err((Some(url), message.to_owned()));
    }
    if !body.get().starts_with('{') {
        return Err((Some(body), "\"body\" has to be an object".to_owned()));
    }
    let text = |value: &'a RawValue, name: &str| {
        canonical(value).map_err(|error| (Some(value), format!("\"{name}\": {error}")))
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
