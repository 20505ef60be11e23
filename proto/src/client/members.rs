//! What a client knows of the cluster: its id, the highest epoch seen, the members, the leader.
//!
//! *Invariant:* the cluster id never changes once it is known, and the epoch, the version of the member list and the
//! leader's term never decrease.
//!
//! Absent: calls to members (`leader_calls`), and the file on disk (`members_file`).

use crate::endpoint::{DialMap, Endpoint};
use crate::error::{ErrorCode, RpcError};
use crate::stamp::Stamp;
use crate::v1;

/// A member, or a configured address without a known name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemberRef {
    /// The member's name; empty while unknown.
    pub name: String,
    /// Its client address, or the configured one.
    pub addr: String,
}

impl From<&Endpoint> for MemberRef {
    fn from(endpoint: &Endpoint) -> Self {
        MemberRef {
            name: endpoint.name.clone().unwrap_or_default(),
            addr: endpoint.addr.to_string(),
        }
    }
}

impl std::fmt::Display for MemberRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.is_empty() {
            true => f.write_str(&self.addr),
            false => write!(f, "{} ({})", self.name, self.addr),
        }
    }
}

/// Members beyond this number are not kept; no cluster's list is longer.
const MEMBERS_MAX: usize = 64;

/// What the client knows of the cluster, and the numbers that tell newer knowledge from older.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClusterView {
    /// Empty until the first header.
    pub(super) cluster_id: String,
    /// The highest seen.
    pub(super) coord_epoch: u64,
    /// Version of `members`.
    pub(super) version: u64,
    /// The newest list seen.
    pub(super) members: Vec<v1::MemberInfo>,
    /// The leader, when the client last asked.
    pub(super) leader: Option<Endpoint>,
    /// The latest leader, whether it still leads or not.
    pub(super) last_leader: Option<Endpoint>,
    /// The highest term in which a member claimed to lead.
    pub(super) leader_term: u64,
    /// Adds it to every request.
    pub(super) stamp: Stamp,
    /// This process has not called the cluster yet: an earlier one saved the state.
    pub(super) unused: bool,
    /// While unused, replace what is known of a cluster if one that was restored from it answers.
    pub(super) follow_restored: bool,
}

impl ClusterView {
    /// Checks an answer by its header and learns from it. `Ok(true)`: something is new and should be saved.
    pub(super) fn judge(&mut self, header: &v1::ClusterHeader) -> Result<bool, RpcError> {
        self.check_cluster(header)?;
        if !header.cluster_id.is_empty() && header.coord_epoch < self.coord_epoch {
            let (epoch, seen) = (header.coord_epoch, self.coord_epoch);
            let message = format!("answer of epoch {epoch}, but epoch {seen} was seen");
            return Err(RpcError::new(ErrorCode::StaleEpoch, message).with_epoch(seen));
        }
        Ok(self.learn(header))
    }

    /// Records this member as the leader.
    pub(super) fn set_leader(&mut self, leader: Endpoint) {
        self.last_leader = Some(leader.clone());
        self.leader = Some(leader);
    }

    /// Refuses a header of another cluster.
    pub(super) fn check_cluster(&mut self, header: &v1::ClusterHeader) -> Result<(), RpcError> {
        let (header_id, known_id) = (&header.cluster_id, &self.cluster_id);
        if header_id.is_empty() || known_id.is_empty() || header_id == known_id {
            return Ok(());
        }
        if header.restored_from.contains(known_id) {
            if self.unused && self.follow_restored {
                self.reset();
                return Ok(());
            }
            return Err(restored(header_id, known_id));
        }
        let message =
            format!("it is a member of cluster {header_id}, this client knows {known_id}");
        Err(RpcError::new(ErrorCode::OtherCluster, message))
    }

    /// Resets to an empty state, also for other holders of the stamp.
    fn reset(&mut self) {
        self.stamp.clear();
        let (stamp, follow_restored) = (self.stamp.clone(), self.follow_restored);
        *self = Self { stamp, follow_restored, ..Self::default() };
    }

    /// Learns what is newer. The header belongs to this cluster, but may come from a follower that lags.
    pub(super) fn learn(&mut self, header: &v1::ClusterHeader) -> bool {
        if header.cluster_id.is_empty() {
            return false;
        }
        self.unused = false;
        let mut new = false;
        if self.cluster_id.is_empty() {
            self.cluster_id = header.cluster_id.clone();
            new = true;
        }
        if header.coord_epoch > self.coord_epoch {
            self.coord_epoch = header.coord_epoch;
            self.stamp.update(&self.cluster_id, self.coord_epoch);
            new = true;
        }
        if let Some(list) = &header.members
            && !list.members.is_empty()
            && list.members.len() <= MEMBERS_MAX
            && (list.version > self.version || self.members.is_empty())
        {
            self.version = list.version;
            self.members = list.members.clone();
            new = true;
        }
        new
    }

