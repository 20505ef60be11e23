//! All registered workers, by session and by name, and which of their records differ from the image.
//!
//! *Invariant:* every worker is found by its name and counted in the size of the fleet. So only this file adds and
//! removes workers and changes their states, names and numbers of slots.
//! Absent: the indexes of slots by offer and by incident, which runs share (`session.rs`).

mod image;

use crate::fleet::size::Fleet;
use crate::fleet::slot::Slot;
use crate::fleet::worker::{Worker, WorkerState};
use crate::kernel::id::{LedgerMs, SessionId, SlotNo, SlotRef};
use crate::kernel::visits::count_visit;
use crate::machine::command::slot_ref;
use image::DirtyWorkers;
use std::collections::BTreeMap;

/// All registered workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workers {
    by_session: BTreeMap<SessionId, Worker>,
    // Derived.
    names: BTreeMap<(String, String), SessionId>,
    size: Fleet,
    dirty: DirtyWorkers,
}

impl Workers {
    pub(crate) fn get(&self, session: &SessionId) -> Option<&Worker> {
        self.by_session.get(session)
    }

    /// For changes of slots. Mark the slots that have changed.
    pub(crate) fn get_mut(&mut self, session: &SessionId) -> Option<&mut Worker> {
        self.by_session.get_mut(session)
    }

    pub(crate) fn contains_key(&self, session: &SessionId) -> bool {
        self.by_session.contains_key(session)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_session.len()
    }

    /// All of them, in the order of registration.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Worker> {
        self.by_session.values()
    }

    /// All sessions, in the order of registration.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.by_session.keys().copied().collect()
    }

    /// The session of the worker with this namespace and name.
    pub(crate) fn by_name(&self, name: &(String, String)) -> Option<SessionId> {
        self.names.get(name).copied()
    }

    /// How many there are, by state, and their slots.
    pub(crate) fn size(&self) -> Fleet {
        self.size
    }

    pub(crate) fn slot(&self, at: SlotRef) -> Option<&Slot> {
        self.by_session.get(&at.session)?.slots.get(usize::from(at.slot.0))
    }

    /// A slot, for a change.
    pub(crate) fn slot_mut(&mut self, at: SlotRef) -> Option<&mut Slot> {
        let worker = self.by_session.get_mut(&at.session)?;
        self.dirty.slots.insert(at);
        worker.slots.get_mut(usize::from(at.slot.0))
    }

    /// The slots of all workers, for invariants and views.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&Worker, SlotRef, &Slot)> {
        self.by_session.values().flat_map(|w| {
            let slots = w.slots.iter().enumerate().inspect(|_| count_visit());
            slots.map(move |(i, slot)| (w, slot_ref(w.id, i), slot))
        })
    }

    /// Adds a worker. No other one may have its name.
    pub(super) fn add(&mut self, worker: Worker) {
        self.size.joined(&worker);
        self.names.insert((worker.namespace.clone(), worker.name.clone()), worker.id);
        self.dirty.workers.insert(worker.id);
        self.by_session.insert(worker.id, worker);
    }

    pub(super) fn remove(&mut self, session: SessionId) -> Option<Worker> {
        self.dirty.workers.insert(session);
        let worker = self.by_session.remove(&session)?;
        self.size.left(&worker);
        self.names.remove(&(worker.namespace.clone(), worker.name.clone()));
        self.mark_slots(session, worker.slots.len());
        Some(worker)
    }

    /// Changes a worker and its slots as a whole.
    pub(super) fn change(&mut self, session: SessionId, act: impl FnOnce(&mut Worker)) {
        let Some(worker) = self.by_session.get_mut(&session) else { return };
        self.size.left(worker);
        let slots = worker.slots.len();
        act(worker);
        self.size.joined(worker);
        self.dirty.workers.insert(session);
        self.mark_slots(session, slots);
    }

    /// A worker is in another state from now on.
    pub(super) fn set_state(&mut self, session: SessionId, state: WorkerState) {
        let Some(worker) = self.by_session.get_mut(&session) else { return };
        self.size.moved(worker, state);
        self.dirty.workers.insert(session);
    }

    /// Gives every suspect session its full grace time again, because no leader listened for a while.
    pub(crate) fn listen_anew(&mut self, now: LedgerMs) {
        for worker in self.by_session.values_mut() {
            if let WorkerState::Suspect { until, grace_ms } = &mut worker.state {
                *until = LedgerMs(now.0.saturating_add(*grace_ms));
                self.dirty.workers.insert(worker.id);
            }
        }
    }

    /// A worker has changed.
    pub(super) fn mark(&mut self, session: SessionId) {
        self.dirty.workers.insert(session);
    }

    /// A slot has changed.
    pub(crate) fn mark_slot(&mut self, at: SlotRef) {
        self.dirty.slots.insert(at);
    }

    /// The slots of a worker with this many have changed.
    pub(super) fn mark_slots(&mut self, session: SessionId, slots: usize) {
        let slots = (0..slots).map(|slot| SlotRef { session, slot: SlotNo(slot as u16) });
        self.dirty.slots.extend(slots);
    }

    /// The index entries of a worker are stale, although it has not changed.
    pub(crate) fn touch(&mut self, session: SessionId) {
        self.dirty.workers.touch(session);
    }

    /// Takes the workers whose index entries are stale. Return the list with [`Workers::reuse`].
    pub(crate) fn take_stale(&mut self) -> Vec<SessionId> {
        self.dirty.workers.take_stale()
    }

    /// Keeps the memory of a list.
    pub(crate) fn reuse(&mut self, stale: Vec<SessionId>) {
        self.dirty.workers.reuse(stale);
    }

    /// As [`Workers::take_stale`], for slots.
    pub(crate) fn take_stale_slots(&mut self) -> Vec<SlotRef> {
        self.dirty.slots.take_stale()
    }

    /// As [`Workers::reuse`], for slots.
    pub(crate) fn reuse_slots(&mut self, stale: Vec<SlotRef>) {
        self.dirty.slots.reuse(stale);
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (id, worker) in &self.by_session {
            self.names.insert((worker.namespace.clone(), worker.name.clone()), *id);
            self.size.joined(worker);
        }
    }

    /// Checks the invariants of workers without their slots.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (counted, size) = (self.size, Fleet::of(self.by_session.values()));
        if size != counted {
            return Err(format!("the fleet is {size:?}, counted as {counted:?}"));
        }
        let named = |(id, worker): (&SessionId, &Worker)| {
            ((worker.namespace.clone(), worker.name.clone()), *id)
        };
        if !self.by_session.iter().map(named).collect::<BTreeMap<_, _>>().eq(&self.names) {
            return Err("the index of workers' names differs".into());
        }
        for worker in self.by_session.values() {
            let suspect = matches!(worker.state, WorkerState::Suspect { .. });
            if !suspect && worker.state != worker.state_when_heard() {
                let (id, state, drain) = (worker.id, worker.state, worker.drain);
                return Err(format!("worker {id} is {state:?}, its drain {drain:?}"));
            }
        }
        Ok(())
    }
}
