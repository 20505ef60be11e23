//! Raises the version that gates commands and formats.
//!
//! *Invariant:* the version is raised only to one that every member currently says that it supports, and is never
//! lowered. A member that does not answer counts as supporting nothing, because the build that it will run when it
//! returns is unknown.
//! Absent: to which version a cluster can be raised, and with which a new one starts; see `cluster_version`. The gates:
//! the ledger refuses operations of a later version, and a member stops if its build does not know the cluster's
//! version.

use super::check_every_namespace;
use super::cluster::ClusterService;
use crate::leader::cluster_version::{supported, target};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::proposer::LogPosition;
use crate::leader::reject;
use crate::observe::log_position;
use rollout_ledger::{Body, Ledger};
use rollout_proto::{Identity, RpcError, v1};
use rollout_raft::MemberRecord;

impl ClusterService {
    pub(super) async fn upgrade(
        &self,
        identity: &Identity,
        r: v1::UpgradeClusterRequest,
    ) -> Result<v1::UpgradeClusterResponse, RpcError> {
        check_every_namespace(identity)?;
        let shared = &self.0;
        let leader = shared.reading().await?;
        // If the version is already there, the answer is as of this read.
        let before = shared.read_ledger(Ledger::version);
        let members = supported(shared.node.supported_versions().await)?;
        let target = target(&members, r.version, before)?;
        if target > before && !r.dry_run {
            tracing::info!(by = %identity, before, target, "raising the cluster's version");
            for (member, (version_min, version_max)) in &members {
                if (member.version_min, member.version_max) == (*version_min, *version_max) {
                    continue;
                }
                let (version_min, version_max) = (*version_min, *version_max);
                let record = MemberRecord { version_min, version_max, ..member.clone() };
                let changed = shared.node.update_member(record).await;
                changed.map_err(|error| reject::membership(&error))?;
            }
            let raised = leader.proposer.command(Body::SetVersion(target));
            let (index, _) = shared.proposed(raised).await?;
            log_position::applied(leader.epoch, LogPosition { index, position: 0 });
        }
        let version = match r.dry_run {
            true => target,
            // Another request may have raised it further meanwhile.
            false => shared.node.ledger(Ledger::version).max(target),
        };
        let members = members.into_iter().map(|(member, (version_min, version_max))| {
            v1::MemberVersions { name: member.name, version_min, version_max }
        });
        let header = Some(shared.header());
        let members = members.collect();
        Ok(v1::UpgradeClusterResponse { header, before, version, members })
    }
}
