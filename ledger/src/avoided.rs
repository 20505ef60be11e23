//! Pending rows that workers had before and failed: each is for others first.
//!
//! *Invariant:* a returned row is listed under the worker that gave it its latest strike, if its strikes count. The lists are
//! derived of the returned rows and their troubles. What a change costs depends on the rows that it touches.
//! From cluster version 3 on a slot gets no row that its worker failed last, as long as a ready slot of another worker fits
//! the run. Absent: trials, which shun a slot and not a worker (`blame.rs`).

use crate::id::{RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::rows::Rows;
use crate::run::Run;
use crate::worker::Worker;
use std::collections::{BTreeMap, BTreeSet};

/// Returned rows by the worker that failed them last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Avoided(BTreeMap<String, BTreeSet<u64>>);

impl Avoided {
    /// How many of the rows a worker failed last.
    fn count(&self, worker: &str) -> u64 {
        self.0.get(worker).map_or(0, |rows| rows.len() as u64)
    }

    fn contains(&self, worker: &str, row: u64) -> bool {
        self.0.get(worker).is_some_and(|rows| rows.contains(&row))
    }

    /// They are no longer among the returned rows.
    pub(crate) fn forget(&mut self, rows: &Rows) {
        if self.0.is_empty() {
            return;
        }
        for all in self.0.values_mut() {
            for &(start, len) in rows.ranges() {
                let gone: Vec<u64> = all.range(start..start + u64::from(len)).copied().collect();
                for row in gone {
                    all.remove(&row);
                }
            }
        }
        self.0.retain(|_, rows| !rows.is_empty());
    }
}

impl Run {
    /// Rows come back, for whoever pulls next.
    pub(crate) fn bring_back(&mut self, rows: &Rows) {
        self.flight.returned.unite(rows);
        self.list_avoided(rows);
    }

    /// Takes rows out of those that came back.
    pub(crate) fn take_out(&mut self, rows: &Rows) {
        self.flight.returned.subtract(rows);
        self.flight.avoided.forget(rows);
    }

    /// The histories of some rows have changed.
    pub(crate) fn relist_avoided(&mut self, rows: &Rows) {
        let back = self.flight.returned.common(rows);
        self.flight.avoided.forget(&back);
        self.list_avoided(&back);
    }

    fn list_avoided(&mut self, rows: &Rows) {
        for &(start, len) in rows.ranges() {
            for (row, trouble) in self.troubles.range(start..start + u64::from(len)) {
                if let Some(worker) = trouble.failed_by() {
                    self.flight.avoided.0.entry(worker.to_owned()).or_default().insert(*row);
                }
            }
        }
    }

    /// Builds the lists anew.
    pub(crate) fn derive_avoided(&mut self) {
        self.flight.avoided = Avoided::default();
        let all = self.flight.returned.to_rows();
        self.list_avoided(&all);
    }

    /// Up to `count` of the returned rows, but for those that are kept from a worker.
    pub(crate) fn take_returned_beside(&mut self, count: u32, worker: &str) -> Rows {
        let (mut rows, mut left) = (Rows::default(), count);
        if self.flight.avoided.count(worker) < self.flight.returned.len() {
            for row in self.flight.returned.from(0) {
                if left == 0 {
                    break;
                }
                if !self.flight.avoided.contains(worker, row) {
                    rows.push(row, 1);
                    left -= 1;
                }
            }
        }
        self.take_out(&rows);
        rows
    }
}

impl Ledger {
    /// The worker, if some rows of a run are kept from it.
    pub(crate) fn kept_from<'a>(&self, run: &Run, worker: &'a Worker) -> Option<&'a str> {
        let some = self.asks_a_second_slot() && run.flight.avoided.count(&worker.name) > 0;
        (some && self.another_worker_fits(run, worker)).then_some(&*worker.name)
    }

    /// Of some rows of a run, those that are kept from a slot's worker, wherever they are.
    pub(crate) fn kept_of(&self, slot: SlotRef, no: RunNo, rows: &Rows) -> Rows {
        let mut kept = Rows::default();
        let (Some(run), Some(worker)) = (self.runs.get(&no), self.workers.get(&slot.session))
        else {
            return kept;
        };
        if !self.asks_a_second_slot() || !self.another_worker_fits(run, worker) {
            return kept;
        }
        for &(start, len) in rows.ranges() {
            for (row, trouble) in run.troubles.range(start..start + u64::from(len)) {
                if trouble.failed_by() == Some(&*worker.name) {
                    kept.push(*row, 1);
                }
            }
        }
        kept
    }

    /// Rows beside trials that a worker may be granted, but for caps.
    pub(crate) fn grantable_to(&self, run: &Run, worker: &Worker) -> u64 {
        let kept = self.kept_from(run, worker).map_or(0, |name| run.flight.avoided.count(name));
        run.grantable_beside_trials().saturating_sub(kept)
    }
}
