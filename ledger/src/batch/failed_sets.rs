//! Returned rows that several slots failed while other slots came first.
//!
//! *Invariant:* from cluster version 4 on. A slot does not get such a row that its worker failed while a free slot of a
//! worker that did not fail it fits the run. If there is none, it does not get a row that it failed itself while a free
//! slot that did not fail it fits. If there is none either, only the latest failure counts, as for other rows. So one
//! of the slots that fit always gets the row. A claim looks at [`SETS_MAX`] of the different sets of slots among the
//! rows that the slot's worker failed; for rows of further sets, only the latest failure counts. It counts the free
//! slots of each worker in these sets once, by the worker's different offers.
//! Absent: rows that one slot failed (`avoided_rows.rs`), and which slots those are (`incident.rs`).

use crate::batch::avoided_rows::KeptFrom;
use crate::batch::incident::{Incident, NamedSlot};
use crate::batch::run::Run;
use crate::fleet::worker::Worker;
use crate::kernel::id::SlotNo;
use crate::kernel::visits::count_visit;
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most sets of slots that a claim looks at to find the rows that its slot does not get.
pub(crate) const SETS_MAX: usize = 16;

/// The slots that failed a row: at least two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedSet {
    /// The latest.
    pub(crate) at: NamedSlot,
    /// The others, sorted.
    earlier: Vec<NamedSlot>,
}

impl FailedSet {
    /// The slots of an open incident; `None` if there is only one.
    pub(crate) fn of(incident: &Incident) -> Option<Self> {
        let (at, mut earlier) = (incident.at.clone(), incident.earlier.clone());
        earlier.sort_unstable();
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

/// Returned rows by the set of slots that failed them, and the reverse. Equal sets share their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailedSets {
    rows: BTreeMap<Arc<FailedSet>, BTreeSet<u64>>,
    /// How many rows each slot failed last.
    latest: BTreeMap<NamedSlot, u64>,
    by_worker: BTreeMap<String, BTreeSet<Arc<FailedSet>>>,
    by_row: BTreeMap<u64, Arc<FailedSet>>,
}

/// The sets whose rows a slot does not get.
#[derive(Debug, Default)]
pub(crate) struct KeptSets {
    /// Among those that were looked at.
    kept: BTreeSet<Arc<FailedSet>>,
    /// The last of those that were looked at, if there are more.
    last: Option<Arc<FailedSet>>,
}

impl KeptSets {
    fn is_beyond(&self, set: &FailedSet) -> bool {
        self.last.as_deref().is_some_and(|last| set > last)
    }
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

    /// How many rows each slot failed last.
    pub(crate) fn by_latest(&self) -> impl Iterator<Item = (&NamedSlot, u64)> {
        self.latest.iter().map(|(at, rows)| (at, *rows))
    }

    /// How many rows a set has.
    fn rows_of(&self, set: &FailedSet) -> u64 {
        self.rows.get(set).map_or(0, |rows| rows.len() as u64)
    }

    /// How many rows are kept from a slot of a worker. `from`: whose latest failures are.
    pub(crate) fn count(&self, worker: &str, from: KeptFrom<'_>, sets: &KeptSets) -> u64 {
        let kept: u64 = sets.kept.iter().map(|set| self.rows_of(set)).sum();
        let Some(last) = &sets.last else { return kept };
        let covers = |at: &NamedSlot| from.covers(&at.worker, at.slot);
        let named = self.latest.range(first_slot(worker)..).take_while(|t| t.0.worker == worker);
        let latest: u64 = named.filter(|t| covers(t.0)).map(|(_, rows)| rows).sum();
        let looked_at =
            self.by_worker.get(worker).map(|sets| sets.range::<FailedSet, _>(..=last.as_ref()));
        let looked_at = looked_at.into_iter().flatten().filter(|set| covers(&set.at));
        kept + latest - looked_at.map(|set| self.rows_of(set)).sum::<u64>()
    }

    /// Up to `count` rows that are not kept from a slot, and how many sets and rows it visited to find them.
    pub(crate) fn find_beside(
        &self,
        count: usize,
        from: KeptFrom<'_>,
        sets: &KeptSets,
    ) -> (Vec<u64>, usize) {
        let (mut rows, mut looked_at) = (Vec::new(), 0);
        let mut rest = self.rows.range::<FailedSet, _>(..);
        while rows.len() < count
            && let Some((set, listed)) = rest.next()
        {
            looked_at += 1;
            if !sets.is_beyond(set) {
                if !sets.kept.contains(set) {
                    rows.extend(listed.iter().take(count - rows.len()));
                }
            } else if from.covers(&set.at.worker, set.at.slot) {
                rest = self.rows.range(from.end()..);
            } else {
                rows.extend(listed.iter().take(count - rows.len()));
            }
        }
        looked_at += rows.len();
        (rows, looked_at)
    }

    /// Whether a worker failed one of the rows.
    pub(crate) fn names(&self, worker: &str) -> bool {
        self.by_worker.contains_key(worker)
    }

    pub(crate) fn list(&mut self, row: u64, set: FailedSet) {
        let known = self.rows.get_key_value(&set).map(|(known, _)| known.clone());
        let set = known.unwrap_or_else(|| Arc::new(set));
        if !self.rows.contains_key(&set) {
            for worker in set.workers() {
                self.by_worker.entry(worker.to_owned()).or_default().insert(set.clone());
            }
        }
        self.rows.entry(set.clone()).or_default().insert(row);
        *self.latest.entry(set.at.clone()).or_default() += 1;
        self.by_row.insert(row, set);
    }

