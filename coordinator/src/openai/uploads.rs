//! `/v1/uploads`: a file whose parts arrive in any order and at any member.
//!
//! *Invariant:* a part counts once all of its content is durable. Completing an upload copies nothing: the file consists of
//! the parts' pieces. A repeat of a completion or of a cancellation gets the same answer while the upload is remembered.
//! Absent: a list of uploads and of parts, which OpenAI's API does not have.

mod digest;
#[cfg(test)]
mod tests;

use crate::observe::audit;
use crate::openai::auth::KeyCaller;
use crate::openai::content::ContentWriter;
use crate::openai::error::ApiError;
use crate::openai::files::{
    EXPIRES_AFTER, ExpiresAfter, FileObject, check_length, client_purpose, name_of, room, ttl_ms,
};
use crate::openai::ids::{new_id, random};
use crate::openai::multipart::{Form, FormBody};
use crate::openai::state::ApiState;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Extension, Json, Router};
use rollout_ledger::{
    Extent, FileSpec, OpKind, UPLOAD_ID_PREFIX, Upload, UploadState, file_of_upload, limits, op,
    part_of_upload,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Random digits of a part's id.
const PART_DIGITS: usize = 16;

pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/uploads", post(create))
        .route("/v1/uploads/{id}/parts", post(add_part))
        .route("/v1/uploads/{id}/complete", post(complete))
        .route("/v1/uploads/{id}/cancel", post(cancel))
}

/// OpenAI's upload object.
#[derive(Serialize)]
struct UploadObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: u64,
    filename: String,
    purpose: &'static str,
    status: &'static str,
    file: Option<FileObject>,
}

/// The upload of the caller's namespace with that id, as this member's ledger has it.
fn found(api: &ApiState, caller: &KeyCaller, id: &str) -> Result<Upload, ApiError> {
    let found = api.ledger(|l| {
        l.api_upload(id).filter(|upload| upload.spec.namespace == caller.namespace).cloned()
    });
    found.ok_or_else(|| ApiError::not_found("Upload object", id))
}

/// The same, as of now.
async fn find(api: &ApiState, caller: &KeyCaller, id: &str) -> Result<Upload, ApiError> {
    api.read().await?;
    found(api, caller, id)
}

/// The answer about an upload after a change.
fn answer(api: &ApiState, caller: &KeyCaller, id: String) -> Result<Json<UploadObject>, ApiError> {
    let upload = found(api, caller, &id)?;
    let file = (upload.state == UploadState::Completed).then(|| file_of_upload(&id));
    let file =
        file.and_then(|id| api.ledger(|l| l.api_file(&id).map(|file| FileObject::new(&id, file))));
    let created_at = upload.created_ms / 1000;
    Ok(Json(UploadObject {
        id,
        object: "upload",
        bytes: upload.bytes,
        created_at,
        expires_at: created_at + limits::UPLOAD_TTL_MS / 1000,
        filename: upload.spec.filename,
        purpose: name_of(upload.spec.purpose),
        status: upload.state.name(),
        file,
    }))
}

#[derive(Deserialize)]
struct CreateRequest {
    filename: String,
    purpose: String,
    bytes: u64,
    expires_after: Option<ExpiresAfter>,
}

async fn create(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    body: Result<Json<CreateRequest>, JsonRejection>,
) -> Result<Json<UploadObject>, ApiError> {
    let Json(CreateRequest { filename, purpose, bytes, expires_after }) = body?;
    let max = limits::FILENAME_BYTES_MAX;
    if !(1..=max).contains(&filename.len()) {
        return Err(ApiError::invalid("filename", format!("filename has 1 to {max} bytes.")));
    }
    let spec = FileSpec {
        namespace: caller.namespace.clone(),
        key: caller.key_id.clone(),
        filename,
        purpose: client_purpose(Some(&purpose))?,
        ttl_ms: ttl_ms(EXPIRES_AFTER, expires_after.as_ref())?,
    };
    let bound = room(&api, &caller, limits::UPLOAD_BYTES_MAX);
    if bytes > bound.bytes_max {
        return Err(bound.exceeded);
    }
    if bytes == 0 {
        return Err(ApiError::invalid("bytes", "bytes is at least 1."));
    }
    let (id, spec) = (new_id(UPLOAD_ID_PREFIX), Box::new(spec));
    audit::about("upload", &id);
    let op = op::CreateUpload { id: id.clone(), spec, bytes };
    api.apply(&caller, OpKind::CreateUpload(op)).await?;
    answer(&api, &caller, id)
}

/// OpenAI's object of a part.
#[derive(Serialize)]
struct PartObject {
    id: String,
    object: &'static str,
    created_at: u64,
    upload_id: String,
}

async fn add_part(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(upload): Path<String>,
    headers: HeaderMap,
    body: FormBody,
) -> Result<Json<PartObject>, ApiError> {
    audit::about("upload", &upload);
    find(&api, &caller, &upload).await?;
    let bound = room(&api, &caller, limits::UPLOAD_PART_BYTES_MAX);
    check_length(&headers, &bound)?;
    let _place = api.transfers.place()?;
    let id = part_of_upload(&upload, &random(PART_DIGITS));
    let writer = ContentWriter::begin(&api, &caller.namespace, &id);
    let form = body.read("data", &[], writer, bound).await?;
    let Form { content: Some((written, _)), .. } = form else {
        return Err(ApiError::missing("data"));
    };
    if written.extent.pieces.is_empty() {
        return Err(ApiError::invalid("data", "The part is empty."));
    }
    let (content, begun_at, named) = written.name();
    let op = op::AddUploadPart { upload: upload.clone(), id: id.clone(), content, begun_at };
    if let Err(error) = api.apply(&caller, OpKind::AddUploadPart(op)).await {
        return Err(named.failed(error));
    }
    let created_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Json(PartObject { id, object: "upload.part", created_at, upload_id: upload }))
}

#[derive(Deserialize)]
struct CompleteRequest {
    part_ids: Vec<String>,
    md5: Option<String>,
}

async fn complete(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
    body: Result<Json<CompleteRequest>, JsonRejection>,
) -> Result<Json<UploadObject>, ApiError> {
    let Json(CompleteRequest { part_ids, md5 }) = body?;
    audit::about("upload", &id);
    let upload = find(&api, &caller, &id).await?;
    let max = limits::UPLOAD_PARTS_MAX;
    if part_ids.len() > max {
        return Err(ApiError::invalid("part_ids", format!("part_ids has at most {max} ids.")));
    }
    if let (Some(md5), UploadState::Pending) = (md5.filter(|md5| !md5.is_empty()), upload.state) {
        let _place = api.transfers.place()?;
        let parts = part_ids.iter().map(|id| upload.parts.get(id).cloned().ok_or(id));
        let content: Vec<Extent> = parts.collect::<Result<_, _>>().map_err(|id| no_part(id))?;
        digest::check(&api, &caller.namespace, &content, &md5).await?;
    }
    let op = op::CompleteUpload { id: id.clone(), parts: part_ids };
    api.apply(&caller, OpKind::CompleteUpload(op)).await?;
    answer(&api, &caller, id)
}

fn no_part(id: &str) -> ApiError {
    let shown = &id[..id.floor_char_boundary(limits::API_ID_BYTES_MAX)];
    ApiError::invalid("part_ids", format!("The upload has no part {shown}."))
}

async fn cancel(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<UploadObject>, ApiError> {
    audit::about("upload", &id);
    find(&api, &caller, &id).await?;
    api.apply(&caller, OpKind::CancelUpload(op::CancelUpload { id: id.clone() })).await?;
    answer(&api, &caller, id)
}
