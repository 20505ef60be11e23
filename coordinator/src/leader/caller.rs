//! The caller of the current request, for bounds that are enforced deeper in the call stack.
//!
//! *Invariant:* in a handler, [`current`] is the identity that the connection proved. Work that belongs to no request
//! has no caller, and neither have the tasks that a handler spawns for a stream.
//!
//! Deliberately absent: what a caller may do, which is decided from the request itself (`rollout_proto::AuthzLayer`);
//! the layer that names the caller (`grpc::caller`).

use rollout_proto::Identity;

tokio::task_local! {
    static CALLER: Identity;
}

/// The identity of the caller of this request.
pub(crate) fn current() -> Option<Identity> {
    CALLER.try_with(Clone::clone).ok()
}

/// Runs work on behalf of a caller.
pub(crate) async fn serving<F: Future>(caller: Identity, work: F) -> F::Output {
    CALLER.scope(caller, work).await
}
