//! The header of answers, which describes the cluster as this member knows it.
//!
//! Absent: the header of a member that does not lead, which names what the ledger has (`grpc::Shared`).

use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_proto::v1;
use rollout_raft::{ClusterId, MemberRecord, Node};

/// The epoch that an answer names.
pub(crate) fn answer_epoch(node: &Node, epoch: u64) -> u64 {
    if seeded(Bug::EpochFromMetrics) { node.status().term } else { epoch }
}

/// The cluster's id; empty while this member belongs to none.
pub(crate) fn cluster_id(node: &Node) -> String {
    node.identity().map(|i| i.cluster_id.to_string()).unwrap_or_default()
}

/// The clusters from which this one was restored.
pub(crate) fn restored_from(node: &Node) -> Vec<String> {
    node.ledger(|l| l.ancestors().iter().map(|id| ClusterId(*id).to_string()).collect())
}

/// The members as this one knows them.
pub(crate) fn members(node: &Node) -> v1::MemberList {
    let members = node.members().into_iter().map(|(m, voter)| member_out(m, voter));
    v1::MemberList {
        members: members.collect(),
        version: node.membership_index(),
        leader: node.leader().map(|l| l.name).unwrap_or_default(),
    }
}

pub(crate) fn member_out(member: MemberRecord, voter: bool) -> v1::MemberInfo {
    v1::MemberInfo {
        id: member.id,
        name: member.name,
        peer_addr: member.peer_addr,
        client_addr: member.client_addr,
        zone: member.zone,
        version_min: member.version_min,
        version_max: member.version_max,
        voter,
    }
}

impl LeaderState {
    /// The short header of the hot path: no members.
    pub(crate) fn header(&self) -> v1::ClusterHeader {
        v1::ClusterHeader {
            cluster_id: self.cluster_id.clone(),
            coord_epoch: answer_epoch(&self.node, self.epoch),
            applied_index: 0,
            members: None,
            restored_from: Vec::new(),
        }
    }

    /// The header of handshakes and heartbeats.
    pub(crate) fn full_header(&self) -> v1::ClusterHeader {
        v1::ClusterHeader {
            members: Some(members(&self.node)),
            restored_from: restored_from(&self.node),
            ..self.header()
        }
    }
}
