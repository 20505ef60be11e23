//! Runs every request within its trace, the caller's or a new one, and records it as a span if spans are recorded.
//!
//! *Invariant:* log lines of a request's handler have the trace's id, and so have those of the tasks that it spawns for
//! a stream. A span's end says how the request ended, and its position in the log.
//!
//! Absent: any decision. A malformed header counts as no header. The span of a stream ends when the stream
//! is open, because the stream may last for days.

use crate::grpc::middleware::{HttpService, Middleware, MiddlewareFuture};
use crate::observe::audit::method_of;
use futures::FutureExt;
use rollout_proto::trace::{self, Span};
use rollout_proto::{AnswerPosition, PeerInfo, RpcError};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tracing::Instrument;

/// The longest name of a span, in bytes: longer than every method's. A caller may request any path.
const NAME_BYTES_MAX: usize = 128;

/// Runs requests within their traces.
#[derive(Clone, Copy)]
pub(crate) struct Trace;

impl Middleware for Trace {
    fn handle<S: HttpService<B>, B>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> MiddlewareFuture<S, B> {
        let open = begun(&request);
        let traced = open.context();
        let method = method_of(request.uri().path());
        let span = tracing::info_span!("request", method, trace_id = traced.trace_id());
        let answer = span.in_scope(|| inner.call(request));
        let traced_call = async move {
            let response = answer.await;
            if let Ok(response) = &response {
                ended(open, response.headers());
            }
            response
        };
        trace::within(traced, traced_call.instrument(span)).boxed()
    }
}

/// Starts the request's span, with what is known before the request is served.
fn begun<B>(request: &http::Request<B>) -> Span {
    let path = request.uri().path().trim_start_matches('/');
    let name = &path[..path.floor_char_boundary(NAME_BYTES_MAX)];
    let mut span = Span::served(request.headers(), name);
    if !span.is_recorded() {
        return span;
    }
    span.note("rpc.system", "grpc");
    if let Some((service, method)) = name.split_once('/') {
        span.note("rpc.service", service);
        span.note("rpc.method", method);
    }
    if let Some(peer) = request.extensions().get::<PeerInfo>() {
        span.note("rollout.caller", peer.identity.to_string());
        span.note("rollout.caller_role", peer.identity.role.as_str());
        span.note("network.peer.address", peer.addr.to_string());
    }
    span
}

/// Ends the span with the outcome in the answer's headers.
fn ended(mut span: Span, headers: &http::HeaderMap) {
    if !span.is_recorded() {
        return;
    }
    let status = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    span.note("rpc.grpc.status_code", status.as_ref().map_or(Code::Ok, Status::code) as u64);
    if let Some(at) = AnswerPosition::of(&MetadataMap::from_headers(headers.clone())) {
        span.note("rollout.coord_epoch", at.coord_epoch);
        span.note("rollout.log_index", at.index);
    }
    let Some(status) = status else { return span.done() };
    span.note("rollout.code", RpcError::from_status(&status).code.code());
    span.failed(|| status.message().to_owned());
}
