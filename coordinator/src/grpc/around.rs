//! A tower layer that runs code around each request of a service: the part that all such layers share.
//!
//! *Invariant:* the inner service is ready when it is called, as tower requires.
//!
//! Deliberately absent: the code that runs around requests; see the implementations of [`Around`].

use futures::future::BoxFuture;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// Code that runs around each request.
pub(crate) trait Around: Clone {
    /// Calls the inner service once, and returns the answer.
    fn around<S, B, R>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> BoxFuture<'static, Result<http::Response<R>, S::Error>>
    where
        S: Service<http::Request<B>, Response = http::Response<R>>,
        S::Future: Send + 'static,
        S::Error: 'static,
        R: 'static;
}

/// The layer.
#[derive(Clone, Copy)]
pub(crate) struct AroundLayer<A>(pub(crate) A);

impl<A: Around, S> Layer<S> for AroundLayer<A> {
    type Service = Surrounded<A, S>;

    fn layer(&self, inner: S) -> Surrounded<A, S> {
        Surrounded { around: self.0.clone(), inner }
    }
}

/// A service inside the layer.
#[derive(Clone)]
pub(crate) struct Surrounded<A, S> {
    around: A,
    inner: S,
}

impl<A, S, B, R> Service<http::Request<B>> for Surrounded<A, S>
where
    A: Around,
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        self.around.around(&mut self.inner, request)
    }
}
