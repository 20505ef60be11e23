//! Which role may call which method.
//!
//! *Invariant:* the roles of a method are those that its options in the .proto file list ([`crate::METHODS`]), and no
//! role may call another method. The decision is made before a byte of the message is decoded.
//!
//! Absent: namespaces, and that a worker speaks only for the name in its certificate: both need the
//! decoded request, so the services check them with [`crate::Identity`].

#[cfg(test)]
mod tests;

use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use tonic::Status;
use tower::{Layer, Service};

use crate::error::{ErrorCode, RpcError};
use crate::identity::{PeerInfo, Role, no_identity};
use crate::methods::Method;
use crate::revocations::Revocations;

/// The roles that may call the method at `path` (`/rollout.v1.Runs/CreateRun`); `None` if there is no such method.
pub fn allowed(path: &str) -> Option<&'static [Role]> {
    Method::find(path).map(|method| method.roles)
}

/// Refuses, with `PERMISSION_DENIED`, a request whose caller's role may not call the method, and also one whose
/// caller's certificate is revoked. For tonic's `Server::builder().layer(..)` over connections of
/// [`crate::ServerTls::incoming`].
#[derive(Clone, Debug, Default)]
pub struct AuthzLayer {
    revocations: Revocations,
}

impl AuthzLayer {
    /// The layer without revoked certificates.
    pub fn new() -> Self {
        AuthzLayer::default()
    }

    /// The layer with a list of revoked certificates.
    pub fn refusing(revocations: Revocations) -> Self {
        AuthzLayer { revocations }
    }
}

impl<S> Layer<S> for AuthzLayer {
    type Service = Authz<S>;

    fn layer(&self, inner: S) -> Authz<S> {
        Authz { inner, revocations: self.revocations.clone() }
    }
}

/// A service behind the layer.
#[derive(Clone, Debug)]
pub struct Authz<S> {
    inner: S,
    revocations: Revocations,
}

impl<S, B, R> Service<http::Request<B>> for Authz<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    R: Default,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Self::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let peer = request.extensions().get::<PeerInfo>();
        let decided = authorize(request.uri().path(), peer);
        match decided.and_then(|()| check_revocation(&self.revocations, peer)) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(status) => Either::Left(ready(Ok(status.into_http()))),
        }
    }
}

#[allow(clippy::result_large_err)]
fn check_revocation(revocations: &Revocations, peer: Option<&PeerInfo>) -> Result<(), Status> {
    match peer {
        Some(peer) if revocations.refuses(&peer.identity, peer.not_before_unix) => {
            let message = format!("the certificate of {} is revoked", peer.identity);
            Err(RpcError::new(ErrorCode::CertificateRevoked, message).into())
        }
        _ => Ok(()),
    }
}

/// Whether a caller may call the method at `path`.
///
/// # Errors
/// The refusal: the role does not allow it, the caller has no identity, or there is no such method.
#[allow(clippy::result_large_err)]
pub fn authorize(path: &str, peer: Option<&PeerInfo>) -> Result<(), Status> {
    let Some(peer) = peer else {
        return Err(no_identity());
    };
    let Some(roles) = allowed(path) else {
        let message = format!("this member knows no method {path}: it runs an older version");
        return Err(RpcError::new(ErrorCode::UnsupportedVersion, message).into());
    };
    if roles.iter().any(|role| peer.identity.acts_as(*role)) {
        return Ok(());
    }
    // Any caller of the enrollment port could fill the log; the audit log counts such callers instead.
    if peer.identity.role != Role::Unenrolled {
        tracing::warn!(
            identity = %peer.identity,
            addr = %peer.addr,
            method = path,
            "refused a call that the caller's role does not allow"
        );
    }
    let wanted: Vec<String> = roles.iter().map(|role| role.with_article()).collect();
    let message = format!(
        "{} may not call {path}: it needs a certificate of {}",
        peer.identity,
        wanted.join(" or ")
    );
    Err(RpcError::new(ErrorCode::PermissionDenied, message).into())
}
