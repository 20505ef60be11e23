//! Certificates that this process refuses although an authority that it trusts has signed them.
//!
//! *Invariant:* every clone of [`Revocations`] has the same list. Once a list is set, no handshake and no request with
//! a certificate on it is accepted, and existing connections with one end.
//!
//! Absent: the source of the list. Members read it from the replicated ledger.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::identity::{Identity, Role};

/// The most members whose certificates are remembered, more than any cluster has.
const MEMBERS_MAX: usize = 64;

/// A list of revoked certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationList {
    /// All certificates with an earlier start of validity are refused, in Unix seconds.
    everyone_before_s: u64,
    identities: HashMap<Role, HashMap<String, u64>>,
}

impl RevocationList {
    /// Refuses all certificates whose validity starts before `before_s`, in Unix seconds.
    pub fn revoke_everyone(&mut self, before_s: u64) {
        self.everyone_before_s = before_s;
    }

    /// Refuses the certificates of one identity, whatever namespaces they list: those whose validity starts before
    /// `before_s`, in Unix seconds, or all of them.
    pub fn revoke(&mut self, role: Role, name: &str, before_s: Option<u64>) {
        let before_s = before_s.unwrap_or(u64::MAX);
        self.identities.entry(role).or_default().insert(name.to_owned(), before_s);
    }

    /// The earliest start of validity, in Unix seconds, with which a certificate of `identity` is accepted; `None` if
    /// all are refused.
    pub fn accepted_from_s(&self, identity: &Identity) -> Option<u64> {
        let of_identity =
            self.identities.get(&identity.role).and_then(|names| names.get(&identity.name));
        let before_s = of_identity.copied().unwrap_or(0).max(self.everyone_before_s);
        (before_s < u64::MAX).then_some(before_s)
    }

    /// Whether a certificate of `identity` is refused if its validity starts at `not_before_unix`.
    pub fn refuses(&self, identity: &Identity, not_before_unix: i64) -> bool {
        if identity.is_insecure() || identity.role == Role::Unenrolled {
            return false;
        }
        let since_s = u64::try_from(not_before_unix).unwrap_or(0);
        self.accepted_from_s(identity).is_none_or(|from_s| since_s < from_s)
    }
}

/// The list in force, shared by listeners, requests and connections.
#[derive(Clone)]
pub struct Revocations {
    list: Arc<watch::Sender<RevocationList>>,
    /// The start of validity of the certificates with which members last connected.
    members: Arc<Mutex<HashMap<String, i64>>>,
}

impl Default for Revocations {
    fn default() -> Self {
        Revocations { list: Arc::new(watch::Sender::default()), members: Arc::default() }
    }
}

impl Revocations {
    /// Puts a list into force.
    pub fn set(&self, list: RevocationList) {
        self.list.send_if_modified(|current| {
            let changed = *current != list;
            *current = list;
            changed
        });
    }

    /// As [`RevocationList::refuses`], for the list in force.
    pub fn refuses(&self, identity: &Identity, not_before_unix: i64) -> bool {
        self.list.borrow().refuses(identity, not_before_unix)
    }

    /// As [`RevocationList::accepted_from_s`], for the list in force.
    pub fn accepted_from_s(&self, identity: &Identity) -> Option<u64> {
        self.list.borrow().accepted_from_s(identity)
    }

    /// Members that have connected to this process, with the start of validity of the certificate of their latest
    /// connection, in Unix seconds.
    pub fn members_seen(&self) -> Vec<(String, i64)> {
        self.members.lock().iter().map(|(name, since)| (name.clone(), *since)).collect()
    }

    pub(crate) fn connected(&self, identity: &Identity, not_before_unix: i64) {
        if identity.role != Role::Member {
            return;
        }
        let mut members = self.members.lock();
        if members.len() < MEMBERS_MAX || members.contains_key(&identity.name) {
            members.insert(identity.name.clone(), not_before_unix);
        }
    }

    /// Becomes ready once the certificate is refused.
    pub(crate) fn until_refused(&self, identity: &Identity, not_before_unix: i64) -> UntilRefused {
        let (mut list, identity) = (self.list.subscribe(), identity.clone());
        let waits = async move {
            let refuses = |list: &RevocationList| list.refuses(&identity, not_before_unix);
            let gone = list.wait_for(refuses).await.is_err();
            if gone {
                // Every handle is gone, so the list can no longer change.
                std::future::pending::<()>().await;
            }
        };
        UntilRefused { waits: Some(Box::pin(waits)) }
    }
}

impl fmt::Debug for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Revocations").field(&*self.list.borrow()).finish()
    }
}

/// See [`Revocations::until_refused`].
pub(crate) struct UntilRefused {
    /// `None` once it was ready, which it stays.
    waits: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for UntilRefused {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(waits) = &mut self.waits else { return Poll::Ready(()) };
        let polled = waits.as_mut().poll(cx);
        if polled.is_ready() {
            self.waits = None;
        }
        polled
    }
}

impl fmt::Debug for UntilRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UntilRefused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uri: &str) -> Identity {
        Identity::from_uri(uri).unwrap()
    }

    #[test]
    fn a_list_refuses_by_role_name_and_time_whatever_the_namespaces() {
        let mut list = RevocationList::default();
        list.revoke(Role::Worker, "gpu-1", None);
        list.revoke(Role::Client, "ann", Some(1000));
        for (uri, not_before, refused) in [
            ("rollout://worker/gpu-1", 5000, true),
            ("rollout://worker/gpu-1?ns=a", i64::MAX, true),
            ("rollout://worker/gpu-2", 0, false),
            ("rollout://client/gpu-1", 0, false),
            ("rollout://client/ann?ns=a,b", 999, true),
            ("rollout://client/ann", 1000, false),
            ("rollout://client/ann", -1, true),
        ] {
            assert_eq!(list.refuses(&identity(uri), not_before), refused, "{uri} {not_before}");
        }
        list.revoke_everyone(2000);
        assert!(list.refuses(&identity("rollout://client/ann"), 1999));
        assert!(list.refuses(&identity("rollout://member/c1"), 1999));
        assert!(!list.refuses(&identity("rollout://member/c1"), 2000));
        assert!(!list.refuses(&Identity::insecure(), 0));
        assert!(!list.refuses(&Identity::unenrolled(), 0));
    }

    #[tokio::test]
    async fn a_wait_ends_only_with_a_list_that_refuses_its_certificate() {
        let revocations = Revocations::default();
        let ann = identity("rollout://client/ann");
        let mut refused = revocations.until_refused(&ann, 500);
        let mut list = RevocationList::default();
        list.revoke(Role::Client, "bob", None);
        revocations.set(list.clone());
        let at_once = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(at_once, &mut refused).await.is_err());
        list.revoke(Role::Client, "ann", Some(501));
        revocations.set(list);
        refused.await;
        revocations.until_refused(&ann, 500).await;
    }
}
