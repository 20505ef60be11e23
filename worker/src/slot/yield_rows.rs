//! Owns: rows that a slot returns unstarted because the leader steals them for an idle slot.
//!
//! Invariant: a started row is never returned, and a returned row is never started: it leaves the queue before the
//! answer is made. It stays in the lease table until the leader has answered, so some slot holds it at every moment.
//! Absent: who gets them.

use std::collections::HashSet;

use rollout_proto::v1;

use super::Slot;
use crate::leased_rows::{Lease, LeasedRows};

impl Slot {
    /// Gives up the rows that would start last. Rows for which the engine has a place are not offered, because they
    /// are about to start.
    pub(super) fn give_up(&mut self, request: &v1::Yield) {
        let given = self.last_unstarted(request);
        let gone: HashSet<(Lease, u64)> = given.iter().collect();
        self.queue.retain(|row| !gone.contains(&((row.run.number, row.attempt), row.row)));
        self.end_all(&given);
        metrics::counter!("rollout_worker_rows_total", "outcome" => "yielded")
            .increment(given.len() as u64);
        tracing::debug!(
            slot = self.index,
            id = request.id,
            rows = given.len(),
            "yielded rows for a steal"
        );
        self.exchanges.give_up(request.id, given);
    }

    fn last_unstarted(&self, request: &v1::Yield) -> LeasedRows {
        let places = match self.engine_up {
            true => self.concurrency.limit().saturating_sub(self.running.len()),
            false => 0,
        };
        let lease_table = self.lease_table.lock();
        let spare = lease_table.queued().len().saturating_sub(places);
        let wanted = spare.min(request.rows_max as usize);
        // A trial runs here, or is returned as a whole.
        let of_these = |(lease, _): &(Lease, u64)| {
            request.runs.contains(&lease.0) && !self.alone.contains(lease)
        };
        let queue: Vec<(Lease, u64)> =
            self.queue.iter().map(|row| ((row.run.number, row.attempt), row.row)).collect();
        let loaded: HashSet<(Lease, u64)> = queue.iter().copied().collect();
        // Rows that are still loading come after the queue.
        let mut loading: Vec<_> =
            lease_table.queued().iter().filter(|r| !loaded.contains(r)).collect();
        loading.sort_unstable_by_key(|(lease, row)| (lease.1, *row));
        let rows = loading.into_iter().rev().chain(queue.into_iter().rev());
        rows.filter(of_these).take(wanted).collect()
    }

    /// Tells the session when the slot has run out of rows to start.
    pub(super) fn notice_dry(&mut self) {
        let dry = self.lease_table.lock().queued().is_empty();
        if dry && !self.dry {
            self.ran_dry.notify_one();
        }
        self.dry = dry;
    }
}
