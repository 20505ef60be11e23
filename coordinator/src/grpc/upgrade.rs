//! Raising the version that gates commands and formats.
//!
//! *Invariant:* it is raised to what every member says just now that it supports, and never lowered. A member that does not
//! answer supports nothing: what it runs when it comes back is not known.
//! Absent: the gates. The ledger refuses operations of a later version, and a member stops whose build does not know the
//! cluster's.

use super::check_every_namespace;
use super::cluster::ClusterService;
use crate::ledger_read::ReadLedger;
use crate::placed;
use crate::proposer::Place;
use crate::reject;
use rollout_ledger::Body;
use rollout_proto::{ErrorCode, Identity, Outcome, RpcError, v1};
use rollout_raft::{ClusterError, MemberRecord};

fn refused(why: impl Into<String>) -> RpcError {
    RpcError::new(ErrorCode::VersionRefused, why).with_outcome(Outcome::NotApplied)
}

/// The first and the last version that a member supports.
type Range = (u32, u32);

/// Who supports what, or why that is not known.
fn supported(
    answers: Vec<(MemberRecord, Result<Range, ClusterError>)>,
) -> Result<Vec<(MemberRecord, Range)>, RpcError> {
    let all = answers.into_iter().map(|(member, answer)| match answer {
        Ok(range) => Ok((member, range)),
        Err(error) => Err(refused(format!("{}: {error}", member.name))),
    });
    all.collect()
}

/// The version to go to: what was asked for, or the highest that all support.
fn target(members: &[(MemberRecord, Range)], asked: u32, now: u32) -> Result<u32, RpcError> {
    let highest = members.iter().map(|(_, range)| range.1).min().unwrap_or(now);
    let target = if asked == 0 { highest.max(now) } else { asked };
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

impl ClusterService {
    pub(super) async fn upgrade(
        &self,
        identity: &Identity,
        r: v1::UpgradeClusterRequest,
    ) -> Result<v1::UpgradeClusterResponse, RpcError> {
        check_every_namespace(identity)?;
        let shared = &self.0;
        let leading = shared.reading().await?;
        let now = || shared.node.ledger(rollout_ledger::Ledger::version);
        let before = now();
        let members = supported(shared.node.supported_versions().await)?;
        let target = target(&members, r.version, before)?;
        if target > before && !r.dry_run {
            tracing::info!(by = %identity, before, target, "raise the cluster's version");
            for (member, (version_min, version_max)) in &members {
                if (member.version_min, member.version_max) == (*version_min, *version_max) {
                    continue;
                }
                let (version_min, version_max) = (*version_min, *version_max);
                let record = MemberRecord { version_min, version_max, ..member.clone() };
                let changed = shared.node.update_member(record).await;
                changed.map_err(|error| reject::membership(&error))?;
            }
            let raised = leading.proposer.command(Body::SetVersion(target));
            let (index, _) = shared.proposed(raised).await?;
            placed::applied(leading.epoch, Place { index, position: 0 });
        }
        let version = if r.dry_run { target } else { now() };
        let members = members.into_iter().map(|(member, (version_min, version_max))| {
            v1::MemberVersions { name: member.name, version_min, version_max }
        });
        let header = Some(shared.header());
        let members = members.collect();
        Ok(v1::UpgradeClusterResponse { header, before, version, members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(ranges: &[(u32, u32)]) -> Vec<(MemberRecord, (u32, u32))> {
        let named = |(n, range): (usize, &(u32, u32))| {
            (MemberRecord { name: format!("c{n}"), ..MemberRecord::default() }, *range)
        };
        ranges.iter().enumerate().map(named).collect()
    }

    #[test]
    fn the_version_is_what_all_support_and_never_a_lower_one() {
        let all = members(&[(1, 3), (1, 2), (2, 4)]);
        assert_eq!(target(&all, 0, 1).expect("the highest of all"), 2);
        assert_eq!(target(&all, 2, 2).expect("as it is"), 2);
        let error = target(&all, 3, 1).expect_err("c1 does not");
        assert_eq!(error.code, ErrorCode::VersionRefused);
        assert!(error.message.contains("c1 supports 1 to 2"), "{error}");
        assert!(!error.message.contains("c0"), "{error}");
        assert!(target(&all, 1, 2).expect_err("lower").message.contains("never lowered"));
        // One whose build is too new to run the present version is no reason to raise it.
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
