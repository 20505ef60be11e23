//! `GET /v1/models` and `GET /v1/models/{id}`: the models that the workers of the caller's namespace name.
//!
//! *Invariant:* a list costs the number of different lists of models that slots offer, not the number of slots.
//! Absent: models of workers that accept any model, which name none.

use crate::openai::auth::KeyCaller;
use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde::Serialize;
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<ApiState>> {
    // The id of a model may contain slashes.
    Router::new().route("/v1/models", get(list)).route("/v1/models/{*id}", get(retrieve))
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    /// When this member started: the cluster does not know when a model was made.
    created: u64,
    owned_by: &'static str,
}

#[derive(Serialize)]
struct Models {
    object: &'static str,
    data: Vec<Model>,
}

fn model(api: &ApiState, id: String) -> Model {
    Model { id, object: "model", created: api.started_unix_s, owned_by: "rollout" }
}

async fn list(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
) -> Result<Json<Models>, ApiError> {
    api.read().await?;
    let ids = api.ledger(|l| l.models_in(&caller.namespace));
    let data = ids.into_iter().map(|id| model(&api, id)).collect();
    Ok(Json(Models { object: "list", data }))
}

async fn retrieve(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    Path(id): Path<String>,
) -> Result<Json<Model>, ApiError> {
    api.read().await?;
    match api.ledger(|l| l.models_in(&caller.namespace).contains(&id)) {
        true => Ok(Json(model(&api, id))),
        false => Err(ApiError::not_found("model", &id)),
    }
}
