//! Which version of commands and formats a cluster may have.
//!
//! *Invariant:* the version is one that every member currently says that it supports, and it never decreases. A new
//! cluster starts with the newest such version: no older build has data of it to lose. An existing cluster, also a
//! restored one, keeps its version until an operator raises it, because an older build cannot run after that step.
//! Absent: the gates, which the ledger has. Raising the version: the first leader of a new cluster does that before it
//! opens dispatch, later leaders on request.

use crate::leader::ledger_read::ReadLedger;
use rollout_ledger::Ledger;
use rollout_proto::{ErrorCode, Outcome, RpcError};
use rollout_raft::{ClusterError, MemberRecord, Node};

fn refused(why: impl Into<String>) -> RpcError {
    RpcError::new(ErrorCode::VersionRefused, why).with_outcome(Outcome::NotApplied)
}

/// The first and the last version that a member supports.
pub(crate) type Range = (u32, u32);

/// The versions that each member supports, or why that is unknown.
pub(crate) fn supported(
    answers: Vec<(MemberRecord, Result<Range, ClusterError>)>,
) -> Result<Vec<(MemberRecord, Range)>, RpcError> {
    let all = answers.into_iter().map(|(member, answer)| match answer {
        Ok(range) => Ok((member, range)),
        Err(error) => Err(refused(format!("{}: {error}", member.name))),
    });
    all.collect()
}

/// The target version: the requested one, or the highest that all members support.
pub(crate) fn target(
    members: &[(MemberRecord, Range)],
    requested: u32,
    now: u32,
) -> Result<u32, RpcError> {
    let highest = members.iter().map(|(_, range)| range.1).min().unwrap_or(now);
    let target = if requested == 0 { highest.max(now) } else { requested };
    if target < now {
        let why = format!("the cluster's version is {now}, and is never lowered");
        return Err(refused(why));
    }
    let lacking = members.iter().filter(|(_, range)| !(range.0..=range.1).contains(&target));
    let lacking: Vec<String> = lacking
        .map(|(member, (min, max))| format!("{} supports {min} to {max}", member.name))
        .collect();
    match lacking.is_empty() {
        true => Ok(target),
        false => Err(refused(format!(
            "not every member supports version {target}: {}",
            lacking.join(", ")
        ))),
    }
}

/// The version with which a cluster without history starts: the newest that every member currently says that it
/// supports. `None` if the cluster has that version already, or if not all members have answered. Then it keeps the
/// first version until an operator raises it.
pub(crate) async fn of_new_cluster(node: &Node) -> Option<u32> {
    let now = node.ledger(Ledger::version);
    let members = supported(node.supported_versions().await);
    match members.and_then(|members| target(&members, 0, now)) {
        Ok(newest) => (newest > now).then_some(newest),
        Err(error) => {
            tracing::warn!(%error, version = now, "the new cluster keeps the first version");
            None
        }
    }
}

/// Whether no leader has led this cluster, and it was not restored from another one, whose version is its operator's
/// decision.
pub(crate) fn is_new(ledger: &Ledger) -> bool {
    ledger.epoch().0 == 0 && ledger.ancestors().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs};
    use rollout_ledger::{Body, Command, EntryId};

    #[test]
    fn a_cluster_is_new_until_it_has_a_first_leader_and_a_restored_one_never_is() {
        let mut ledger = Ledger::new([7; 16]);
        assert!(is_new(&ledger));
        assert!(!is_new(&ledger.clone().restored([8; 16], 0)), "its version is that of the other");
        let (epoch, at) = (CoordEpoch(1), LedgerMs(0));
        let open = Command { epoch, at, wall_ms: 0, body: Body::OpenEpoch };
        ledger.apply(EntryId { index: 2, term: 1 }, &open.encode()).expect("it is known");
        assert!(!is_new(&ledger));
    }

    fn members(ranges: &[(u32, u32)]) -> Vec<(MemberRecord, (u32, u32))> {
        let named = |(n, range): (usize, &(u32, u32))| {
            (MemberRecord { name: format!("c{n}"), ..MemberRecord::default() }, *range)
        };
        ranges.iter().enumerate().map(named).collect()
    }

    #[test]
    fn the_version_is_the_highest_that_all_support_and_is_never_lowered() {
        let all = members(&[(1, 3), (1, 2), (2, 4)]);
        assert_eq!(target(&all, 0, 1).expect("the highest of all"), 2);
        assert_eq!(target(&all, 2, 2).expect("as it is"), 2);
        let error = target(&all, 3, 1).expect_err("c1 does not");
        assert_eq!(error.code, ErrorCode::VersionRefused);
        assert!(error.message.contains("c1 supports 1 to 2"), "{error}");
        assert!(!error.message.contains("c0"), "{error}");
        assert!(target(&all, 1, 2).expect_err("lower").message.contains("never lowered"));
        // A member whose build is too new for the current version is no reason to raise it.
        assert!(target(&members(&[(1, 1), (2, 2)]), 0, 1).is_err());
    }

    #[test]
    fn a_member_that_does_not_answer_is_named_and_nothing_is_raised() {
        let silent = ClusterError::Unreachable {
            name: "c2".into(),
            addr: "h:1".into(),
            why: "refused".into(),
        };
        let record = MemberRecord { name: "c2".into(), ..MemberRecord::default() };
        let error = supported(vec![(record, Err(silent))]).expect_err("it may be an old one");
        assert!(error.message.contains("c2") && !error.retryable, "{error}");
    }
}
