//! Owns: the early election after a leader's process died.
//!
//! Invariant: it only ever asks for a pre-vote, after the leader's lease has expired here. The followers' leases
//! refuse the pre-vote while a quorum still hears the leader, so a wrong guess changes nothing.
//! Absent: the ordinary election timeout. openraft keeps it, and it covers every case that this one misses.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::consensus::running::Running;

/// Margin added to the lease: openraft counts the lease from when it handled the last heartbeat, a little later than
/// its arrival.
const LEASE_MARGIN: Duration = Duration::from_millis(8);

/// Attempts after one loss. Then the ordinary timeout takes over.
const ATTEMPTS: u32 = 8;

/// How much later each further follower starts, so that two do not split the vote: the pre-vote of the next one must
/// arrive after the first has begun to ask for votes, which is a round trip after its start.
fn turn(running: &Running) -> Duration {
    running.config.heartbeat() * 9 / 10
}

/// Acts on members that lost their last stream, one at a time.
pub(crate) async fn watch(running: Arc<Running>, mut lost: mpsc::Receiver<u64>) {
    while let Some(member) = lost.recv().await {
        if follows(&running, member) {
            tracing::info!(leader = member, "the leader's connections broke");
            succeed(&running, member).await;
        }
    }
}

/// True if this member is a voter that follows `leader`.
fn follows(running: &Running, leader: u64) -> bool {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let me = running.context.me;
    leader != me
        && metrics.current_leader == Some(leader)
        && metrics.membership_config.voter_ids().any(|id| id == me)
}

/// How many of the other voters that might succeed `leader` go before this member.
fn rank(running: &Running, leader: u64) -> u32 {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let before = metrics
        .membership_config
        .voter_ids()
        .filter(|id| *id != leader && *id < running.context.me)
        .count();
    u32::try_from(before).unwrap_or(u32::MAX)
}

/// True if another member leads by now.
fn succeeded(running: &Running, leader: u64) -> bool {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.current_leader.is_some_and(|current| current != leader)
}

async fn succeed(running: &Arc<Running>, leader: u64) {
    let lease = running.config.lease() + LEASE_MARGIN;
    let turn = turn(running);
    let wait = turn * rank(running, leader).min(ATTEMPTS);
    let heard_at = running.presence.of(leader).0.map_or_else(Instant::now, Instant::from_std);
    // Open connections before asking for votes.
    let warm = running.context.dialer.warm(running.peers_except(leader));
    let kept = running.promise.kept_until().map_or(heard_at, Instant::from_std);
    tokio::join!(warm, tokio::time::sleep_until(kept.max(heard_at + lease + wait)));
    for _ in 0..ATTEMPTS {
        if succeeded(running, leader) {
            return;
        }
        let (heard_since, connected) = running.presence.of(leader);
        if connected || heard_since.map(Instant::from_std) > Some(heard_at) {
            tracing::info!(leader, "the leader is back");
            return;
        }
        if running.raft.trigger().elect(true).await.is_err() {
            return;
        }
        tokio::time::sleep(turn * 2).await;
    }
}
