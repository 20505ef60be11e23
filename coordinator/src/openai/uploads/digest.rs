//! The MD5 of the whole content of an upload, which a client may send with its completion.
//!
//! *Invariant:* reads one piece at a time, and hashes it on a thread for blocking work.
//! Absent: security. The digests of the pieces protect the content; this one tells a client about its own mistakes.

use crate::openai::content::{read, store_error};
use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use axum::http::StatusCode;
use futures::StreamExt;
use md5::{Digest, Md5};
use rollout_ledger::Extent;

/// Chunks of content that are hashed at a time.
const CHUNKS: usize = 256;

/// Refuses content whose MD5, in hexadecimal, is another one.
///
/// # Errors
/// 400, or an error of the store.
pub(super) async fn check(
    api: &ApiState,
    namespace: &str,
    content: &[Extent],
    md5: &str,
) -> Result<(), ApiError> {
    let bytes = content.iter().map(Extent::bytes).sum();
    let mut chunks = read(api.store.clone(), namespace, content, 0..bytes).ready_chunks(CHUNKS);
    let mut hasher = Md5::new();
    while let Some(some) = chunks.next().await {
        let some: Vec<_> =
            some.into_iter().collect::<Result<_, _>>().map_err(|error| store_error(&error))?;
        let hashed = tokio::task::spawn_blocking(move || {
            some.iter().for_each(|chunk| hasher.update(chunk));
            hasher
        });
        hasher = hashed.await.map_err(|error| ApiError::internal(error.to_string()))?;
    }
    let found = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match found.eq_ignore_ascii_case(md5) {
        true => Ok(()),
        false => {
            let message =
                format!("The content has the MD5 {found}, and the request says another one.");
            Err(ApiError::new(StatusCode::BAD_REQUEST, "md5_mismatch", message).with_param("md5"))
        }
    }
}
