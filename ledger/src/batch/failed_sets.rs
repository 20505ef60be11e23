//! Returned rows that several slots failed while other slots came first.
//!
//! *Invariant:* from cluster version 4 on. A slot does not get such a row that its worker failed while a free slot of a
//! worker that did not fail it fits the run. If there is none, it does not get a row that it failed itself while a free
//! slot that did not fail it fits. If there is none either, only the latest failure counts, as for other rows. So one
//! of the slots that fit always gets the row. The cost of a claim depends on the different sets of slots among the rows
//! that the slot's worker failed, of which it looks at [`SETS_MAX`]; rows of further sets are not kept from it.
//! Absent: rows that one slot failed (`avoided_rows.rs`), and which slots those are (`incident.rs`).

use crate::batch::avoided_rows::KeptFrom;
use crate::batch::incident::{Incident, NamedSlot};
use crate::batch::run::Run;
use crate::fleet::worker::Worker;
use crate::kernel::id::SlotNo;
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// The most sets of slots that a claim looks at to find the rows that its slot does not get.
const SETS_MAX: usize = 64;

/// The slots that failed a row: at least two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedSet {
    /// The latest.
    pub(crate) at: NamedSlot,
    /// The others, oldest first.
    earlier: Vec<NamedSlot>,
}

impl FailedSet {
    /// The slots of an open incident; `None` if there is only one.
    pub(crate) fn of(incident: &Incident) -> Option<Self> {
        let (at, earlier) = (incident.at.clone(), incident.earlier.clone());
        (!earlier.is_empty()).then_some(Self { at, earlier })
    }

    fn slots(&self) -> impl Iterator<Item = &NamedSlot> {
        self.earlier.iter().chain([&self.at])
    }

    fn workers(&self) -> BTreeSet<&str> {
        self.slots().map(|at| at.worker.as_str()).collect()
    }

    fn has(&self, worker: &str, slot: usize) -> bool {
        self.slots().any(|at| at.worker == worker && usize::from(at.slot.0) == slot)
    }
}

/// Returned rows by the set of slots that failed them, and the reverse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailedSets {
    rows: BTreeMap<FailedSet, BTreeSet<u64>>,
    by_worker: BTreeMap<String, BTreeSet<FailedSet>>,
    by_row: BTreeMap<u64, FailedSet>,
}

impl FailedSets {
    /// How many rows.
    pub(crate) fn len(&self) -> usize {
        self.by_row.len()
    }

    pub(crate) fn contains(&self, row: u64) -> bool {
        self.by_row.contains_key(&row)
    }

    /// The first row from `start` to before `end`.
    pub(crate) fn first_in(&self, start: u64, end: u64) -> Option<u64> {
        self.by_row.range(start..end).next().map(|(row, _)| *row)
    }

    /// The sets with their rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&FailedSet, &BTreeSet<u64>)> {
        self.rows.iter()
    }

    /// How many rows a set has.
    pub(crate) fn count(&self, set: &FailedSet) -> u64 {
        self.rows.get(set).map_or(0, |rows| rows.len() as u64)
    }

    /// Whether a worker failed one of the rows.
    pub(crate) fn names(&self, worker: &str) -> bool {
        self.by_worker.contains_key(worker)
    }

    pub(crate) fn list(&mut self, row: u64, set: FailedSet) {
        for worker in set.workers() {
            self.by_worker.entry(worker.to_owned()).or_default().insert(set.clone());
        }
        self.rows.entry(set.clone()).or_default().insert(row);
        self.by_row.insert(row, set);
    }

    pub(crate) fn forget(&mut self, row: u64) {
        let Some(set) = self.by_row.remove(&row) else { return };
        let Some(rows) = self.rows.get_mut(&set) else { return };
        rows.remove(&row);
        if !rows.is_empty() {
            return;
        }
        self.rows.remove(&set);
        for worker in set.workers() {
            let Some(sets) = self.by_worker.get_mut(worker) else { continue };
            sets.remove(&set);
            if sets.is_empty() {
                self.by_worker.remove(worker);
            }
        }
    }
}

impl Ledger {
    /// The sets among the pending rows of a run whose rows a slot does not get.
    pub(crate) fn kept_sets(
        &self,
        run: &Run,
        worker: &Worker,
        slot: SlotNo,
    ) -> BTreeSet<FailedSet> {
        let sets = run.flight.avoided.sets.by_worker.get(worker.name());
        let sets = sets.into_iter().flatten().take(SETS_MAX);
        sets.filter(|set| self.keeps_set(run, worker, slot, set)).cloned().collect()
    }

    /// Whether a slot does not get the rows of a run that these slots failed.
    pub(crate) fn keeps_set(
        &self,
        run: &Run,
        worker: &Worker,
        slot: SlotNo,
        set: &FailedSet,
    ) -> bool {
        let (name, number) = (worker.name(), usize::from(slot.0));
        let (of_workers, of_slots) = self.free_of(run, set);
        if self.index.has_more_free(run.no, of_workers) {
            return set.workers().contains(name);
        }
        if self.index.has_more_free(run.no, of_slots) {
            return set.has(name, number);
        }
        let latest = |kept: KeptFrom<'_>| kept.covers(&set.at.worker, set.at.slot);
        self.avoids(run, worker, slot).is_some_and(latest)
    }

    /// How many slots of the workers of a set fit a run and are free, and how many of the set's own slots, as of the
    /// last [`settle_slots`](Self::settle_slots).
    fn free_of(&self, run: &Run, set: &FailedSet) -> (usize, usize) {
        let (mut of_workers, mut of_slots) = (0, 0);
        for name in set.workers() {
            let session = self.workers.by_name(&(run.head.namespace.clone(), name.to_owned()));
            let worker = session.and_then(|session| self.workers.get(&session));
            let slots = worker.into_iter().flat_map(|worker| worker.slots().iter().enumerate());
            for (number, slot) in slots {
                let free = slot.counted().is_some_and(|counted| counted.free);
                if free && self.index.fits(slot.offer_no(), run.no) {
                    of_workers += 1;
                    of_slots += usize::from(set.has(name, number));
                }
            }
        }
        (of_workers, of_slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(worker: u64) -> NamedSlot {
        NamedSlot { worker: format!("w{worker}"), slot: SlotNo(0) }
    }

    #[test]
    fn rows_leave_the_sets_that_they_were_listed_in() {
        let mut sets = FailedSets::default();
        for row in 0..100 {
            let (at, earlier) = (named(row % 3), vec![named(3 + row % 2)]);
            sets.list(row, FailedSet { at, earlier });
        }
        assert_eq!((sets.len(), sets.rows.len(), sets.by_worker.len()), (100, 6, 5));
        assert!(sets.names("w4") && !sets.names("w5"));
        assert_eq!(sets.first_in(7, 9), Some(7));
        (0..100).for_each(|row| sets.forget(row));
        assert_eq!(sets, FailedSets::default());
    }
}
