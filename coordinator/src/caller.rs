//! The caller of the request that is being served, for bounds that are kept further in.
//!
//! *Invariant:* in a handler, [`current`] is the identity that the connection proved. Work of no request has no caller, and
//! neither have the tasks that a handler leaves behind for a stream.
//!
//! Deliberately absent: what a caller may do, which is decided from the request itself (`rollout_proto::AuthzLayer`).

use futures::FutureExt;
use futures::future::BoxFuture;
use rollout_proto::{Identity, PeerInfo};
use std::task::{Context, Poll};
use tower::{Layer, Service};

tokio::task_local! {
    static CALLER: Identity;
}

/// Whose request this is.
pub(crate) fn current() -> Option<Identity> {
    CALLER.try_with(Clone::clone).ok()
}

/// Does work for a caller.
pub(crate) async fn serving<F: Future>(caller: Identity, work: F) -> F::Output {
    CALLER.scope(caller, work).await
}

/// The layer.
#[derive(Clone, Copy)]
pub(crate) struct CallerLayer;

impl<S> Layer<S> for CallerLayer {
    type Service = Called<S>;

    fn layer(&self, inner: S) -> Called<S> {
        Called { inner }
    }
}

/// A service whose handlers know their caller.
#[derive(Clone)]
pub(crate) struct Called<S> {
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for Called<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let caller = request.extensions().get::<PeerInfo>().map(|peer| peer.identity.clone());
        let caller = caller.unwrap_or_else(Identity::insecure);
        serving(caller, self.inner.call(request)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::Role;
    use std::convert::Infallible;

    #[tokio::test]
    async fn a_handler_knows_its_caller_and_other_work_has_none() {
        let inner = tower::service_fn(|_: http::Request<()>| async {
            tokio::task::yield_now().await;
            let name = current().map(|caller| caller.name).unwrap_or_default();
            Ok::<_, Infallible>(http::Response::new(name))
        });
        let mut request = http::Request::new(());
        let identity = Identity::new(Role::Client, "bob", Vec::new()).expect("an identity");
        let addr = "127.0.0.1:9".parse().expect("an address");
        request.extensions_mut().insert(PeerInfo::uncertified(identity, addr));
        let mut service = CallerLayer.layer(inner);
        assert_eq!(service.call(request).await.expect("an answer").into_body(), "bob");
        assert!(current().is_none());
    }
}
