//! `/v1/files`: files of the caller's namespace.
//!
//! *Invariant:* a file of another namespace is answered as one that does not exist. A list continues after an id, so a
//! caller that deletes files while it lists them skips none.
//! Absent: uploads in parts (`uploads`).

mod create;
mod download;
mod object;
#[cfg(test)]
pub(super) mod tests;

pub(super) use create::{check_length, room};
pub(super) use object::{EXPIRES_AFTER, ExpiresAfter, FileObject, client_purpose, name_of, ttl_ms};

use crate::observe::audit;
use crate::openai::auth::KeyCaller;
use crate::openai::error::ApiError;
use crate::openai::page::{ListParams, Page};
use crate::openai::state::ApiState;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use rollout_ledger::{ApiFile, FilePage, OpKind, op};
use serde::Serialize;
use std::sync::Arc;

/// Files of one page.
const PAGE_MAX: usize = 10_000;

pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/files", post(create::create).get(list))
        .route("/v1/files/{id}", get(retrieve).delete(delete))
        .route("/v1/files/{id}/content", get(download::download))
}

/// The file of the caller's namespace with that id, as of now.
async fn find(api: &ApiState, caller: &KeyCaller, id: &str) -> Result<ApiFile, ApiError> {
    api.read().await?;
    let found = api
        .ledger(|l| l.api_file(id).filter(|file| file.spec.namespace == caller.namespace).cloned());
    found.ok_or_else(|| ApiError::not_found("File object", id))
}

async fn list(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Json<Page<FileObject>>, ApiError> {
    let Query(params) = params.map_err(|error| ApiError::invalid("query", error.body_text()))?;
    let (max, descending) = (params.limit(PAGE_MAX, PAGE_MAX)?, params.descending()?);
    let purpose = params.purpose.as_deref().map(object::purpose_named);
    if purpose == Some(None) {
        // OpenAI has more purposes than this cluster, which has no file of any of them.
        return Ok(Json(Page::new(Vec::new(), false, FileObject::id)));
    }
    api.read().await?;
    let (files, has_more) = api.ledger(|l| {
        let (namespace, after) = (&*caller.namespace, params.after.as_deref());
        let purpose = purpose.flatten();
        let page = FilePage { namespace, purpose, after, descending, max };
        let (files, has_more) = l.api_file_page(page);
        let files = files.into_iter().map(|(id, file)| FileObject::new(id, file));
        (files.collect::<Vec<_>>(), has_more)
    });
    Ok(Json(Page::new(files, has_more, FileObject::id)))
}

async fn retrieve(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<FileObject>, ApiError> {
    let file = find(&api, &caller, &id).await?;
    Ok(Json(FileObject::new(&id, &file)))
}

#[derive(Serialize)]
struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

async fn delete(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    audit::about("file", &id);
    find(&api, &caller, &id).await?;
    api.apply(&caller, OpKind::DeleteFile(op::DeleteFile { id: id.clone() })).await?;
    Ok(Json(Deleted { id, object: "file", deleted: true }))
}
