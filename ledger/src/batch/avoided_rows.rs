//! Returned rows that a slot should not get again while another one fits.
//!
//! *Invariant:* a returned row with an open incident is listed under the slot of that incident. The lists are derived
//! from the returned rows and their failure records. The cost of a change depends on the rows that it touches, not on
//! the number of listed slots; the cost of taking rows depends on the rows taken, not on the rows kept from the slot. A
//! slot with listed rows first gets rows without an open incident, and then those of other slots, slot by slot. From
//! cluster version 3 on, a slot does not get a row that its worker failed last while a ready slot of another worker
//! fits the run. If no other worker fits, it does not get a row that it failed last itself while another slot of its
//! worker fits. Both restrictions end with the incident's wait. A row that several slots failed is in a set instead,
//! and comes last. Absent: which sets are kept from a slot (`failed_sets.rs`), and the bisection groups that it must not
//! get (`incident.rs`).

use crate::batch::failed_sets::{FailedSet, FailedSets, KeptSets, SETS_MAX};
use crate::batch::incident::{Incident, NamedSlot};
use crate::batch::returned_rows::Returned;
use crate::batch::run::Run;
use crate::fleet::worker::Worker;
use crate::kernel::id::{RunNo, SlotNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// Returned rows by the slot of their open incident, and the reverse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Avoided {
    by_worker: BTreeMap<String, BTreeMap<SlotNo, BTreeSet<u64>>>,
    by_row: BTreeMap<u64, (String, SlotNo)>,
    /// The rows that several slots failed. They are in neither of the lists above.
    pub(crate) sets: FailedSets,
    /// The returned rows without an open incident.
    plain: Returned,
}

/// The worker or slot whose failed rows a slot does not get.
#[derive(Clone, Copy)]
pub(crate) enum KeptFrom<'a> {
    /// The rows of any slot of its worker: another worker fits.
    Worker(&'a str),
    /// Its own rows: only another slot of its worker fits.
    Slot(&'a str, SlotNo),
}

/// The returned rows that a slot does not get.
pub(crate) struct KeptRows<'a> {
    /// Those that one slot failed.
    from: KeptFrom<'a>,
    /// Those that several slots failed, by the name of the slot's worker.
    sets: (&'a str, KeptSets),
}

impl KeptFrom<'_> {
    pub(crate) fn covers(self, name: &str, number: SlotNo) -> bool {
        match self {
            Self::Worker(worker) => worker == name,
            Self::Slot(worker, slot) => worker == name && slot == number,
        }
    }

    fn is_of(self, incident: &Incident) -> bool {
        self.covers(&incident.at.worker, incident.at.slot)
    }
}

impl Avoided {
    /// How many rows are kept.
    fn count(&self, kept: &KeptRows<'_>) -> u64 {
        let (worker, sets) = &kept.sets;
        self.count_of_one(kept.from) + self.sets.count(worker, kept.from, sets)
    }

    /// How many rows that one slot failed are kept.
    fn count_of_one(&self, kept: KeptFrom<'_>) -> u64 {
        let (KeptFrom::Worker(worker) | KeptFrom::Slot(worker, _)) = kept;
        let slots = self.by_worker.get(worker).into_iter().flatten();
        let own = slots.filter(|(slot, _)| kept.covers(worker, **slot));
        own.map(|(_, rows)| rows.len() as u64).sum()
    }

    /// How many rows are listed under slots.
    pub(crate) fn listed(&self) -> u64 {
        (self.by_row.len() + self.sets.len()) as u64
    }

    /// How many rows each slot failed last, by the name of its worker.
    pub(crate) fn by_slot(&self) -> impl Iterator<Item = (&str, SlotNo, u64)> {
        let mut counts: BTreeMap<(&str, SlotNo), u64> = BTreeMap::new();
        for (worker, slots) in &self.by_worker {
            for (slot, rows) in slots {
                counts.insert((worker.as_str(), *slot), rows.len() as u64);
            }
        }
        for (at, rows) in self.sets.by_latest() {
            *counts.entry((at.worker.as_str(), at.slot)).or_default() += rows;
        }
        counts.into_iter().map(|((worker, slot), rows)| (worker, slot, rows))
    }

