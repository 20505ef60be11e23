//! Owns: the list of members as this leader knows it, and the members whose name or address a new one would conflict
//! with.
//!
//! Invariant: nothing here changes them.
//! Absent: which of them answer; see `majority`.

use std::collections::{BTreeMap, BTreeSet};

use openraft::async_runtime::WatchReceiver;

use crate::consensus::running::Running;
use crate::errors::ClusterError;
use crate::member::{Joins, MemberRecord};

/// The members as this leader knows them.
pub(super) struct KnownMembers {
    pub(super) members: BTreeMap<u64, MemberRecord>,
    pub(super) voters: BTreeSet<u64>,
}

impl KnownMembers {
    pub(super) fn of(running: &Running) -> Self {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let voters: BTreeSet<u64> = config.voter_ids().collect();
        Self { members: config.nodes().map(|(id, member)| (*id, member.clone())).collect(), voters }
    }

    pub(super) fn find(&self, name: &str, voter: bool) -> Option<&MemberRecord> {
        let mut of_name = self.members.values().filter(|member| member.name == name);
        of_name.find(|member| self.voters.contains(&member.id) == voter)
    }

    pub(super) fn unknown(&self, name: &str) -> ClusterError {
        let names: BTreeSet<&str> = self.members.values().map(|m| m.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        ClusterError::NoMember(format!(
            "there is no member {name:?}; there are {}",
            names.join(", ")
        ))
    }

    /// The id of the voter to replace, by name.
    pub(super) fn replaced(&self, name: Option<&str>) -> Result<Option<u64>, ClusterError> {
        let Some(name) = name else { return Ok(None) };
        if let Some(old) = self.find(name, true) {
            return Ok(Some(old.id));
        }
        Err(match self.find(name, false) {
            Some(_) => ClusterError::Refused(format!(
                "member {name:?} is a learner, so it has no vote to take over: rolloutctl member remove {name}, then member add"
            )),
            None => self.unknown(name),
        })
    }

    /// The learner that an earlier identical call has listed already. Its supported versions may differ, because it
    /// reports them itself.
    pub(super) fn listed(&self, fresh: &MemberRecord) -> Option<u64> {
        let listed = self.find(&fresh.name, false)?;
        let same = MemberRecord {
            id: fresh.id,
            version_min: fresh.version_min,
            version_max: fresh.version_max,
            adopted: fresh.adopted,
            ..listed.clone()
        };
        (same == *fresh).then_some(listed.id)
    }

    /// Refuses to replace a voter that another member already replaces: the voter leaves once, and both would have a
    /// vote.
    fn check_place(&self, replaced: Option<u64>) -> Result<(), ClusterError> {
        let Some(old) = replaced.and_then(|id| self.members.get(&id)) else { return Ok(()) };
        let takes = Joins::Voter { replaces: Some(old.id) };
        let mut learners = self.members.values().filter(|m| !self.voters.contains(&m.id));
        learners.find(|member| member.joins == takes).map_or(Ok(()), |first| {
            Err(ClusterError::Refused(format!(
                "member {:?} is already replacing {:?}; wait for it, or {}",
                first.name,
                old.name,
                self.take_out(&first.name)
            )))
        })
    }

    /// How to remove a member that does not have its vote yet: a removal by name removes all members of that name.
    pub(super) fn take_out(&self, name: &str) -> String {
        match self.ids(name).len() {
            0 | 1 => format!("remove it first: rolloutctl member remove {name}"),
            _ => format!(
                "both have this name; remove and re-add: rolloutctl member remove {name}, then member add"
            ),
        }
    }

    /// Refuses a member that would be mistaken for another.
    pub(super) fn check_new(
        &self,
        fresh: &MemberRecord,
        replaced: Option<u64>,
    ) -> Result<(), ClusterError> {
        self.check_place(replaced)?;
        for member in self.members.values().filter(|member| Some(member.id) != replaced) {
            if member.name == fresh.name {
                let what = if self.voters.contains(&member.id) { "a voter" } else { "a learner" };
                return Err(ClusterError::Refused(format!(
                    "there is a member {:?} already, {what} at {}",
                    member.name, member.peer_addr
                )));
            }
            if member.peer_addr == fresh.peer_addr {
                return Err(ClusterError::Refused(format!(
                    "member {:?} has the peer address {}",
                    member.name, member.peer_addr
                )));
            }
        }
        Ok(())
    }

    /// The ids of the members of that name: two if one replaces the other.
    pub(super) fn ids(&self, name: &str) -> BTreeSet<u64> {
        self.members.values().filter(|member| member.name == name).map(|member| member.id).collect()
    }

    /// What to do before the last voter leaves.
    pub(super) fn another_voter(&self, gone: &BTreeSet<u64>) -> String {
        let mut rest = self.members.values().filter(|member| !gone.contains(&member.id));
        match rest.next() {
            Some(learner) => {
                format!("give another its vote first: rolloutctl member promote {}", learner.name)
            }
            None => "add another member first: rolloutctl member add --help".to_owned(),
        }
    }

    pub(super) fn names(&self, ids: &BTreeSet<u64>) -> String {
        let names = ids.iter().filter_map(|id| self.members.get(id).map(|m| m.name.as_str()));
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_last_voter_leaves_another_gets_a_vote() {
        let member = |id: u64, name: &str| {
            (id, MemberRecord { id, name: name.into(), ..MemberRecord::default() })
        };
        let gone = BTreeSet::from([1]);
        let members = BTreeMap::from([member(1, "a")]);
        let alone = KnownMembers { members, voters: gone.clone() };
        assert_eq!(
            alone.another_voter(&gone),
            "add another member first: rolloutctl member add --help"
        );
        let members = BTreeMap::from([member(1, "a"), member(4, "d")]);
        let with_learner = KnownMembers { members, voters: gone.clone() };
        let promote = "give another its vote first: rolloutctl member promote d";
        assert_eq!(with_learner.another_voter(&gone), promote);
    }
}
