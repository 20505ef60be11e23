//! The fields of a request for a batch.
//!
//! *Invariant:* an error names the field that is wrong, and the bound that it exceeds. Unknown fields are ignored, as
//! OpenAI's API does.
//! Absent: what depends on the cluster: whether the file exists, and whether a worker serves the endpoint.

use super::options::RunOptions;
use crate::openai::error::ApiError;
use crate::openai::files::{ExpiresAfter, ttl_ms};
use axum::http::StatusCode;
use rollout_ledger::{BatchSpec, ROLLOUT_KEY, limits};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The JSON object of a request. A field that is null counts as absent.
pub(super) type Body = Map<String, Value>;

/// What a request asks for.
///
/// # Errors
/// 400.
pub(super) fn spec(body: &Body) -> Result<BatchSpec, ApiError> {
    if present(body, "stream").is_some_and(|stream| *stream != Value::Bool(false)) {
        let message = "A batch does not support streaming.";
        let error = ApiError::new(StatusCode::BAD_REQUEST, "streaming_unsupported", message);
        return Err(error.with_param("stream"));
    }
    let completion_window = text(body, "completion_window")?;
    Ok(BatchSpec {
        endpoint: text(body, "endpoint")?,
        input_file: text(body, "input_file_id")?,
        window_ms: window_ms(&completion_window)?,
        completion_window,
        metadata: metadata(present(body, "metadata"))?,
        output_ttl_ms: output_ttl_ms(present(body, "output_expires_after"))?,
        options_json: RunOptions::of_request(present(body, "rollout"))?.to_json(),
    })
}

fn present<'a>(body: &'a Body, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

fn text(body: &Body, field: &'static str) -> Result<String, ApiError> {
    let value = present(body, field).ok_or_else(|| ApiError::missing(field))?;
    let max = limits::NAME_BYTES_MAX;
    let text = value.as_str().filter(|text| (1..=max).contains(&text.len()));
    let text = text.ok_or_else(|| {
        ApiError::invalid(field, format!("{field} is a string of 1 to {max} bytes."))
    });
    text.map(str::to_owned)
}

/// A completion window in milliseconds.
fn window_ms(window: &str) -> Result<u64, ApiError> {
    let unit_s = |unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(60 * 60),
        'd' => Some(24 * 60 * 60),
        _ => None,
    };
    let ms = || {
        let (last, _) = window.char_indices().next_back()?;
        let (number, unit) = window.split_at(last);
        let unit_s: u64 = unit_s(unit.chars().next()?)?;
        // `parse` would accept a sign.
        let number = number.bytes().all(|byte| byte.is_ascii_digit()).then_some(number)?;
        number.parse::<u64>().ok()?.checked_mul(unit_s)?.checked_mul(1000)
    };
    ms().filter(|ms| limits::BATCH_WINDOW_MS.contains(ms)).ok_or_else(|| {
        let (min, max) = (limits::BATCH_WINDOW_MS.start() / 1000, limits::BATCH_WINDOW_MS.end() / DAY_MS);
        let message = format!(
            "completion_window is a number with the unit s, m, h or d, such as 24h, from {min}s to {max}d."
        );
        ApiError::invalid("completion_window", message)
    })
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn metadata(value: Option<&Value>) -> Result<BTreeMap<String, String>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("metadata", message));
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let Some(pairs) = value.as_object() else {
        return wrong("metadata is an object.".into());
    };
    let (pairs_max, key_max, value_max) = (
        limits::METADATA_PAIRS_MAX,
        limits::METADATA_KEY_CHARS_MAX,
        limits::METADATA_VALUE_CHARS_MAX,
    );
    if pairs.len() > pairs_max {
        return wrong(format!("metadata has at most {pairs_max} pairs."));
    }
    let fits = |text: &str, max: usize| text.chars().nth(max).is_none();
    let mut metadata = BTreeMap::new();
    for (key, value) in pairs {
        let value = value.as_str().filter(|value| fits(key, key_max) && fits(value, value_max));
        let Some(value) = value else {
            return wrong(format!(
                "A key of metadata has at most {key_max} characters, and a value is a string of at most {value_max}."
            ));
        };
        metadata.insert(key.clone(), value.to_owned());
    }
    match metadata.get(ROLLOUT_KEY).is_some_and(String::is_empty) {
        true => wrong(format!("{ROLLOUT_KEY} in metadata is not empty.")),
        false => Ok(metadata),
    }
}

/// For how long the output files are kept; 0 for the default.
fn output_ttl_ms(value: Option<&Value>) -> Result<u64, ApiError> {
    const FIELD: &str = "output_expires_after";
    let after = value.map(ExpiresAfter::deserialize).transpose();
    let after = after.map_err(|error| ApiError::malformed(FIELD, &error))?;
    ttl_ms(FIELD, after.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_number_with_a_unit() {
        for (window, ms) in
            [("1s", 1000), ("90m", 5_400_000), ("24h", DAY_MS), ("30d", 30 * DAY_MS)]
        {
            assert_eq!(window_ms(window), Ok(ms), "{window}");
        }
        let huge = format!("{}d", u64::MAX);
        for wrong in ["", "h", "24", "24 h", "+24h", "-1h", "1.5h", "1w", "0s", "31d", "24ħ", &huge]
        {
            let error = window_ms(wrong).expect_err(wrong);
            assert!(error.to_string().contains("from 1s to 30d"), "{error}");
        }
    }
}
