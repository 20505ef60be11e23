//! Carries the identity of a revoked certificate out of a failed handshake.
//!
//! The verifier knows the identity but not the address, and its error has room for neither: rustls chooses the alert by
//! the error, and the peer must learn that its certificate is revoked.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::identity::Identity;

tokio::task_local! {
    static REVOKED: RefCell<Option<Identity>>;
}

/// Called by a verifier that refuses a certificate because it is revoked.
pub(super) fn note_revoked(identity: &Identity) {
    // The client side of a handshake is outside of the scope: its error names the server.
    let _ = REVOKED.try_with(|revoked| *revoked.borrow_mut() = Some(identity.clone()));
}

/// The outcome of a server's handshake within `limit`, and the identity whose certificate was refused as revoked.
pub(super) async fn noting_revoked<T>(
    handshake: impl Future<Output = T>,
    limit: Duration,
) -> (Result<T, Elapsed>, Option<Identity>) {
    let noting = async {
        let made = timeout(limit, handshake).await;
        (made, REVOKED.with(RefCell::take))
    };
    REVOKED.scope(RefCell::default(), noting).await
}
