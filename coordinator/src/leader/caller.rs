//! The caller of the current request, for bounds that are enforced deeper in the call stack, and for the scope of the
//! operations that the request proposes.
//!
//! *Invariant:* in a handler, [`current`] is the identity that the connection proved. Work that belongs to no request
//! has no caller, and neither have the tasks that a handler spawns for a stream.
//!
//! Absent: what a caller may do, which is decided from the request itself (`rollout_proto::AuthzLayer`);
//! the layer that names the caller (`grpc::caller`).

use rollout_ledger::Scope;
use rollout_proto::{Identity, Role};

tokio::task_local! {
    static CALLER: Identity;
}

/// The identity of the caller of this request.
pub(crate) fn current() -> Option<Identity> {
    CALLER.try_with(Clone::clone).ok()
}

/// Where operations of this request may act. Operations of the leader's own tasks may act everywhere.
pub(crate) fn scope() -> Scope {
    CALLER.try_with(scope_of).unwrap_or_default()
}

fn scope_of(caller: &Identity) -> Scope {
    // A caller that has not enrolled lists no namespace, and may access none.
    match caller.namespaces.is_empty() && caller.role != Role::Unenrolled {
        true => Scope::All,
        false => Scope::Namespaces(caller.namespaces.clone()),
    }
}

/// Runs work on behalf of a caller.
pub(crate) async fn serving<F: Future>(caller: Identity, work: F) -> F::Output {
    CALLER.scope(caller, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn operations_have_the_scope_of_the_certificate() {
        assert_eq!(scope(), Scope::All, "the leader's own work");
        let named = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
            Identity::new(Role::Client, "ann", namespaces).expect("an identity")
        };
        assert_eq!(serving(named(&[]), async { scope() }).await, Scope::All);
        let team = serving(named(&["team", "own"]), async { scope() }).await;
        assert_eq!(team, Scope::Namespaces(vec!["team".into(), "own".into()]));
        let unenrolled = serving(Identity::unenrolled(), async { scope() }).await;
        assert_eq!(unenrolled, Scope::Namespaces(Vec::new()), "it may use none");
    }
}