    pub(crate) fn forget(&mut self, row: u64) {
        let Some(set) = self.by_row.remove(&row) else { return };
        let Some(rows) = self.rows.get_mut(&set) else { return };
        rows.remove(&row);
        let is_empty = rows.is_empty();
        if let Some(latest) = self.latest.get_mut(&set.at) {
            *latest -= 1;
            if *latest == 0 {
                self.latest.remove(&set.at);
            }
        }
        if !is_empty {
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

/// The least slot of a worker, and of all workers after it.
fn first_slot(worker: &str) -> NamedSlot {
    NamedSlot { worker: worker.to_owned(), slot: SlotNo(0) }
}

impl KeptFrom<'_> {
    /// The least set after all sets whose latest slot it covers.
    fn end(self) -> FailedSet {
        let at = match self {
            // The next name in order.
            Self::Worker(worker) => first_slot(&format!("{worker}\0")),
            Self::Slot(worker, SlotNo(slot)) => {
                NamedSlot { worker: worker.to_owned(), slot: SlotNo(slot + 1) }
            }
        };
        FailedSet { at, earlier: Vec::new() }
    }
}

/// Decides which sets' rows of a run a slot must not get, as of the last [`settle_slots`](Ledger::settle_slots).
pub(crate) struct SetCheck<'a> {
    ledger: &'a Ledger,
    run: &'a Run,
    /// The slot and its worker.
    slot: (&'a Worker, SlotNo),
    /// The worker or slot whose latest failures the slot must not get.
    from: KeptFrom<'a>,
    /// The workers of the sets that were checked, by name, and how many of their free slots fit the run.
    workers: BTreeMap<String, (Option<&'a Worker>, usize)>,
    /// Known lower and upper bounds of how many free slots fit the run.
    fitting: (usize, usize),
}

impl<'a> SetCheck<'a> {
    /// Whether the slot does not get the rows that these slots failed.
    pub(crate) fn keeps(&mut self, set: &FailedSet) -> bool {
        count_visit();
        let (worker, number) = self.slot;
        let workers = set.workers();
        let of_workers = workers.iter().map(|name| self.worker(name).1).sum();
        if self.has_more_free(of_workers) {
            return workers.contains(worker.name());
        }
        let of_slots = set.slots().filter(|at| self.is_free(at)).count();
        if self.has_more_free(of_slots) {
            return set.has(worker.name(), usize::from(number.0));
        }
        self.from.covers(&set.at.worker, set.at.slot)
    }

    /// Whether more than `count` of all free slots fit the run.
    fn has_more_free(&mut self, count: usize) -> bool {
        let (least, most) = self.fitting;
        if count < least || count >= most {
            return count < least;
        }
        let has_more = self.ledger.index.has_more_free(self.run.no, count);
        self.fitting = if has_more { (count + 1, most) } else { (least, count) };
        has_more
    }

    /// A worker of the run's namespace, if it is registered, and how many of its free slots fit the run.
    fn worker(&mut self, name: &str) -> (Option<&'a Worker>, usize) {
        if let Some(known) = self.workers.get(name) {
            return *known;
        }
        let (ledger, run) = (self.ledger, self.run);
        let session = ledger.workers.by_name(&(run.head.namespace.clone(), name.to_owned()));
        let worker = session.and_then(|session| ledger.workers.get(&session));
        let free = worker.map_or(0, |worker| ledger.free_of_worker(run, worker));
        self.workers.insert(name.to_owned(), (worker, free));
        (worker, free)
    }

    /// Whether a slot fits the run and is free.
    fn is_free(&mut self, at: &NamedSlot) -> bool {
        let slot =
            self.worker(&at.worker).0.and_then(|worker| worker.slots().get(usize::from(at.slot.0)));
        let free = slot.filter(|slot| slot.counted().is_some_and(|counted| counted.free));
        free.is_some_and(|slot| self.ledger.index.fits(slot.offer_no(), self.run.no))
    }
}

impl Ledger {
    /// A check of sets for a slot. `from`: the worker or slot whose latest failures the slot must not get.
    pub(crate) fn set_check<'a>(
        &'a self,
        run: &'a Run,
        slot: (&'a Worker, SlotNo),
        from: KeptFrom<'a>,
    ) -> SetCheck<'a> {
        SetCheck {
            ledger: self,
            run,
            slot,
            from,
            workers: BTreeMap::new(),
            fitting: (0, usize::MAX),
        }
    }

    /// The sets among the pending rows of a run whose rows a slot does not get.
    pub(crate) fn kept_sets(
        &self,
        run: &Run,
        (worker, slot): (&Worker, SlotNo),
        from: KeptFrom<'_>,
    ) -> KeptSets {
        let Some(sets) = run.flight.avoided.sets.by_worker.get(worker.name()) else {
            return KeptSets::default();
        };
        let last = sets.iter().nth(SETS_MAX - 1).filter(|_| sets.len() > SETS_MAX).cloned();
        let mut check = self.set_check(run, (worker, slot), from);
        let kept = sets.iter().take(SETS_MAX).filter(|set| check.keeps(set)).cloned().collect();
        KeptSets { kept, last }
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