    fn list(&mut self, row: u64, incident: &Incident) {
        self.plain.subtract(&Rows::range(row, 1));
        if let Some(set) = FailedSet::of(incident) {
            return self.sets.list(row, set);
        }
        let NamedSlot { worker, slot } = incident.at.clone();
        self.by_worker.entry(worker.clone()).or_default().entry(slot).or_default().insert(row);
        self.by_row.insert(row, (worker, slot));
    }

    /// The image does not have them.
    pub(crate) fn forget_changes(&mut self) {
        self.plain.take_changed();
    }

    /// The incident of a row is over.
    pub(crate) fn release(&mut self, row: u64) {
        if self.by_row.contains_key(&row) || self.sets.contains(row) {
            self.forget_row(row);
            self.plain.unite(&Rows::range(row, 1));
        }
    }

    /// Up to `count` rows that are not kept from the slot, and how many rows, slots and workers it visited to find
    /// them.
    fn find_beside(&self, count: u32, kept: &KeptRows<'_>) -> (BTreeSet<u64>, usize) {
        let KeptRows { from: kept, sets: (_, sets) } = kept;
        let count = count as usize;
        let mut rows: BTreeSet<u64> = self.plain.from(0).take(count).collect();
        let mut looked_at = rows.len();
        let is_kept = |worker: &str| matches!(kept, KeptFrom::Worker(kept) if *kept == worker);
        let others = self.by_worker.iter().filter(|(worker, _)| !is_kept(worker));
        let listed = others.flat_map(|(worker, slots)| {
            slots.iter().map(move |(slot, listed)| (worker.as_str(), *slot, listed))
        });
        for (worker, slot, listed) in listed {
            let missing = count - rows.len();
            if missing == 0 {
                break;
            }
            looked_at += 1;
            if !kept.covers(worker, slot) {
                rows.extend(listed.iter().take(missing));
                looked_at += missing.min(listed.len());
            }
        }
        let (of_sets, visited) = self.sets.find_beside(count - rows.len(), *kept, sets);
        rows.extend(of_sets);
        (rows, looked_at + visited)
    }

    /// Removes rows that are no longer among the returned ones.
    pub(crate) fn forget(&mut self, rows: &Rows) {
        self.plain.subtract(rows);
        for &(start, len) in rows.ranges() {
            let end = start + u64::from(len);
            while let Some((&row, _)) = self.by_row.range(start..end).next() {
                self.forget_row(row);
            }
            while let Some(row) = self.sets.first_in(start, end) {
                self.sets.forget(row);
            }
        }
    }

    fn forget_row(&mut self, row: u64) {
        self.sets.forget(row);
        let Some((worker, slot)) = self.by_row.remove(&row) else { return };
        let Some(slots) = self.by_worker.get_mut(&worker) else { return };
        if let Some(listed) = slots.get_mut(&slot) {
            listed.remove(&row);
            if listed.is_empty() {
                slots.remove(&slot);
            }
        }
        if slots.is_empty() {
            self.by_worker.remove(&worker);
        }
    }
}

impl Run {
    /// Adds rows to the returned ones.
    pub(crate) fn bring_back(&mut self, rows: &Rows) {
        self.flight.returned.unite(rows);
        self.flight.avoided.plain.unite(rows);
        self.list_avoided(rows);
    }

    /// Removes rows from the returned ones.
    pub(crate) fn take_out(&mut self, rows: &Rows) {
        self.flight.returned.subtract(rows);
        self.flight.avoided.forget(rows);
    }

    fn list_avoided(&mut self, rows: &Rows) {
        for &(start, len) in rows.ranges() {
            for (row, record) in self.failures.range(start..start + u64::from(len)) {
                if let Some(incident) = record.open_incident() {
                    self.flight.avoided.list(*row, incident);
                }
            }
        }
    }

