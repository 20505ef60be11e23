//! `POST /v1/files`: a file in one request.
//!
//! *Invariant:* the file is created once all of its content is durable. A request that fails or loses its connection
//! leaves neither a file nor content. A request that is repeated with the same `Idempotency-Key` creates one file.
//! Absent: validation of the content, which a batch does.

use super::object::{EXPIRES_AFTER, ExpiresAfter, FileObject, client_purpose, filename, ttl_ms};
use crate::observe::audit;
use crate::openai::auth::KeyCaller;
use crate::openai::content::{ContentWriter, Written};
use crate::openai::error::ApiError;
use crate::openai::idempotency::idempotency_key;
use crate::openai::ids::new_id;
use crate::openai::multipart::{Bound, Form, FormBody};
use crate::openai::state::ApiState;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::{Extension, Json};
use rollout_ledger::{FILE_ID_PREFIX, FileSpec, Ledger, OpKind, limits, op};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fields of text.
const ANCHOR: &str = "expires_after[anchor]";
const SECONDS: &str = "expires_after[seconds]";
const TEXTS: [&str; 3] = ["purpose", ANCHOR, SECONDS];
/// Bytes of a body besides the content.
const OTHER_BYTES_MAX: u64 = 64 << 10;

pub(super) async fn create(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    headers: HeaderMap,
    body: FormBody,
) -> Result<Json<FileObject>, ApiError> {
    let request = idempotency_key(&headers)?.map(hash_of);
    let bound = room(&api, &caller, limits::UPLOAD_BYTES_MAX);
    check_length(&headers, &bound)?;
    let _place = api.transfers.place()?;
    let id = new_id(FILE_ID_PREFIX);
    audit::about("file", &id);
    let writer = ContentWriter::begin(&api, &caller.namespace, &id);
    let form = body.read("file", &TEXTS, writer, bound).await?;
    let (spec, written) = described(&caller, form)?;
    let (content, begun_at, named) = written.name();
    let spec = Box::new(spec);
    let op = op::CreateFile { id: id.clone(), spec, request, content, begun_at };
    if let Err(error) = api.apply(&caller, OpKind::CreateFile(op)).await {
        return Err(named.failed(error));
    }
    let found = api.ledger(|l| created(l, &caller.namespace, &id, request));
    match found {
        Some(file) if file.id() == id => Ok(Json(file)),
        // The request is a repeat.
        Some(earlier) => {
            named.remove();
            audit::about("file", earlier.id());
            Ok(Json(earlier))
        }
        // Another caller has deleted the file, and the garbage collector removes its content.
        None => Err(ApiError::not_found("File object", &id)),
    }
}

/// The file with that id, or the one that an earlier request with the same idempotency key has created.
fn created(
    ledger: &Ledger,
    namespace: &str,
    id: &str,
    request: Option<[u8; 16]>,
) -> Option<FileObject> {
    let earlier = request.and_then(|request| ledger.api_file_of_request(namespace, request));
    let id = earlier.unwrap_or(id);
    ledger.api_file(id).map(|file| FileObject::new(id, file))
}

/// The hash of an idempotency key.
fn hash_of(key: &[u8]) -> [u8; 16] {
    let (mut hash, whole) = ([0; 16], blake3::hash(key));
    hash.copy_from_slice(&whole.as_bytes()[..16]);
    hash
}

/// How much content the caller may add: the bound, or less if its key may not store that much.
pub(in crate::openai) fn room(api: &ApiState, caller: &KeyCaller, bytes_max: u64) -> Bound {
    let max = caller.limits.stored_bytes;
    let used = api.ledger(|l| l.stored_bytes_of_key(&caller.key_id));
    let left = if max == 0 { u64::MAX } else { max.saturating_sub(used) };
    if left < bytes_max {
        let message = format!(
            "Key {} may store {max} bytes, and has stored {used}: delete files first.",
            caller.key_id
        );
        let status = StatusCode::TOO_MANY_REQUESTS;
        let exceeded = ApiError::new(status, "storage_limit_exceeded", message).without_retry();
        return Bound { bytes_max: left, exceeded };
    }
    let message = format!("The content has more than {bytes_max} bytes.");
    let exceeded = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", message);
    Bound { bytes_max, exceeded }
}

/// Refuses a body that says that it is too long, before it is read.
pub(in crate::openai) fn check_length(headers: &HeaderMap, bound: &Bound) -> Result<(), ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
    match length > bound.bytes_max.saturating_add(OTHER_BYTES_MAX) {
        true => Err(bound.exceeded.clone()),
        false => Ok(()),
    }
}

/// The description of the file in a body, and its content.
fn described(caller: &KeyCaller, form: Form) -> Result<(FileSpec, Written), ApiError> {
    let Form { texts, content } = form;
    let Some((written, name)) = content else { return Err(ApiError::missing("file")) };
    if !texts.contains_key("purpose") {
        return Err(ApiError::missing("purpose"));
    }
    let spec = FileSpec {
        namespace: caller.namespace.clone(),
        key: caller.key_id.clone(),
        filename: filename(name)?,
        purpose: client_purpose(texts.get("purpose").map(String::as_str))?,
        ttl_ms: ttl_ms(EXPIRES_AFTER, expires_after(&texts)?.as_ref())?,
    };
    if written.extent.pieces.is_empty() {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "empty_file", "The file is empty.");
        return Err(error.with_param("file"));
    }
    Ok((spec, written))
}

fn expires_after(texts: &BTreeMap<String, String>) -> Result<Option<ExpiresAfter>, ApiError> {
    match (texts.get(ANCHOR), texts.get(SECONDS)) {
        (None, None) => Ok(None),
        (Some(anchor), Some(seconds)) => {
            let no_number = |_| ApiError::invalid(SECONDS, format!("{SECONDS} is a number."));
            let seconds = seconds.parse().map_err(no_number)?;
            Ok(Some(ExpiresAfter { anchor: anchor.clone(), seconds }))
        }
        (None, Some(_)) => Err(ApiError::missing(ANCHOR)),
        (Some(_), None) => Err(ApiError::missing(SECONDS)),
    }
}
