//! A tower layer that runs code around each request of a service: the part that all such layers share.
//!
//! *Invariant:* the inner service is ready when it is called, as tower requires.
//!
//! Absent: the code that runs around requests; see the implementations of [`Middleware`].

use futures::future::BoxFuture;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// A tower service of HTTP requests whose answers may be awaited on any thread. Every such service implements it.
pub(crate) trait HttpService<B>:
    Service<
        http::Request<B>,
        Response = http::Response<<Self as HttpService<B>>::Body>,
        Error: 'static,
        Future: Send + 'static,
    >
{
    /// The body of its answers.
    type Body: 'static;
}

impl<S, B, R: 'static> HttpService<B> for S
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Error: 'static,
    S::Future: Send + 'static,
{
    type Body = R;
}

/// The answer of a service.
pub(crate) type MiddlewareFuture<S, B> = BoxFuture<
    'static,
    Result<http::Response<<S as HttpService<B>>::Body>, <S as Service<http::Request<B>>>::Error>,
>;

/// Code that runs around each request.
pub(crate) trait Middleware: Clone {
    /// Calls the inner service once, and returns the answer.
    fn handle<S: HttpService<B>, B>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> MiddlewareFuture<S, B>;
}

#[derive(Clone, Copy)]
pub(crate) struct MiddlewareLayer<A>(pub(crate) A);

impl<A: Middleware, S> Layer<S> for MiddlewareLayer<A> {
    type Service = MiddlewareService<A, S>;

    fn layer(&self, inner: S) -> MiddlewareService<A, S> {
        MiddlewareService { middleware: self.0.clone(), inner }
    }
}

/// A service inside the layer.
#[derive(Clone)]
pub(crate) struct MiddlewareService<A, S> {
    middleware: A,
    inner: S,
}

impl<A: Middleware, S: HttpService<B>, B> Service<http::Request<B>> for MiddlewareService<A, S> {
    type Response = http::Response<S::Body>;
    type Error = S::Error;
    type Future = MiddlewareFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        self.middleware.handle(&mut self.inner, request)
    }
}
