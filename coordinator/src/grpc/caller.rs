//! A layer that makes the caller of a request known to its handler and to what that calls.
//!
//! *Invariant:* the caller is the identity that the connection proved.
//!
//! Absent: how it is kept (`leader::caller`).

use crate::grpc::middleware::{HttpService, Middleware, MiddlewareFuture};
use crate::leader::caller::serving;
use futures::FutureExt;
use rollout_proto::{Identity, PeerInfo};

/// Makes the caller known to the handlers of its request.
#[derive(Clone, Copy)]
pub(crate) struct Caller;

impl Middleware for Caller {
    fn handle<S: HttpService<B>, B>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> MiddlewareFuture<S, B> {
        let caller = request.extensions().get::<PeerInfo>().map(|peer| peer.identity.clone());
        let caller = caller.unwrap_or_else(Identity::insecure);
        serving(caller, inner.call(request)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::middleware::MiddlewareLayer;
    use crate::leader::caller::current;
    use rollout_proto::Role;
    use std::convert::Infallible;
    use tower::{Layer, Service};

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
        let mut service = MiddlewareLayer(Caller).layer(inner);
        assert_eq!(service.call(request).await.expect("an answer").into_body(), "bob");
        assert!(current().is_none());
    }
}
