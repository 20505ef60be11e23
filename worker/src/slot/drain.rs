//! Owns: how a slot stops: nothing new, what runs may finish by a deadline, all the rest goes back.
//!
//! Invariant: after a drain that completed, the leader has answered for every row that the slot held.
//! Absent: the process's end.

use std::time::Instant;

use super::Slot;
use crate::held::Held;

impl Slot {
    pub(super) fn begin_drain(&mut self, deadline: Instant) {
        let deadline = self.drain.map_or(deadline, |old| old.min(deadline));
        if self.drain.replace(deadline).is_none() {
            tracing::info!(slot = self.index, running = self.running.len(), "draining");
            self.give_back_queued();
        }
        if Instant::now() >= deadline {
            self.stop_running();
        }
    }

    /// Gives back what was not started, loaded or not.
    pub(super) fn give_back_queued(&mut self) {
        self.queue.clear();
        let queued = self.book.lock().queued().clone();
        self.give_back_all(&queued);
    }

    /// Cancels what runs; as each row ends it goes back.
    pub(super) fn stop_running(&mut self) {
        for running in self.running.values() {
            running.cancel.cancel();
        }
    }

    fn give_back_all(&mut self, held: &Held) {
        for set in held.leases() {
            let rows = held.rows_of(set);
            self.give_back(set, rows);
        }
    }
}
