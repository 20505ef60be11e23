//! Owns: a member's report of its own consensus, for operators and metrics.
//!
//! Invariant: reading it takes no part in consensus and waits for nothing.
//! Absent: decisions; none may be based on these numbers.

use std::sync::atomic::Ordering;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use rollout_storage::LogStats;

use crate::consensus::rtt::RoundTrips;
use crate::consensus::running::Running;

/// The present role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It belongs to no cluster yet.
    Waiting,
    /// It receives the log and has no vote.
    Learner,
    /// It follows a leader.
    Follower,
    /// It asks for votes.
    Candidate,
    Leader,
    /// Consensus has ended.
    Stopped,
}

/// How far a peer is, as its leader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    pub id: u64,
    pub name: String,
    /// The last index known to be in its log; `None` while unknown.
    pub matched: Option<u64>,
}

/// A member's view of its own consensus.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub role: Role,
    /// The highest term it has seen.
    pub term: u64,
    /// The last index in its log.
    pub last_log: Option<u64>,
    /// The last index that it knows to be committed.
    pub committed: Option<u64>,
    /// The last index that its ledger includes.
    pub applied: Option<u64>,
    /// Entries that are committed, according to its leader, and that its ledger does not include; `None` until a
    /// leader has reported since its start.
    pub lacks: Option<u64>,
    /// The last index that its image on disk includes.
    pub image_index: Option<u64>,
    /// The last index in its latest snapshot.
    pub snapshot_index: Option<u64>,
    /// The last index removed from its log.
    pub purged: Option<u64>,
    /// Snapshots of other members installed since the start: it was too far behind for the log.
    pub snapshots_installed: u64,
    /// Bytes of its log, to within a MiB.
    pub log_bytes: u64,
    /// Bytes of its image and snapshot on disk, as last measured; files that both share count twice.
    pub image_bytes: u64,
    /// Bytes of records written to the image since the start.
    pub image_written_bytes: u64,
    /// Bytes in memory that log and image wait to write to table files.
    pub write_buffer_bytes: u64,
    /// Bytes appended to the log since the start.
    pub log_appended_bytes: u64,
    /// fsyncs completed since the start.
    pub fsyncs: u64,
    /// Median time of an fsync, in microseconds.
    pub fsync_p50_us: u64,
    /// 99th percentile of the time of an fsync, in microseconds.
    pub fsync_p99_us: u64,
    /// Milliseconds that the running fsync has taken so far.
    pub fsync_in_flight_ms: Option<u64>,
    /// The other members; empty if this member does not lead.
    pub peers: Vec<PeerStatus>,
    /// To the other members that answered lately, as this member measured them.
    pub round_trips: Vec<RoundTrips>,
}

impl NodeStatus {
    /// A member that belongs to no cluster.
    pub(crate) fn waiting() -> Self {
        Self {
            role: Role::Waiting,
            term: 0,
            last_log: None,
            committed: None,
            applied: None,
            lacks: None,
            image_index: None,
            snapshot_index: None,
            purged: None,
            snapshots_installed: 0,
            log_bytes: 0,
            image_bytes: 0,
            image_written_bytes: 0,
            write_buffer_bytes: 0,
            log_appended_bytes: 0,
            fsyncs: 0,
            fsync_p50_us: 0,
            fsync_p99_us: 0,
            fsync_in_flight_ms: None,
            peers: Vec::new(),
            round_trips: Vec::new(),
        }
    }

    pub(crate) fn of(running: &Running) -> Self {
        // A copy: a borrow of the metrics blocks consensus, and the code below waits for locks of the stores. Taken first, so
        // that entries applied meanwhile do not count as lacking.
        let metrics = running.raft.metrics().borrow_watched().clone();
        let stats: LogStats = running.store.log().stats();
        let role = match metrics.state {
            _ if metrics.running_state.is_err() => Role::Stopped,
            ServerState::Learner => Role::Learner,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Leader => Role::Leader,
            ServerState::Shutdown => Role::Stopped,
        };
        let me = running.context.me;
        let peers = metrics.replication.iter().flatten().filter(|(id, _)| **id != me);
        let named = |id: &u64| {
            metrics
                .membership_config
                .get_node(id)
                .map_or_else(String::new, |member| member.name.clone())
        };
        let applied = running.machine.read(|state| state.applied.map(|id| id.index()));
        let committed = metrics.cluster_committed.map(|id| id.index());
        Self {
            role,
            term: metrics.current_term,
            last_log: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index()),
            applied,
            lacks: committed.map(|committed| committed.saturating_sub(applied.unwrap_or(0))),
            image_index: running.machine.image_index(),
            snapshot_index: metrics.snapshot.map(|id| id.index()),
            purged: metrics.purged.map(|id| id.index()),
            snapshots_installed: running.machine.installed(),
            log_bytes: running.store.meter().bytes(),
            image_bytes: running.image_bytes.load(Ordering::Relaxed),
            image_written_bytes: running.machine.image_written(),
            write_buffer_bytes: running.store.log().write_buffer_bytes()
                + running.machine.write_buffer_bytes(),
            log_appended_bytes: stats.appended_bytes,
            fsyncs: stats.fsyncs,
            fsync_p50_us: stats.fsync_us.p50,
            fsync_p99_us: stats.fsync_us.p99,
            fsync_in_flight_ms: stats
                .in_flight_since
                .map(|since| since.elapsed().as_millis() as u64),
            peers: peers
                .map(|(id, matched)| PeerStatus {
                    id: *id,
                    name: named(id),
                    matched: matched.map(|id| id.index()),
                })
                .collect(),
            round_trips: running.round_trips.of(|id| named(&id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_member::{member, until};

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn consensus_goes_on_while_a_status_waits_for_a_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let (node, record) = member(dir.path(), "a").await;
        node.bootstrap(vec![record]).await.expect("a cluster");
        until("it leads", || node.lease_valid()).await;
        let running = node.running().expect("a member");
        let (held, hold) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel();
        let holds = running.clone();
        let holder = std::thread::spawn(move || {
            let guard = holds.round_trips.hold();
            held.send(()).expect("the test waits");
            // Dropped silently if the test fails.
            drop((released.recv(), guard));
        });
        hold.recv().expect("it holds the lock");
        let asks = running.clone();
        let asker = std::thread::spawn(move || NodeStatus::of(&asks));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!asker.is_finished(), "it waits for the lock");
        // Each message to consensus has it publish its metrics.
        let leads = node.clone();
        let reads = tokio::spawn(async move {
            for _ in 0..5 {
                leads.read_index().await.expect("it leads");
            }
        });
        let reads = tokio::time::timeout(Duration::from_secs(10), reads).await;
        release.send(()).expect("it holds the lock");
        holder.join().expect("it held the lock");
        assert_eq!(asker.join().expect("an answer").role, Role::Leader);
        reads.expect("consensus stood still").expect("it reads");
        node.stop().await;
    }
}
