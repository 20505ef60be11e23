//! The header `Idempotency-Key`, with which a client says that requests are repeats of one.
//!
//! *Invariant:* the key of a request is bounded, and the error at the bound says it.
//! Absent: which object an earlier request with the key has created, which the ledger knows.

use crate::openai::error::ApiError;
use axum::http::{HeaderMap, HeaderName};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Bytes of a key.
const KEY_BYTES_MAX: usize = 255;

/// The idempotency key of a request, if it has one.
///
/// # Errors
/// 400 if it is empty or too long.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&[u8]>, ApiError> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(Some(key.as_bytes())),
        false => {
            let message = format!("The header Idempotency-Key has 1 to {KEY_BYTES_MAX} bytes.");
            Err(ApiError::invalid("Idempotency-Key", message))
        }
    }
}
