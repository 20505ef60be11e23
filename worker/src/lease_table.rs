//! Owns: which rows a slot holds, and how far each has come. The session reads it for heartbeats and registrations.
//!
//! Invariant: a row is in at most one of the three sets. It leaves the last one only when the leader has answered for
//! it or taken it back.
//! Absent: rows' contents.

use rollout_proto::v1;

use crate::leased_rows::{Lease, LeasedRows, NamedRows};

#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    queued: LeasedRows,
    running: LeasedRows,
    /// Finished, failed or returned, and unanswered.
    ended: LeasedRows,
    /// Rows that the engine may run at once now.
    concurrency: usize,
}

impl LeaseTable {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self { concurrency, ..Self::default() }
    }

    pub(crate) fn queue(&mut self, lease: Lease, row: u64) -> bool {
        !self.running.contains(lease, row)
            && !self.ended.contains(lease, row)
            && self.queued.insert(lease, row)
    }

    pub(crate) fn start(&mut self, lease: Lease, row: u64) {
        self.queued.remove(lease, row);
        self.running.insert(lease, row);
    }

    pub(crate) fn end(&mut self, lease: Lease, row: u64) {
        self.queued.remove(lease, row);
        self.running.remove(lease, row);
        self.ended.insert(lease, row);
    }

    pub(crate) fn settle(&mut self, rows: &LeasedRows) {
        for (lease, row) in rows.iter() {
            self.ended.remove(lease, row);
        }
    }

    pub(crate) fn is_ended(&self, lease: Lease, row: u64) -> bool {
        self.ended.contains(lease, row)
    }

    pub(crate) fn is_queued(&self, lease: Lease, row: u64) -> bool {
        self.queued.contains(lease, row)
    }

    pub(crate) fn is_running(&self, lease: Lease, row: u64) -> bool {
        self.running.contains(lease, row)
    }

    pub(crate) fn set_concurrency(&mut self, rows: usize) {
        self.concurrency = rows;
    }

    /// Rows that the engine may run at once now: fewer than configured after memory ran out.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Whether rows of a lease wait or run.
    pub(crate) fn has(&self, lease: Lease) -> bool {
        self.queued.has(lease) || self.running.has(lease)
    }

    /// Whether rows of a run wait or run.
    pub(crate) fn has_run(&self, run: u32) -> bool {
        self.queued.has_run(run) || self.running.has_run(run)
    }

    pub(crate) fn running_leases(&self) -> Vec<Lease> {
        self.running.leases()
    }

    /// Rows that wait or run, which count against the slot's credit.
    pub(crate) fn busy(&self) -> usize {
        self.queued.len() + self.running.len()
    }

    /// Rows that wait, and rows that run.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.queued.len(), self.running.len())
    }

    pub(crate) fn queued(&self) -> &LeasedRows {
        &self.queued
    }

    /// Removes rows; returns how many of them were held.
    pub(crate) fn take(&mut self, named: &NamedRows) -> usize {
        let mut taken = 0;
        for set in [&mut self.queued, &mut self.running, &mut self.ended] {
            let gone: Vec<_> =
                set.iter().filter(|(lease, row)| named.contains(*lease, *row)).collect();
            taken += gone.len();
            gone.into_iter().for_each(|(lease, row)| {
                set.remove(lease, row);
            });
        }
        taken
    }

    /// Rows that the leader must not give to another worker while this one is silent for a while: running rows, and
    /// ended rows that are unanswered.
    pub(crate) fn started(&self) -> LeasedRows {
        let mut all = self.running.clone();
        all.extend(&self.ended);
        all
    }

    /// Rows that wait or run, for which a revocation still matters.
    pub(crate) fn unfinished(&self) -> LeasedRows {
        let mut all = self.running.clone();
        all.extend(&self.queued);
        all
    }

    /// Every row that this process holds.
    pub(crate) fn held(&self) -> LeasedRows {
        let mut all = self.started();
        all.extend(&self.queued);
        all
    }
}

/// The sets of several slots in one list.
pub(crate) fn to_wire<'a>(all: impl IntoIterator<Item = &'a LeasedRows>) -> Vec<v1::HeldRows> {
    let mut sum = LeasedRows::default();
    all.into_iter().for_each(|held| sum.extend(held));
    sum.to_wire()
}
