//! Keeps the ledger and a worker in agreement about the worker's drain.
//!
//! Either side may learn of a drain first: an operator tells the ledger; a signal or a cloud notice tells the worker.
//! Each heartbeat says what the worker knows, and the side with the nearer deadline tells the other.
//!
//! *Invariant:* within one heartbeat after both have been heard, both know the nearest deadline, despite lost messages
//! and changes of leader. The leader keeps no state for this.

use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::id::SessionId;
use rollout_ledger::view::Drain;
use rollout_ledger::{Body, OpKind, op};
use rollout_proto::v1;

/// Deadlines that differ by less count as equal, because messages take time.
const SAME_MS: u64 = 500;

/// The longest reason that is sent or logged, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 512;

/// Which side must learn of a nearer deadline.
#[derive(Debug, PartialEq, Eq)]
enum DrainUpdate {
    Nobody,
    /// The worker, with the time until its deadline; 0 for no deadline.
    Worker(u64),
    /// The ledger, with the time until the worker's deadline; 0 for no deadline.
    Ledger(u64),
}

/// Compares the two deadlines. `None`: no drain; 0: a drain without a deadline.
fn compare(ledger_left_ms: Option<u64>, worker_left_ms: Option<u64>) -> DrainUpdate {
    let nearer = |a: u64, b: u64| a != 0 && (b == 0 || a.saturating_add(SAME_MS) < b);
    match (ledger_left_ms, worker_left_ms) {
        (None, None) => DrainUpdate::Nobody,
        (None, Some(worker)) => DrainUpdate::Ledger(worker),
        (Some(ledger), None) => DrainUpdate::Worker(ledger),
        (Some(ledger), Some(worker)) if nearer(ledger, worker) => DrainUpdate::Worker(ledger),
        (Some(ledger), Some(worker)) if nearer(worker, ledger) => DrainUpdate::Ledger(worker),
        (Some(_), Some(_)) => DrainUpdate::Nobody,
    }
}

impl LeaderState {
    /// The remaining time of a drain, at least 1 ms; 0 for one without a deadline.
    pub(crate) fn drain_left_ms(&self, drain: Drain) -> u64 {
        drain.until.map_or(0, |until| until.0.saturating_sub(self.now().0).max(1))
    }

    /// Handles what a heartbeat says about its worker's drain.
    pub(crate) async fn handle_drain(&self, session: SessionId, reported: Option<v1::Drain>) {
        let drain_in_ledger = self.node.ledger(|l| l.worker_drain(session));
        let ledger = drain_in_ledger.map(|drain| self.drain_left_ms(drain));
        match compare(ledger, reported.as_ref().map(|drain| drain.deadline_ms)) {
            DrainUpdate::Nobody => {}
            DrainUpdate::Worker(left_ms) => {
                self.send_drain(session, left_ms, "requested by the cluster");
            }
            DrainUpdate::Ledger(deadline_ms) => {
                let mut reason = reported.map(|drain| drain.reason).unwrap_or_default();
                reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
                tracing::info!(%session, deadline_ms, reason, "a worker is draining");
                let ops = vec![OpKind::Drain(op::DrainWorker { session, deadline_ms }).into()];
                // Skips the queue, because the deadline is near. The next heartbeat says it again.
                if let Err(error) = self.proposer.command(Body::Ops(ops)).await {
                    tracing::debug!(%error, "the drain was not applied");
                }
            }
        }
    }

    /// Sends the drain to the worker on its stream. A worker that cannot be reached learns of it with its next
    /// heartbeat.
    pub(crate) fn send_drain(&self, session: SessionId, deadline_ms: u64, reason: &str) {
        let drain = v1::Drain { deadline_ms, reason: reason.to_owned() };
        let kind = Some(v1::leader_message::Kind::Drain(drain));
        let message = v1::LeaderMessage { header: Some(self.header()), kind };
        if let Some(out) = self.outbox(session) {
            // If there is no room, the next heartbeat shows that the worker does not know yet.
            let _ = out.try_send(Ok(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_with_the_nearer_deadline_tells_the_other() {
        assert_eq!(compare(None, None), DrainUpdate::Nobody);
        assert_eq!(compare(Some(0), None), DrainUpdate::Worker(0));
        assert_eq!(compare(Some(9000), None), DrainUpdate::Worker(9000));
        assert_eq!(compare(None, Some(9000)), DrainUpdate::Ledger(9000));
        assert_eq!(compare(Some(0), Some(9000)), DrainUpdate::Ledger(9000));
        assert_eq!(compare(Some(9000), Some(60_000)), DrainUpdate::Worker(9000));
        assert_eq!(compare(Some(60_000), Some(9000)), DrainUpdate::Ledger(9000));
        assert_eq!(compare(Some(9000), Some(9000 + SAME_MS)), DrainUpdate::Nobody);
        assert_eq!(compare(Some(9000 + SAME_MS), Some(9000)), DrainUpdate::Nobody);
        assert_eq!(compare(Some(0), Some(0)), DrainUpdate::Nobody);
    }
}
