//! `/v1/batches`: batches of the caller's namespace.
//!
//! *Invariant:* a batch of another namespace is answered as one that does not exist. Faults of a request are errors of
//! its answer; faults of the file's content appear in the batch, which then has failed.
//! Absent: reading the file and writing the output, which members do after the answer.

mod create;
mod object;
pub(crate) mod options;
mod request;
#[cfg(test)]
mod tests;

use crate::observe::audit;
use crate::openai::auth::KeyCaller;
use crate::openai::error::ApiError;
use crate::openai::page::{ListParams, Page};
use crate::openai::state::ApiState;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use object::BatchObject;
use rollout_ledger::{OpKind, op};
use std::sync::Arc;

/// Batches of one page unless the request says how many.
const PAGE_DEFAULT: usize = 20;
/// Batches of one page.
const PAGE_MAX: usize = 100;

pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/batches", post(create::create).get(list))
        .route("/v1/batches/{id}", get(retrieve))
        .route("/v1/batches/{id}/cancel", post(cancel))
}

/// The batch of the caller's namespace with that id, as this member's ledger has it.
fn found(api: &ApiState, caller: &KeyCaller, id: &str) -> Result<BatchObject, ApiError> {
    let found = api.ledger(|l| l.batch_view(id));
    let found = found.filter(|batch| batch.namespace == caller.namespace);
    found.map(BatchObject::from).ok_or_else(|| ApiError::not_found("Batch object", id))
}

async fn list(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Json<Page<BatchObject>>, ApiError> {
    let Query(params) = params.map_err(|error| ApiError::invalid("query", error.body_text()))?;
    let (after, max) = (params.after.as_deref(), params.limit(PAGE_DEFAULT, PAGE_MAX)?);
    api.read().await?;
    let Some((batches, has_more)) = api.ledger(|l| l.batch_views(&caller.namespace, after, max))
    else {
        return Err(
            ApiError::not_found("Batch object", after.unwrap_or_default()).with_param("after")
        );
    };
    let batches = batches.into_iter().map(BatchObject::from).collect();
    Ok(Json(Page::new(batches, has_more, BatchObject::id)))
}

async fn retrieve(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<BatchObject>, ApiError> {
    api.read().await?;
    found(&api, &caller, &id).map(Json)
}

async fn cancel(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<BatchObject>, ApiError> {
    audit::about("batch", &id);
    api.read().await?;
    found(&api, &caller, &id)?;
    api.apply(&caller, OpKind::CancelBatch(op::CancelBatch { batch: id.clone() })).await?;
    found(&api, &caller, &id).map(Json)
}
