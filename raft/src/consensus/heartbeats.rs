//! Owns: when a leader sends heartbeats.
//!
//! Invariant: a heartbeat is due every `heartbeat_ms`, however long the answers to earlier ones take. openraft has at
//! most one heartbeat in flight to a member, so after a slow answer the next heartbeat goes out at once.
//! Absent: sending; openraft does that. By itself it would send one heartbeat per answer limit, too few to hold a lease
//! at long round trips.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use tokio::time::MissedTickBehavior;

use crate::consensus::running::Running;

/// Triggers heartbeats while this member leads, until consensus ends. A leader that hands leadership over sends none:
/// openraft ensures that.
pub(crate) async fn send(running: Arc<Running>) {
    let mut due = tokio::time::interval(running.config.heartbeat());
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let leads = running.raft.metrics().borrow_watched().state.is_leader();
        if leads && running.raft.trigger().heartbeat().await.is_err() {
            return;
        }
    }
}
