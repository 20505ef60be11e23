//! Workers' sessions: how one ends, and the indexes of its slots.
//!
//! *Invariant:* whatever happens to a session, each of its rows stays its own or becomes pending; none is lost in
//! between.

use crate::batch::store_access::StoreAccess;
use crate::fleet::slot::Slot;
use crate::fleet::worker::{SessionEnd, Worker};
use crate::kernel::id::SessionId;
use crate::machine::apply::Context;
use crate::machine::command::slot_ref;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;

impl Ledger {
    /// Ends a registration: its leases lapse.
    pub(crate) fn end_session(&mut self, ctx: &Context, session: SessionId, end: SessionEnd) {
        for (no, attempt) in self.held_by(session) {
            self.lapse(ctx, no, attempt, "lost");
        }
        #[cfg(feature = "seeded-bugs")]
        self.return_done(session);
        self.unreported_starts.forget(session);
        self.unindex_slots(session);
        if let Some(worker) = self.workers.get(&session) {
            self.turn_changes.reshape(&worker.namespace);
        }
        if let Some(worker) = self.workers.remove(session) {
            let name = (worker.namespace, worker.name);
            let kind = match end {
                SessionEnd::Left => EventKind::WorkerDrained { session, name },
                SessionEnd::Lost => EventKind::WorkerLost { session, name },
            };
            self.emit(ctx, kind);
        }
    }

    /// How many workers are registered.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// How many slots a worker has.
    pub fn slots_of(&self, session: SessionId) -> Option<usize> {
        self.workers.get(&session).map(|worker| worker.slots.len())
    }

    /// Adds a worker's slots to the indexes of offers and of incidents.
    pub(crate) fn index_slots(&mut self, session: SessionId) {
        let Some(worker) = self.workers.get_mut(&session) else { return };
        let stores = StoreAccess::new(&worker.stores, self.meta.version());
        for (number, slot) in worker.slots.iter_mut().enumerate() {
            let at = slot_ref(session, number);
            slot.offer_no = self.index.add_slot(&worker.namespace, &slot.offer, &stores, at);
            self.incident_slots.add(at, &slot.incidents);
        }
    }

    /// Removes them, before they change or disappear.
    pub(crate) fn unindex_slots(&mut self, session: SessionId) {
        let Some(worker) = self.workers.get_mut(&session) else { return };
        worker.free.clear();
        for (number, slot) in worker.slots.iter_mut().enumerate() {
            if let Some(was) = slot.counted.take() {
                let list = (worker.namespace.as_str(), slot.offer.models.as_slice());
                self.tally.count_slot(list, Some(was), None);
                self.index.count_free(slot.offer_no, was.free, false);
            }
            let at = slot_ref(session, number);
            self.index.remove_slot(slot.offer_no, at);
            self.incident_slots.remove(at, &slot.incidents);
        }
    }

    /// The slots of all workers, for invariants and views.
    pub(crate) fn slots(
        &self,
    ) -> impl Iterator<Item = (&Worker, crate::kernel::id::SlotRef, &Slot)> {
        self.workers.slots()
    }
}
