//! Every request runs within its trace: the caller's, or a new one.
//!
//! *Invariant:* what a request's handler logs has the trace's id, and so have the tasks that it
//! leaves behind for a stream.
//!
//! Deliberately absent: any decision. A malformed header is as if there were none.

use futures::FutureExt;
use futures::future::BoxFuture;
use rollout_proto::trace::{self, TraceContext};
use std::task::{Context, Poll};
use tower::{Layer, Service};
use tracing::Instrument;

/// The layer.
#[derive(Clone, Copy)]
pub(crate) struct TraceLayer;

impl<S> Layer<S> for TraceLayer {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced { inner }
    }
}

/// A service whose requests are traced.
#[derive(Clone)]
pub(crate) struct Traced<S> {
    inner: S,
}

impl<S, B> Service<http::Request<B>> for Traced<S>
where
    S: Service<http::Request<B>>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let traced = TraceContext::of_headers(request.headers());
        let method = method_of(request.uri().path());
        let span = tracing::info_span!("request", method, trace_id = traced.trace_id());
        let answer = span.in_scope(|| self.inner.call(request));
        trace::within(traced, answer.instrument(span)).boxed()
    }
}

/// `Runs/CreateRun` of `/rollout.v1.Runs/CreateRun`.
pub(crate) fn method_of(path: &str) -> &str {
    path.strip_prefix("/rollout.v1.").unwrap_or(path)
}
