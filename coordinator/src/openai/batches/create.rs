//! `POST /v1/batches`: creates a batch, or finds the one that the same request created before.
//!
//! *Invariant:* a repeat of a request gets the batch of the first one, even if the cluster has changed so that a new
//! request would be refused: the ledger looks for the first one before it checks anything that can change.

use super::object::BatchObject;
use super::{found, request};
use crate::observe::audit;
use crate::openai::auth::KeyCaller;
use crate::openai::error::{ApiError, shown};
use crate::openai::idempotency::idempotency_key;
use crate::openai::ids::new_id;
use crate::openai::state::ApiState;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use rollout_ledger::{BATCH_ID_PREFIX, BatchDecl, BatchSpec, OpKind, ROLLOUT_KEY, Reply};
use rollout_storage::run_folder;
use std::sync::Arc;

/// Served routes that an error lists.
const ROUTES_SHOWN: usize = 16;

pub(super) async fn create(
    State(api): State<Arc<ApiState>>,
    Extension(caller): Extension<Arc<KeyCaller>>,
    headers: HeaderMap,
    body: Result<Json<request::Body>, JsonRejection>,
) -> Result<Json<BatchObject>, ApiError> {
    let Json(body) = body?;
    let spec = request::spec(&body)?;
    let idempotency = idempotency_key(&headers)?.map(|key| hash_of(&caller.namespace, key));
    api.read().await?;
    check_endpoint(&api, &caller, &spec, idempotency.as_ref())?;
    let id = new_id(BATCH_ID_PREFIX);
    audit::about("batch", &id);
    let cluster = api.ledger(|l| format!("{:032x}", u128::from_be_bytes(l.cluster_id())));
    let decl = BatchDecl {
        folder: run_folder(&id, &cluster, rand::random()),
        id,
        namespace: caller.namespace.clone(),
        key: caller.key_id.clone(),
        idempotency,
        body_hash: body_hash(&spec)?,
        spec,
    };
    match api.apply(&caller, OpKind::CreateBatch(Box::new(decl))).await? {
        (_, Reply::Batch { id, .. }) => {
            // The request may be a repeat.
            audit::about("batch", &id);
            found(&api, &caller, &id).map(Json)
        }
        (_, reply) => Err(ApiError::internal(format!("an unexpected reply: {reply:?}"))),
    }
}

fn hash_of(namespace: &str, key: &[u8]) -> [u8; 32] {
    // Names of namespaces contain no zero byte.
    *blake3::Hasher::new()
        .update(namespace.as_bytes())
        .update(&[0])
        .update(key)
        .finalize()
        .as_bytes()
}

/// The same for requests that ask for the same, in whatever order and with whatever unknown fields.
fn body_hash(spec: &BatchSpec) -> Result<[u8; 32], ApiError> {
    let json = serde_json::to_vec(spec).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(*blake3::hash(&json).as_bytes())
}

/// Refuses a new batch for an endpoint that no registered slot serves: it would wait until its window ends.
fn check_endpoint(
    api: &ApiState,
    caller: &KeyCaller,
    spec: &BatchSpec,
    idempotency: Option<&[u8; 32]>,
) -> Result<(), ApiError> {
    let namespace = &*caller.namespace;
    let own = spec.metadata.get(ROLLOUT_KEY).map(String::as_str);
    let (is_repeat, served) = api.ledger(|l| {
        let is_repeat = l.batch_of_request(namespace, idempotency, own).is_some();
        let served = match l.has_route(namespace, &spec.endpoint) {
            true => None,
            false => Some(l.routes(namespace).take(ROUTES_SHOWN).collect::<Vec<_>>().join(", ")),
        };
        (is_repeat, served)
    });
    let Some(served) = served.filter(|_| !is_repeat) else { return Ok(()) };
    let endpoint = shown(&spec.endpoint);
    let others = match served.is_empty() {
        true => "No worker of this namespace serves any endpoint.".to_owned(),
        false => format!("They serve {served}."),
    };
    let message = format!("No registered worker of this namespace serves {endpoint}. {others}");
    Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_url", message).with_param("endpoint"))
}
