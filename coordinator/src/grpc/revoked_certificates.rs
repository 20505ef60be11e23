//! The revoked certificates that this member refuses: a copy of the ledger's list, in the form that handshakes use.
//!
//! *Invariant:* a revocation that this member has applied is in force within [`LOOK_EVERY`]. A member without contact
//! to the leader cannot know of newer revocations, so it lets only administrators and members read its state
//! ([`check_contact`]). Only the leader issues certificates.
//!
//! Absent: refusing and closing connections, which `rollout-proto` does where connections are made.

use crate::grpc::Shared;
use rollout_ledger::{Revocation, Revoked};
use rollout_proto::{ErrorCode, Outcome, RevocationList, Revocations, Role, RpcError};
use rollout_raft::Node;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often this member checks whether its ledger's list has changed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Keeps the list in force equal to the ledger's, for as long as it runs.
pub(crate) async fn follow(node: Node, revocations: Revocations) {
    let mut current = None;
    loop {
        refresh(&node, &revocations, &mut current);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

type Listed = Arc<BTreeMap<Revoked, Revocation>>;

/// Puts the ledger's list into force unless it is `current`.
pub(crate) fn refresh(node: &Node, revocations: &Revocations, current: &mut Option<Listed>) {
    let Some(listed) = node.with_ledger(|ledger| ledger.revocations().clone()) else { return };
    if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &listed)) {
        return;
    }
    revocations.set(in_force(&listed));
    *current = Some(listed);
}

pub(crate) fn in_force(listed: &BTreeMap<Revoked, Revocation>) -> RevocationList {
    let mut list = RevocationList::default();
    for (whose, revocation) in listed {
        match whose {
            Revoked::Everyone => {
                list.revoke_everyone(revocation.issued_before_s.unwrap_or(u64::MAX))
            }
            Revoked::Identity(identity) => match parse(identity) {
                Some((role, name)) => list.revoke(role, name, revocation.issued_before_s),
                // A role of a later version: no certificate with that role is accepted here.
                None => tracing::warn!(
                    identity,
                    "a revocation names a role that this member does not know"
                ),
            },
        }
    }
    list
}

/// The role and the name in `role/name`.
pub(crate) fn parse(identity: &str) -> Option<(Role, &str)> {
    let (role, name) = identity.split_once('/')?;
    Some((role.parse().ok()?, name))
}

/// Refuses a request that needs the newest revocations if this member has not heard from its leader lately, or lacks
/// entries that were committed before that.
pub(crate) fn check_contact(shared: &Shared) -> Result<(), RpcError> {
    if shared.node.lease_valid() || shared.node.keeps_up() {
        return Ok(());
    }
    let message = "this member has not heard of a leader lately, or has not received what the leader committed, and cannot \
                   know which certificates are revoked";
    let error = RpcError::new(ErrorCode::NoLeader, message).with_outcome(Outcome::NotApplied);
    Err(error.with_members(shared.members()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::Identity;

    #[test]
    fn the_ledgers_list_is_put_into_force_as_it_is() {
        let revocation = |issued_before_s| Revocation {
            issued_before_s,
            reason: String::new(),
            made_wall_ms: 0,
        };
        let listed = BTreeMap::from([
            (Revoked::Everyone, revocation(Some(100))),
            (Revoked::Identity("worker/gpu-1".into()), revocation(None)),
            (Revoked::Identity("client/ann".into()), revocation(Some(200))),
            (Revoked::Identity("herald/of-a-later-version".into()), revocation(None)),
        ]);
        let list = in_force(&listed);
        let refuses = |uri, since| list.refuses(&Identity::from_uri(uri).unwrap(), since);
        assert!(refuses("rollout://worker/gpu-1", 5000));
        assert!(refuses("rollout://client/ann", 199) && !refuses("rollout://client/ann", 200));
        assert!(refuses("rollout://admin/root", 99) && !refuses("rollout://admin/root", 100));
    }
}