    /// Builds the lists from the returned rows and their failure records.
    pub(crate) fn derive_avoided(&mut self) {
        self.flight.avoided = Avoided::default();
        let all = self.flight.returned.to_rows();
        self.flight.avoided.plain.unite(&all);
        self.list_avoided(&all);
    }

    /// Takes up to `count` of the returned rows, except those that are kept from the slot.
    pub(crate) fn take_returned_beside(&mut self, count: u32, kept: &KeptRows<'_>) -> Rows {
        let found = self.flight.avoided.find_beside(count, kept).0;
        let mut rows = Rows::default();
        found.into_iter().for_each(|row| rows.push(row, 1));
        self.take_out(&rows);
        rows
    }
}

impl Ledger {
    /// The worker or slot whose failed rows of a run this slot does not get, if another slot fits the run.
    pub(crate) fn avoids<'a>(
        &self,
        run: &Run,
        worker: &'a Worker,
        slot: SlotNo,
    ) -> Option<KeptFrom<'a>> {
        if !self.asks_a_second_slot() {
            None
        } else if self.another_worker_fits(run, worker) {
            Some(KeptFrom::Worker(worker.name()))
        } else if self.another_slot_fits(run, worker, slot) {
            Some(KeptFrom::Slot(worker.name(), slot))
        } else {
            None
        }
    }

    /// Whether a slot does not get the returned rows of a run that it failed last.
    pub(crate) fn is_kept_from_own(&self, run: &Run, worker: &str, slot: SlotNo) -> bool {
        let name = (run.head.namespace.clone(), worker.to_owned());
        let session = self.workers.by_name(&name);
        let worker = session.and_then(|session| self.workers.get(&session));
        worker.is_some_and(|worker| self.avoids(run, worker, slot).is_some())
    }

    /// Whether another slot of the same worker takes work and fits a run.
    fn another_slot_fits(&self, run: &Run, worker: &Worker, slot: SlotNo) -> bool {
        let fits = |(number, other): (usize, &crate::fleet::slot::Slot)| {
            number != usize::from(slot.0)
                && self.index.fits(other.offer_no(), run.no)
                && self.cordon_of(worker, number).is_none()
        };
        worker.is_ready() && worker.slots().iter().enumerate().any(fits)
    }

    /// The pending rows of a run that this slot does not get, if there are some.
    pub(crate) fn kept_from<'a>(
        &self,
        run: &Run,
        worker: &'a Worker,
        slot: SlotNo,
    ) -> Option<KeptRows<'a>> {
        let avoided = &run.flight.avoided;
        let of_worker = KeptFrom::Worker(worker.name());
        if avoided.count_of_one(of_worker) == 0 && !avoided.sets.names(worker.name()) {
            return None;
        }
        let from = self.avoids(run, worker, slot)?;
        let sets = (worker.name(), self.kept_sets(run, (worker, slot), from));
        let kept = KeptRows { from, sets };
        (avoided.count(&kept) > 0).then_some(kept)
    }

    /// The rows among these that a slot does not get, whatever state they are in.
    pub(crate) fn kept_of(&self, slot: SlotRef, no: RunNo, rows: &Rows) -> Rows {
        let mut all = Rows::default();
        let (Some(run), Some(worker)) = (self.runs.get(&no), self.workers.get(&slot.session))
        else {
            return all;
        };
        let is_named = |incident: &Incident| {
            let mut slots = incident.earlier.iter().chain([&incident.at]);
            slots.any(|at| at.worker == worker.name())
        };
        let mut failed = Vec::new();
        for &(start, len) in rows.ranges() {
            for (row, record) in run.failures.range(start..start + u64::from(len)) {
                let incident = record.open_incident();
                failed.extend(incident.filter(|i| is_named(i)).map(|i| (*row, i)));
            }
        }
        if failed.is_empty() {
            return all;
        }
        let Some(kept) = self.avoids(run, worker, slot.slot) else { return all };
        let mut check = self.set_check(run, (worker, slot.slot), kept);
        let mut sets: BTreeMap<FailedSet, bool> = BTreeMap::new();
        for (row, incident) in failed {
            let is_kept = match FailedSet::of(incident) {
                None => kept.is_of(incident),
                Some(set) if sets.len() == SETS_MAX && !sets.contains_key(&set) => {
                    kept.is_of(incident)
                }
                Some(set) => *sets.entry(set).or_insert_with_key(|set| check.keeps(set)),
            };
            if is_kept {
                all.push(row, 1);
            }
        }
        all
    }

    /// Rows outside of bisection groups that a slot may be granted, ignoring caps.
    pub(crate) fn grantable_to(&self, run: &Run, worker: &Worker, slot: SlotNo) -> u64 {
        let kept = self.kept_from(run, worker, slot);
        let kept = kept.map_or(0, |kept| run.flight.avoided.count(&kept));
        run.grantable_beside_groups().saturating_sub(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::failure_record::FailureRecord;
    use crate::batch::incident::EndKind;
    use crate::kernel::id::LedgerMs;

    fn rows_of(from: KeptFrom<'_>) -> KeptRows<'_> {
        KeptRows { from, sets: ("w", KeptSets::default()) }
    }

    /// There are so many rows and workers that this would take minutes if each row cost a visit to each worker's
    /// list.
    #[test]
    fn rows_leave_the_lists_of_their_own_workers() {
        let mut avoided = Avoided::default();
        let rows = 40_000;
        for row in 0..rows {
            let worker = format!("w{}", row % 20_000);
            let at = NamedSlot { worker, slot: SlotNo(0) };
            let until = Some(LedgerMs(1));
            let end = EndKind::RowFailed;
            let earlier = Vec::new();
            avoided.list(row, &Incident { end, at, until, died_alone_at: None, earlier });
        }
        for row in 0..rows - 1 {
            avoided.forget(&Rows::range(row, 1));
        }
        assert_eq!((avoided.by_row.len(), avoided.by_worker.len()), (1, 1));
    }

    /// One worker failed every other row of many, and other workers some of the rest.
    #[test]
    fn taking_rows_past_those_that_a_worker_failed_costs_only_the_taken_rows() {
        let mut run = Run::default();
        let rows = 20_000;
        for row in (0..rows).filter(|row| row % 4 != 1) {
            let worker = if row % 2 == 0 { "w0".to_owned() } else { format!("w{}", row % 40) };
            let at = NamedSlot { worker, slot: SlotNo((row / 4 % 8) as u16) };
            let end = EndKind::RowFailed;
            let (until, earlier) = (Some(LedgerMs(1)), Vec::new());
            let incident = Incident { end, at, until, died_alone_at: None, earlier };
            let record = FailureRecord { incident: Some(incident), ..FailureRecord::default() };
            run.failures.insert(row, record);
        }
        run.bring_back(&Rows::range(0, rows as u32));
        let mut left = rows / 2;
        for kept in [KeptFrom::Worker("w0"), KeptFrom::Slot("w0", SlotNo(3))].iter().cycle() {
            let want = 16;
            let (found, looked_at) = run.flight.avoided.find_beside(want, &rows_of(*kept));
            assert!(looked_at <= 2 * found.len() + 2, "{looked_at} for {}", found.len());
            if matches!(kept, KeptFrom::Slot(..)) {
                assert_eq!(found.len(), want as usize, "other slots of the worker failed many");
                continue;
            }
            let taken = run.take_returned_beside(want, &rows_of(*kept));
            assert_eq!(taken.iter().collect::<BTreeSet<_>>(), found);
            assert!(taken.iter().all(|row| row % 2 == 1), "others are kept: {taken}");
            left -= taken.len();
            if left == 0 {
                break;
            }
        }
        let kept = run.flight.avoided.count_of_one(KeptFrom::Worker("w0"));
        assert_eq!((run.flight.returned.len(), kept), (rows / 2, rows / 2));
        assert!(run.take_returned_beside(16, &rows_of(KeptFrom::Worker("w0"))).is_empty());
        let now = run.flight.avoided.clone();
        run.derive_avoided();
        assert_eq!(now, run.flight.avoided);
    }
}
