//! `GET /v1/files/{id}/content`: the bytes of a file, or a range of them.
//!
//! *Invariant:* a byte is sent only after its piece's digest was verified. An object that cannot be read causes an error
//! instead of an answer, or, after the first piece, an answer that breaks off.

use super::find;
use crate::openai::auth::KeyCaller;
use crate::openai::content::{read, store_error};
use crate::openai::error::ApiError;
use crate::openai::range::{Wanted, wanted};
use crate::openai::state::ApiState;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use rollout_ledger::FilePurpose;
use std::pin::Pin;
use std::sync::Arc;

pub(super) async fn download(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let file = find(&api, &caller, &id).await?;
    let len = file.bytes;
    // The content of an id never changes.
    let tag = format!("\"{id}\"");
    let kind = match file.spec.purpose {
        FilePurpose::Batch | FilePurpose::BatchOutput => "application/jsonl",
        FilePurpose::UserData => "application/octet-stream",
    };
    let (status, range) = match asked(&headers, &tag, len) {
        Wanted::Whole => (StatusCode::OK, 0..len),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Unsatisfiable => {
            let message = format!("The range is outside of the file, which has {len} bytes.");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let error = ApiError::new(status, "invalid_range", message).with_param("Range");
            let total = [(header::CONTENT_RANGE, format!("bytes */{len}"))];
            return Ok((total, error).into_response());
        }
    };
    let place = api.transfers.place()?;
    let bytes = read(api.store.clone(), &caller.namespace, &file.content, range.clone());
    let mut bytes = bytes.peekable();
    if let Some(Err(error)) = Pin::new(&mut bytes).peek().await {
        return Err(store_error(error));
    }
    let bytes = bytes.inspect(move |piece| {
        // Moves the permit into the stream, which has it until its end.
        let _ = &place;
        if let Err(error) = piece {
            tracing::error!(%error, "the content of a file broke off");
        }
    });
    let mut response = Response::new(Body::from_stream(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: String| {
        if let Ok(value) = value.try_into() {
            headers.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kind.into());
    set(header::CONTENT_LENGTH, (range.end - range.start).to_string());
    set(header::ACCEPT_RANGES, "bytes".into());
    set(header::ETAG, tag);
    if status == StatusCode::PARTIAL_CONTENT {
        set(header::CONTENT_RANGE, format!("bytes {}-{}/{len}", range.start, range.end - 1));
    }
    Ok(response)
}

/// What the headers ask for. A range that depends on another version of the file asks for all of it.
fn asked(headers: &HeaderMap, tag: &str, len: u64) -> Wanted {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::RANGE), text(header::IF_RANGE)) {
        (Some(range), None) => wanted(range, len),
        (Some(range), Some(version)) if version == tag => wanted(range, len),
        _ => Wanted::Whole,
    }
}
