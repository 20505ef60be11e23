//! Owns: how a slot drains: it takes no new rows, finishes what it can by a deadline, and returns the rest at once.
//!
//! Invariant: after a completed drain, the leader has answered for every row that the slot held.
//! Absent: the process's end.

use std::time::Instant;

use super::Slot;
use crate::leased_rows::LeasedRows;

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
        self.stop_what_cannot_end();
    }

    /// In a drain, cancels rows that will not end by its deadline, judging by earlier rows: another worker may run
    /// them meanwhile. Called again as rows end, because each gives more data.
    pub(super) fn stop_what_cannot_end(&mut self) {
        let Some(deadline) = self.drain else { return };
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let too_long = self.running.iter().filter(|((lease, _), running)| {
            let so_far = now.saturating_duration_since(running.since);
            !running.cancel.is_cancelled() && !self.row_durations.may_end(lease.0, so_far, left)
        });
        let mut rows = 0;
        for (_, running) in too_long {
            running.cancel.cancel();
            rows += 1;
        }
        if rows > 0 {
            let left_ms = left.as_millis() as u64;
            tracing::info!(
                slot = self.index,
                rows,
                left_ms,
                "returning rows that cannot finish in time"
            );
        }
    }

    /// Returns all unstarted rows, loaded or not.
    pub(super) fn give_back_queued(&mut self) {
        self.queue.clear();
        let queued = self.lease_table.lock().queued().clone();
        self.give_back_all(&queued);
    }

    /// Cancels all running rows; each goes back as it ends.
    pub(super) fn stop_running(&mut self) {
        for running in self.running.values() {
            running.cancel.cancel();
        }
    }

    fn give_back_all(&mut self, held: &LeasedRows) {
        for set in held.leases() {
            let rows = held.rows_of(set);
            self.give_back(set, rows);
        }
    }
}
