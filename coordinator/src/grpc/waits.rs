//! Waits that a leader holds for clients: reads that are answered once they find a result.
//!
//! *Invariant:* a wait subscribes to changes before it reads the ledger, so it misses none. A member that no longer
//! leads, or that no majority confirms, ends its waits, because it may miss later changes.
//!
//! Absent: any trace of a wait in the ledger. A client repeats a wait at the next leader.

use super::Shared;
use crate::leader::fair_room::FairRoom;
use crate::leader::ledger_read::ReadLedger;
use crate::observe::log_position;
use rollout_ledger::Ledger;
use rollout_proto::{ErrorCode, Identity, RpcError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest that a wait is held before it is answered without a result.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Most waits of one service held at once.
const WAITS_MAX: usize = 16_384;
/// How often a wait checks that this member still leads.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Wakes the waits of one service.
#[derive(Clone)]
pub(crate) struct Waits {
    shared: Arc<Shared>,
    /// Changes when a wait should read again.
    changes: watch::Receiver<u64>,
    room: FairRoom,
}

impl Waits {
    /// The value of `counted` changes when a wait should read again.
    pub(crate) fn new(shared: Arc<Shared>, counted: fn(&Ledger) -> u64) -> Self {
        let (sender, changes) = watch::channel(0);
        tokio::spawn(publish_changes(shared.clone(), counted, sender));
        Self { shared, changes, room: FairRoom::new(WAITS_MAX) }
    }

    /// Returns what `look` finds, once it finds something; `None` after `wait_ms`, or when this epoch has ended. Both
    /// are as of the last read.
    ///
    /// # Errors
    /// This member does not lead, or holds too many waits already.
    pub(crate) async fn until<T>(
        &self,
        holder: &Identity,
        wait_ms: u64,
        look: impl Fn(&Ledger) -> Option<T>,
    ) -> Result<Option<T>, RpcError> {
        self.until_enough(holder, wait_ms, look, Option::is_some).await
    }

    /// Returns what `find` finds once that is `enough`. After `wait_ms`, or when this epoch has ended, returns what it
    /// found last.
    ///
    /// # Errors
    /// As [`until`](Self::until).
    pub(crate) async fn until_enough<T: Default>(
        &self,
        holder: &Identity,
        wait_ms: u64,
        find: impl Fn(&Ledger) -> T,
        enough: impl Fn(&T) -> bool,
    ) -> Result<T, RpcError> {
        let leader = self.shared.reading().await?;
        let Some(_place) = self.room.take(holder) else {
            let message = format!(
                "this member holds {WAITS_MAX} waits already, or three quarters of that for {holder}"
            );
            return Err(RpcError::new(ErrorCode::Overloaded, message));
        };
        let until = tokio::time::Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        let mut changes = self.changes.clone();
        loop {
            // Before the ledger is read, so that later changes wake this wait.
            changes.mark_unchanged();
            let found = self.shared.read_ledger(&find);
            if enough(&found) {
                return Ok(found);
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(found) },
                () = tokio::time::sleep_until(until) => return Ok(found),
                () = leader.ended.cancelled() => return Ok(found),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // If this member no longer leads, the error is not an answer as of the last read.
            log_position::of_several_looks();
            self.shared.leader_state()?;
        }
    }
}

/// Reads the counter at most once per entry, for all waits: they read again only after a change.
async fn publish_changes(
    shared: Arc<Shared>,
    counted: fn(&Ledger) -> u64,
    sender: watch::Sender<u64>,
) {
    while !sender.is_closed() {
        let Some(mut applied) = shared.node.watch_applied() else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        loop {
            let now = shared.node.ledger(counted);
            sender.send_if_modified(|published| std::mem::replace(published, now) != now);
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { break },
                () = sender.closed() => return,
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
