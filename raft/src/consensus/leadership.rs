//! Owns: which member leads, as far as this member knows, and the members' addresses.
//!
//! Invariant: `Leader` is reported only for a vote that a quorum granted to this member.
//! Absent: permission to dispatch. That takes a barrier and an open epoch; see [`crate::Node::barrier`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;

use crate::consensus::running::Running;
use crate::fatal::stop_process;
use crate::member::MemberRecord;

/// The leader, as far as this member knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// This member was elected in `term`. It may have been deposed since, without knowing.
    Leader { term: u64 },
    /// Another member leads, or the leader is unknown.
    Follower {
        /// The leader, if known.
        leader: Option<MemberRecord>,
        /// The highest term seen.
        term: u64,
    },
    /// Consensus has ended in this process.
    Stopped,
}

/// Follows openraft's metrics until consensus ends. Ends the process if it ended by itself.
pub(crate) async fn watch(running: Arc<Running>, sender: watch::Sender<Leadership>) {
    let mut metrics = running.raft.metrics();
    let mut listed = None;
    loop {
        let (now, ended) = {
            let metrics = metrics.borrow_and_update();
            let members = &metrics.membership_config;
            if listed != *members.log_id() {
                listed = *members.log_id();
                *running.context.member_records.write() =
                    members.nodes().map(|(id, member)| (*id, member.clone())).collect();
            }
            running.progress.lags_for(metrics.cluster_committed, metrics.last_applied);
            (current(&running, &metrics), metrics.running_state.clone().err())
        };
        if let Some(fatal) = ended {
            sender.send_replace(Leadership::Stopped);
            if !running.closing.load(Ordering::Acquire) {
                stop_process(&format!("consensus has ended: {fatal}"));
            }
            return;
        }
        sender.send_if_modified(|published| {
            let changed = *published != now;
            if changed {
                tracing::info!(leadership = ?now, "leadership changed");
                *published = now;
            }
            changed
        });
        if metrics.changed().await.is_err() {
            sender.send_replace(Leadership::Stopped);
            if !running.closing.load(Ordering::Acquire) {
                stop_process("consensus has ended without a reason");
            }
            return;
        }
    }
}

fn current(running: &Running, metrics: &openraft::RaftMetrics<crate::types::Types>) -> Leadership {
    let vote = &metrics.vote;
    if metrics.state.is_leader()
        && vote.is_committed()
        && vote.leader_id().voted_for == running.context.me
        && metrics.current_leader == Some(running.context.me)
    {
        return Leadership::Leader { term: vote.leader_id().term };
    }
    let leader = metrics
        .current_leader
        .filter(|id| *id != running.context.me)
        .and_then(|id| metrics.membership_config.get_node(&id).cloned());
    Leadership::Follower { leader, term: metrics.current_term }
}
