//! Owns: what happens around each request: its id, its place, its caller, its audit line, its metrics.
//!
//! Invariant: no handler runs without a caller whose key allows the method. At most [`REQUESTS_MAX`] requests are in
//! progress. Every answer has the header `x-request-id`, and every error has OpenAI's form.
//! Absent: connections (`listener`), and bounds of bodies that are not JSON, which their routes have.

use crate::leader::caller::serving;
use crate::observe::audit::{self, AuditLog, HttpCall};
use crate::observe::log_position;
use crate::openai::auth::{self, KeyCaller};
use crate::openai::batches;
use crate::openai::error::ApiError;
use crate::openai::files;
use crate::openai::key_watch::{self, KeyWatch};
use crate::openai::listener::Connection;
use crate::openai::models;
use crate::openai::rate::Rates;
use crate::openai::response_body::{KeyEnd, ResponseBody};
use crate::openai::state::ApiState;
use crate::openai::uploads;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use rollout_proto::Identity;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests in progress, until the last byte of their answers.
const REQUESTS_MAX: usize = 1024;
/// Size limit of a JSON body. Routes that accept files have limits of their own.
const JSON_BYTES_MAX: usize = 1 << 20;
/// The route of requests that no route matches, in metrics.
const NO_ROUTE: &str = "none";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What all requests pass.
pub(super) struct Gate {
    api: Arc<ApiState>,
    audit: Arc<AuditLog>,
    rates: Rates,
    keys: KeyWatch,
    room: Arc<Semaphore>,
}

impl Gate {
    pub(super) fn new(api: Arc<ApiState>, audit: Arc<AuditLog>) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(REQUESTS_MAX));
        Arc::new(Self { api, audit, rates: Rates::default(), keys: KeyWatch::default(), room })
    }

    /// Ends requests whose keys end, for as long as it runs.
    pub(super) async fn follow_keys(&self) {
        self.keys.follow(&self.api).await;
    }
}

/// All routes of the API.
pub(super) fn router(gate: Arc<Gate>) -> Router {
    let api = gate.api.clone();
    Router::new()
        .merge(models::routes())
        .merge(files::routes())
        .merge(uploads::routes())
        .merge(batches::routes())
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .layer(from_fn_with_state(gate, answer))
        .with_state(api)
}

async fn no_route(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let path = &path[..path.floor_char_boundary(PATH_SHOWN_BYTES_MAX)];
    let message = format!("Unknown request URL: {method} {path}.");
    ApiError::new(StatusCode::NOT_FOUND, "unknown_url", message)
}

async fn wrong_method(method: Method) -> ApiError {
    let message = format!("This URL does not accept the method {method}.");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// How much of an unknown path an error repeats.
const PATH_SHOWN_BYTES_MAX: usize = 256;

fn answer(
    State(gate): State<Arc<Gate>>,
    request: Request,
    next: Next,
) -> BoxFuture<'static, Response> {
    // On the heap, so that the futures of connections do not grow.
    async move { answer_counted(&gate, request, next).await }.boxed()
}

/// Answers a request, and counts it.
async fn answer_counted(gate: &Gate, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = format!("req_{:024x}", rand::random::<u128>() >> 32);
    let route = route_of(&request);
    let call = call(&id, &route, &request);
    let mut response = match admit(gate, request.headers(), request.method()).await {
        Ok(admitted) => serve(gate, admitted, call, request, next).await,
        Err(refusal) => refuse(gate, refusal, call).await,
    };
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let status = response.status().as_str().to_owned();
    metrics::counter!("rollout_api_requests_total", "route" => route.clone(), "status" => status)
        .increment(1);
    metrics::histogram!("rollout_api_request_seconds", "route" => route)
        .record(begun.elapsed().as_secs_f64());
    response
}

/// The path of the route, with names of parameters instead of values: `/v1/files/{id}`.
fn route_of(request: &Request) -> String {
    let path = request.extensions().get::<MatchedPath>();
    path.map_or_else(|| NO_ROUTE.to_owned(), |path| path.as_str().replace("{*", "{"))
}

/// A request that may be served.
struct Admitted {
    caller: Arc<KeyCaller>,
    key_end: KeyEnd,
    place: OwnedSemaphorePermit,
}

/// Why a request may not be served, and whose it is.
struct Refusal {
    error: ApiError,
    identity: Identity,
}

/// Decides whether a request may be served, before its body is read.
async fn admit(gate: &Gate, headers: &HeaderMap, method: &Method) -> Result<Admitted, Refusal> {
    let unknown = |error| Refusal { error, identity: Identity::unenrolled() };
    let place = gate.room.clone().try_acquire_owned().map_err(|_| {
        let message = format!("This member serves {REQUESTS_MAX} requests already.");
        unknown(ApiError::overloaded(message))
    })?;
    // Before the caller is known, so that the end of its key is not missed.
    let changes = gate.keys.subscribe();
    let caller = auth::authenticate(&gate.api, headers).await.map_err(unknown)?;
    let known = |error| Refusal { error, identity: caller.identity.clone() };
    auth::check_role(&caller, method).map_err(known)?;
    check_rate(gate, &caller).map_err(known)?;
    let key_end = key_watch::ended(gate.api.clone(), caller.clone(), changes).boxed().fuse();
    Ok(Admitted { caller, key_end, place })
}

fn check_rate(gate: &Gate, caller: &KeyCaller) -> Result<(), ApiError> {
    let (id, limit) = (&caller.key_id, caller.limits.requests_per_s);
    gate.rates.take(id, limit, Instant::now()).map_err(|wait| {
        let message = format!("Key {id} is over its limit of {limit} requests per second.");
        ApiError::too_many("rate_limit_exceeded", message, wait)
    })
}

async fn serve(
    gate: &Gate,
    Admitted { caller, mut key_end, place }: Admitted,
    call: HttpCall,
    mut request: Request,
    next: Next,
) -> Response {
    let call = HttpCall { identity: caller.identity.clone(), ..call };
    request.extensions_mut().insert(caller.clone());
    let handled = async {
        audit::in_namespace(&caller.namespace);
        tokio::select! {
            response = next.run(request) => response,
            error = &mut key_end => error.into_response(),
        }
    };
    let audited = gate.audit.http(call, handled);
    let answered = serving(caller.identity.clone(), log_position::noting(audited)).await;
    let Some(response) = answered else {
        let message =
            "Too many requests wait for the audit log, or this key has used up its share.";
        return ApiError::overloaded(message).into_response();
    };
    response.map(|body| Body::new(ResponseBody::new(body, key_end, place)))
}

/// Answers a request that may not be served.
async fn refuse(gate: &Gate, Refusal { error, identity }: Refusal, call: HttpCall) -> Response {
    let call = HttpCall { identity, changes: false, ..call };
    let refused = error.clone();
    let answered = gate.audit.http(call, async { refused.into_response() }).await;
    answered.unwrap_or_else(|| error.into_response())
}

/// The request for the audit, before its caller is known.
fn call(id: &str, route: &str, request: &Request) -> HttpCall {
    let addr = request.extensions().get::<Connection>().map(|connection| connection.addr);
    HttpCall {
        identity: Identity::unenrolled(),
        addr: addr.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        method: format!("{} {route}", request.method()),
        id: id.to_owned(),
        changes: !auth::is_read(request.method()),
    }
}

#[cfg(test)]
mod tests;
