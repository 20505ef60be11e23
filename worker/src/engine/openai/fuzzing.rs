//! Answers of engines with the OpenAI HTTP API, for fuzz targets only.
//!
//! Invariant: bytes take the same path as an engine's answer.
//! Absent: HTTP.

use reqwest::StatusCode;

use super::answer::{called, completion, embedding, in_one_line};
use crate::engine::Completion;

/// Reads an answer of the kind that the first byte selects.
///
/// # Errors
/// Why the answer is refused.
pub(crate) fn answer(bytes: &[u8]) -> Result<Completion, String> {
    let (kind, bytes) = bytes.split_first().ok_or("it is empty")?;
    let bytes = in_one_line(bytes.to_vec());
    let status = StatusCode::from_u16(200 + 50 * u16::from(kind / 3 % 8));
    let status = status.map_err(|error| error.to_string())?;
    let read = match kind % 3 {
        0 => completion(&bytes),
        1 => embedding(&bytes),
        _ => called(status, "id", &bytes),
    };
    read.map_err(|failure| failure.message)
}
