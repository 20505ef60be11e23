//! Owns: reading what this member has applied: its ledger, its events, its digests, and a backup of it.
//!
//! Invariant: none of it waits for a quorum.
//! Absent: linearizable reads; see `proposals`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_ledger::Ledger;
use tokio::sync::watch;

use super::Node;
use crate::ops::backup::{self, Backup, BackupError};
use crate::state::digest::Digests;
use crate::state::event_ring::{Compacted, EventPage, EventPosition};
use crate::state::machine::blocking;

impl Node {
    /// Reads the ledger as of now. Do not block or call this crate from `f`: applying waits meanwhile. `None` while
    /// this member belongs to no cluster.
    pub fn with_ledger<R>(&self, f: impl FnOnce(&Ledger) -> R) -> Option<R> {
        self.running().map(|running| running.machine.read(|state| f(&state.ledger)))
    }

    /// Up to `max` events of the ledger at or after `from`, from what this member has applied. To wait for a position
    /// ahead of that, use [`Self::watch_events`].
    pub fn events(&self, from: EventPosition, max: usize) -> Result<EventPage, Compacted> {
        match self.running() {
            Some(running) => running.machine.events(from, max),
            None => Ok(EventPage { records: Vec::new(), next: from, more: false }),
        }
    }

    /// The oldest index whose events are all held here, and the one after the last applied.
    pub fn event_bounds(&self) -> (u64, u64) {
        self.running().map_or((0, 0), |running| running.machine.event_bounds())
    }

    /// Changes when this member has new events; `None` while it belongs to no cluster.
    pub fn watch_events(&self) -> Option<watch::Receiver<u64>> {
        self.running().map(|running| running.machine.watch_events())
    }

    /// Changes with every entry that this member has applied; `None` while it belongs to no cluster.
    pub fn watch_applied(&self) -> Option<watch::Receiver<u64>> {
        self.running().map(|running| running.machine.applied_next())
    }

    /// Waits until this member has applied `index`; false after `wait`.
    pub async fn applied(&self, index: u64, wait: Duration) -> bool {
        let Some(running) = self.running() else { return false };
        let mut applied = running.machine.applied_next();
        let reached = applied.wait_for(|next| *next > index);
        matches!(tokio::time::timeout(wait, reached).await, Ok(Ok(_)))
    }

    /// This member's digests at `index`, an entry that asked for digests; `None` if they are not known after `wait`.
    pub async fn digests(&self, index: u64, wait: Duration) -> Option<Digests> {
        let running = self.running()?;
        running.machine.digests().at(index, wait).await
    }

    /// This member's present ledger, with everything applied so far, ready to be written to a snapshot file. `None`
    /// while it belongs to no cluster. `program` and `wall_ms` go into the file's header.
    pub async fn backup(&self, program: &str, wall_ms: u64) -> Result<Option<Backup>, BackupError> {
        let Some(running) = self.running() else { return Ok(None) };
        let cluster_version = running.machine.read(|state| state.ledger.version());
        let checkpoint = running.machine.checkpoint().await?;
        let mut header = backup::header(&running.identity, program, wall_ms);
        header.cluster_version = cluster_version;
        let bytes = running.image_bytes.load(Ordering::Relaxed);
        blocking(move || Backup::new(checkpoint, header, bytes)).await.map(Some)
    }
}
