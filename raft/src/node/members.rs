//! Owns: the members, which of them leads, and an operator's changes of both.
//!
//! Invariant: only a leader changes the members.
//! Absent: how a change is made; see `membership` and `transfer`.

use std::time::Instant;

use openraft::async_runtime::WatchReceiver;

use super::Node;
use crate::consensus::quorum::since_quorum;
use crate::consensus::reachability::{self, MemberReachability, Reachability};
use crate::consensus::transfer;
use crate::errors::ClusterError;
use crate::member::MemberRecord;
use crate::membership::{self, cluster};
use crate::ops::successor;
use crate::peer::handovers::{Handover, LeaderLeft};

impl Node {
    /// Lists an empty, waiting member as joining, with the versions that it reports, and returns its id. It replaces
    /// the voter `replace` if one is named, which may have the same name: its disk was lost. This member must lead.
    /// Whichever member leads later completes what [`MemberRecord::joins`] says; a repeated call changes nothing.
    pub async fn add_member(
        &self,
        member: MemberRecord,
        replace: Option<&str>,
    ) -> Result<u64, ClusterError> {
        membership::add_member(&*self.leading()?, member, replace).await
    }

    /// Gives a learner a vote once it has caught up. This member must lead.
    pub async fn promote_member(&self, name: &str) -> Result<(), ClusterError> {
        membership::promote_member(&*self.leading()?, name).await
    }

    /// Records new addresses, zone or versions of the member with the record's id, whose name stays. This member must
    /// lead.
    pub async fn update_member(&self, member: MemberRecord) -> Result<(), ClusterError> {
        membership::update_member(&*self.leading()?, member).await
    }

    /// Which cluster versions each member supports, as it reports now.
    pub async fn supported_versions(
        &self,
    ) -> Vec<(MemberRecord, Result<(u32, u32), ClusterError>)> {
        let (own, dialer) = (&self.inner.config, &*self.inner.dialer);
        // Compare ids: its replacement may have the same name.
        let me = self.identity().map(|identity| identity.member_id);
        let statuses = self.members().into_iter().map(|(member, _)| async move {
            if Some(member.id) == me {
                return (member, Ok(own.versions));
            }
            let answer = cluster::hello(dialer, &member).await;
            (member, answer.map(|answer| (answer.version_min, answer.version_max)))
        });
        futures::future::join_all(statuses).await
    }

    /// Removes a member from the cluster. This member must lead; a leader that names itself hands leadership over,
    /// and returns the member to ask instead. Once begun, the removal continues to its end, even if the caller goes
    /// away.
    pub async fn remove_member(&self, name: &str) -> Result<(), ClusterError> {
        let (running, name) = (self.leading()?, name.to_owned());
        let removing = async move { membership::remove_member(&running, &name).await };
        let ended = |error: tokio::task::JoinError| ClusterError::Unfinished(error.to_string());
        self.inner.runtime.handle().spawn(removing).await.map_err(ended)?
    }

    /// The leader if this member has heard it lately. If this member leads, it returns itself if it has heard a
    /// quorum lately. Returns `None` at a member that is cut off or left over, for which [`leader`](Self::leader)
    /// names the last leader forever, and at a removed member, to which no member sends.
    ///
    /// Lately means within four leases and two seconds: longer than two elections, and longer than a busy machine
    /// stalls. A leader with a valid lease is always heard.
    pub fn heard_leader(&self) -> Option<MemberRecord> {
        let running = self.running()?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        let silence = if leader == running.context.me {
            since_quorum(&metrics)
        } else {
            running.presence.of(leader).0.map(|heard| heard.elapsed())
        };
        silence.filter(|silence| *silence < running.config.silence_max())?;
        metrics.membership_config.get_node(&leader).cloned()
    }

    /// Whether this member knows what was committed until lately: it has heard a leader, and has applied what it
    /// heard to be committed. For lately, see [`heard_leader`](Self::heard_leader).
    pub fn keeps_up(&self) -> bool {
        let Some(running) = self.running() else { return false };
        let lag = {
            let metrics = running.raft.metrics();
            let metrics = metrics.borrow_watched();
            running.progress.lags_for(metrics.cluster_committed, metrics.last_applied)
        };
        self.heard_leader().is_some() && lag < running.config.silence_max()
    }

    /// The members, with whether each has a vote, in the order of their ids.
    pub fn members(&self) -> Vec<(MemberRecord, bool)> {
        let Some(running) = self.running() else { return Vec::new() };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let voters: Vec<u64> = config.voter_ids().collect();
        config.nodes().map(|(id, member)| (member.clone(), voters.contains(id))).collect()
    }

    /// The log index of the list of members; it grows with every change.
    pub fn membership_index(&self) -> u64 {
        let Some(running) = self.running() else { return 0 };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().map_or(0, |id| id.index())
    }

    /// The member to ask for a leader's operations: the last known leader, which may be this member.
    /// [`heard_leader`](Self::heard_leader) says whether it still leads.
    pub fn leader(&self) -> Option<MemberRecord> {
        let running = self.running()?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        metrics.membership_config.get_node(&id).cloned()
    }

    /// Hands leadership to the named member, or to the most advanced one, and waits until this member no longer
    /// leads. Refused if the successor does not answer or does not have nearly all of the log within a second: writes
    /// would wait for it.
    pub async fn transfer_leader(&self, to: Option<&str>) -> Result<(), ClusterError> {
        transfer::transfer_leader(&*self.leading()?, to, Handover::Requested).await
    }

    /// The same to the most advanced one, because this member stops.
    pub async fn leave_to_stop(&self) -> Result<(), ClusterError> {
        transfer::transfer_leader(&*self.leading()?, None, Handover::Stopping).await
    }

    /// Tells the other members that this process stops, within half a second. Call it after
    /// [`leave_to_stop`](Self::leave_to_stop), so that the next leader hears of it.
    pub async fn announce_stop(&self) {
        let Some(running) = self.running() else { return };
        reachability::announce_stop(&running).await;
    }

    /// The reachability of the processes of all members, this one's first. Empty while it belongs to no cluster.
    pub fn reachability(&self) -> Vec<MemberReachability> {
        let Some(running) = self.running() else { return Vec::new() };
        let (id, name) = (running.context.me, running.config.name.clone());
        let (started_ms, reachability, now) =
            (running.started_ms, Reachability::Reachable, Instant::now());
        let own = MemberReachability { id, name, started_ms, as_of: Some(now), reachability };
        let others = running.peers_except(id);
        let others = others.iter().map(|member| running.reachability.of(member, now));
        std::iter::once(own).chain(others).collect()
    }

    /// How the leader of `term`, with that name, stopped leading. Ask at the beginning of the next term.
    pub fn leader_left(&self, term: u64, name: &str) -> LeaderLeft {
        let Some(running) = self.running() else { return LeaderLeft::Silent };
        if let Some(why) = running.context.handovers.of(term, running.config.silence_max()) {
            return LeaderLeft::HandedOver(why);
        }
        let members = running.peers_except(running.context.me);
        let former = members.iter().find(|member| member.name == name);
        match former.is_some_and(|member| running.presence.of(member.id).1) {
            true => LeaderLeft::Silent,
            false => LeaderLeft::ConnectionsLost,
        }
    }

    /// Hands leadership to the voter that keeps up and whose disk has the most room, and waits until this member no
    /// longer leads; false if all disks are full.
    pub async fn leave_full_disk(&self) -> Result<bool, ClusterError> {
        successor::to_one_with_room(&*self.leading()?).await
    }
}
