//! Brings derived indexes up to date with the records that a command has changed.
//!
//! *Invariant:* after each command, and before each operation that a quota may refuse, the deadlines
//! (`deadline_queue.rs`) and the sums (`tally.rs`) are those of the records. The sums of slots also are before the
//! ledger cordons a slot (`cordon_limit.rs`), and before a slot gets rows or a store refuses it, because these depend on
//! whether another worker fits (`store_refusal.rs`).
//! Every change of a record marks it for the image (`dirty_set.rs`). The same marks say here which entries to rebuild,
//! so a command costs what it changed, and each record once. A run costs its bisection groups too, as it does when a
//! slot asks for them.
//! Absent: indexes that must be right within a command, such as those of turns and of waiting rows.

use crate::batch::eligibility::OfferNo;
use crate::batch::incident_slots::IncidentSlots;
use crate::batch::run::Run;
use crate::batch::tally::{SlotUse, Tally};
use crate::fleet::worker::Worker;
use crate::kernel::deadline_queue::Deadlines;
use crate::kernel::id::{RunNo, SessionId, SlotRef};
use crate::kernel::visits::count_visit;
use crate::machine::command::slot_ref;
use crate::machine::ledger::Ledger;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

impl Ledger {
    /// Must be called after each command, and after any other change of records.
    pub(crate) fn settle_indexes(&mut self) {
        let runs = self.runs.take_stale();
        runs.iter().for_each(|no| self.index_run(*no));
        self.runs.reuse(runs);
        self.settle_slots();
    }

    /// The same for workers and their slots only, for an operation that reads their sums.
    pub(crate) fn settle_slots(&mut self) {
        let sessions = self.workers.take_stale();
        sessions.iter().for_each(|session| self.index_worker(*session));
        self.workers.reuse(sessions);
        let slots = self.workers.take_stale_slots();
        slots.iter().for_each(|slot| self.count_slot(*slot));
        self.workers.reuse_slots(slots);
    }

    /// Builds the indexes of a state that was loaded.
    pub(crate) fn derive_indexes(&mut self) {
        self.runs.numbers().into_iter().for_each(|no| self.index_run(no));
        self.workers.sessions().into_iter().for_each(|session| self.index_worker(session));
    }

    fn index_run(&mut self, no: RunNo) {
        let run = self.runs.get(&no);
        self.deadlines.run_ends(&no, run.and_then(Run::ends_at));
        self.deadlines.exclusion_ends(&no, run.and_then(Run::excluded_until));
        self.deadlines.oldest_attempt_ends(&no, run.and_then(Run::attempt_ends));
        self.tally.count_run(no, run);
    }

    fn index_worker(&mut self, session: SessionId) {
        let worker = self.workers.get(&session);
        self.deadlines.session_ends(&session, worker.and_then(Worker::ends));
        let slots = worker.map_or(0, |worker| worker.slots().len());
        (0..slots).for_each(|number| self.count_slot(slot_ref(session, number)));
    }

    fn count_slot(&mut self, at: SlotRef) {
        let number = usize::from(at.slot.0);
        let Some(worker) = self.workers.get(&at.session) else { return };
        let Some(is) = self.slot_use(worker, number) else { return };
        let Some(worker) = self.workers.get_mut(&at.session) else { return };
        let Some(was) = worker.slot_mut(number).map(|slot| slot.count_as(is)) else { return };
        let Some(slot) = worker.slots().get(number).filter(|_| was != Some(is)) else { return };
        let list = (worker.namespace(), slot.offer().models.as_slice());
        self.tally.count_slot(list, was, Some(is));
        let (offer, was_free) = (slot.offer_no(), was.is_some_and(|was| was.free));
        worker.count_free(offer, was_free, is.free);
        self.index.count_free(offer, was_free, is.free);
    }

    fn slot_use(&self, worker: &Worker, number: usize) -> Option<SlotUse> {
        count_visit();
        let slot = worker.slots().get(number)?;
        let ready = slot.offer().ineligible.is_empty() && worker.is_ready();
        let works = ready && self.takes_work(worker, number);
        let idle = works && slot.rows_held() == 0;
        let cordoned = ready && slot.cordon().is_some();
        let free = works || (ready && self.cordon_of(worker, number).is_none());
        Some(SlotUse { works, idle, ready, cordoned, free })
    }

    /// Compares the indexes with ones that are rebuilt from the records.
    pub(crate) fn check_indexes(&self) -> Result<(), String> {
        let (mut deadlines, mut tally) = (Deadlines::default(), Tally::default());
        let mut free: BTreeMap<OfferNo, usize> = BTreeMap::new();
        let mut incident_slots = IncidentSlots::default();
        for (no, run) in self.runs.iter() {
            deadlines.run_ends(no, run.ends_at());
            deadlines.exclusion_ends(no, run.excluded_until());
            deadlines.oldest_attempt_ends(no, run.attempt_ends());
            tally.count_run(*no, Some(run));
        }
        for worker in self.workers.values() {
            let session = worker.id();
            deadlines.session_ends(&session, worker.ends());
            let mut own_free: BTreeMap<OfferNo, usize> = BTreeMap::new();
            for (number, slot) in worker.slots().iter().enumerate() {
                let counted = self.slot_use(worker, number);
                if slot.counted() != counted {
                    let at = slot_ref(session, number);
                    return Err(format!("{at:?} counts as {:?}, is {counted:?}", slot.counted()));
                }
                let list = (worker.namespace(), slot.offer().models.as_slice());
                tally.count_slot(list, None, counted);
                incident_slots.add(slot_ref(session, number), slot.incidents());
                if counted.is_some_and(|counted| counted.free) {
                    *own_free.entry(slot.offer_no()).or_default() += 1;
                }
            }
            if own_free != *worker.free() {
                let counted = worker.free();
                return Err(format!("{session} counts {counted:?} as free, not {own_free:?}"));
            }
            for (offer, slots) in own_free {
                *free.entry(offer).or_default() += slots;
            }
        }
        self.index.check_free(&free)?;
        if incident_slots != self.incident_slots {
            return Err("the index of slots by the rows of their incidents differs".into());
        }
        if deadlines != self.deadlines {
            return Err(format!("deadlines are {deadlines:?}, not {:?}", self.deadlines));
        }
        match tally == self.tally {
            true => Ok(()),
            false => Err(format!("sums are {tally:?}, not {:?}", self.tally)),
        }
    }
}