    /// All endpoints to call: the members, then the seeds that are not members.
    pub(super) fn candidates(&self, seeds: &[Endpoint], dial_map: &DialMap) -> Vec<Endpoint> {
        let named = |m: &v1::MemberInfo| Endpoint::with_name(&m.name, &m.client_addr).ok();
        let mut all: Vec<Endpoint> = self.members.iter().filter_map(named).collect();
        for seed in seeds {
            let same = |known: &Endpoint| {
                known.addr == seed.addr || dial_map.resolve(known) == dial_map.resolve(seed)
            };
            if !all.iter().any(same) {
                all.push(seed.clone());
            }
        }
        all
    }

    /// The endpoint under the member's own name, if the list has it.
    pub(super) fn canonical(&self, endpoint: &Endpoint, name: &str) -> Endpoint {
        let listed = self.members.iter().find(|member| member.name == name);
        let known = listed.and_then(|m| Endpoint::with_name(&m.name, &m.client_addr).ok());
        known.unwrap_or_else(|| endpoint.clone())
    }
}

/// The error for a client that knows a cluster from before it was restored.
fn restored(header_id: &str, known_id: &str) -> RpcError {
    let message = format!(
        "it is a member of cluster {header_id}, which was restored from a snapshot of {known_id}, the one that is \
         known here: sessions, leases and requests of {known_id} are void"
    );
    RpcError::new(ErrorCode::ClusterRestored, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_follows_a_restored_cluster_only_if_it_used_no_other_before() {
        let kept = |unused| {
            let mut view = ClusterView { follow_restored: true, ..ClusterView::default() };
            view.judge(&header("a", 9)).unwrap();
            view.unused = unused;
            view
        };
        let restored = v1::ClusterHeader { restored_from: vec!["a".into()], ..header("b", 1) };
        let refused = kept(false).judge(&restored).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ClusterRestored);
        let mut view = kept(true);
        assert_eq!(view.judge(&restored), Ok(true));
        assert_eq!((view.cluster_id.as_str(), view.coord_epoch), ("b", 1));
        assert_eq!(view.stamp.epoch(), 1, "requests say what is known now");
        let mut stays = ClusterView { follow_restored: false, ..kept(true) };
        assert_eq!(stays.judge(&restored).unwrap_err().code, ErrorCode::ClusterRestored);
    }

    fn header(cluster_id: &str, coord_epoch: u64) -> v1::ClusterHeader {
        v1::ClusterHeader { cluster_id: cluster_id.into(), coord_epoch, ..Default::default() }
    }

    fn member(name: &str, addr: &str) -> v1::MemberInfo {
        v1::MemberInfo { name: name.into(), client_addr: addr.into(), ..Default::default() }
    }

    #[test]
    fn a_lower_epoch_and_another_cluster_are_refused() {
        let mut view = ClusterView::default();
        assert_eq!(view.judge(&header("a", 5)), Ok(true));
        assert_eq!(view.judge(&header("a", 5)), Ok(false));
        assert_eq!(view.judge(&header("a", 4)).unwrap_err().code, ErrorCode::StaleEpoch);
        assert_eq!(view.judge(&header("b", 9)).unwrap_err().code, ErrorCode::OtherCluster);
        assert_eq!(view.coord_epoch, 5);
    }

    #[test]
    fn an_older_member_list_replaces_no_newer_one() {
        let list = |version, name: &str| v1::MemberList {
            version,
            members: vec![member(name, "h:1")],
            leader: String::new(),
        };
        let with = |list| v1::ClusterHeader { members: Some(list), ..header("a", 1) };
        let mut view = ClusterView::default();
        view.judge(&with(list(7, "c7"))).unwrap();
        view.judge(&with(list(6, "c6"))).unwrap();
        assert_eq!((view.version, view.members[0].name.as_str()), (7, "c7"));
    }

    #[test]
    fn a_seed_that_is_a_member_is_asked_once() {
        let members = vec![member("c1", "h1:1"), member("c2", "h2:1")];
        let view = ClusterView { members, ..Default::default() };
        let seeds: Vec<_> =
            ["h1:1", "proxy:2", "h9:1"].map(|seed| Endpoint::seed(seed).unwrap()).into();
        let map = "c2=proxy:2".parse().unwrap();
        let shown: Vec<_> =
            view.candidates(&seeds, &map).iter().map(|endpoint| endpoint.to_string()).collect();
        assert_eq!(shown, ["c1 (h1:1)", "c2 (h2:1)", "h9:1"]);
    }
}
