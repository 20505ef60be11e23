//! How workers register, fall silent, return and leave.
//!
//! *Invariant:* one live registration per name, and one live process per registration. Whatever happens to a session,
//! each of its rows stays its own or becomes pending; none is lost in between. What a process had in a slot that its
//! successor lacks goes to the successor's first slot, because its results are reported there.

use crate::batch::spec;
use crate::batch::store_access::StoreAccess;
use crate::fleet::worker::{SessionEnd, Slot, Worker, WorkerState};
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SessionId};
use crate::kernel::limits;
use crate::kernel::looks::look;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{HeldRows, Registration, slot_ref};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;

impl Ledger {
    pub(crate) fn register(
        &mut self,
        ctx: &Context,
        mut registration: Registration,
    ) -> Result<Reply, Rejection> {
        self.check_registration(&registration)?;
        let key = (registration.namespace.clone(), registration.name.clone());
        let holder = self.worker_names.get(&key).copied();
        self.check_room_of_fleet(holder, registration.slots.len())?;
        if let Some(session) = holder {
            let worker = &self.workers[&session];
            let other = worker.instance != registration.instance;
            // This includes a process that knows the session: it has a copy of the other's directory.
            if registration.holder_alive && other {
                let (name, address) = (worker.name.clone(), worker.address.clone());
                return Err(Rejection::WorkerNameTaken { name, address });
            }
            if other {
                let Registration { started, held, .. } = &registration;
                self.ended_abruptly(ctx, session, started, held);
            }
            if registration.resume == Some(session) {
                return Ok(self.resume(ctx, session, registration));
            }
            self.end_session(ctx, session, SessionEnd::Lost);
        }
        let session = ctx.session();
        let dropped = registration.held.iter().filter_map(|h| self.lost_of(h)).collect();
        self.worker_names.insert(key, session);
        let held = std::mem::take(&mut registration.held);
        self.dirty.workers.insert(session);
        let worker = new_worker(session, registration, ctx.wall_ms);
        self.fleet.joined(&worker);
        self.workers.insert(session, worker);
        self.index_slots(session);
        self.emit(ctx, EventKind::WorkerRegistered { session, resumed: false });
        self.adopt_held(ctx, session, &held);
        Ok(Reply::Registered { session, resumed: false, dropped })
    }

    /// Refuses one worker, or one slot, too many.
    fn check_room_of_fleet(
        &self,
        holder: Option<SessionId>,
        slots: usize,
    ) -> Result<(), Rejection> {
        let many = self.meta.version >= limits::FLEET_VERSION;
        let over = |what: &str, max: usize| Rejection::Limit { what: what.into(), max: max as u64 };
        let max = if many { limits::WORKERS_MAX } else { limits::WORKERS_BEFORE_MAX };
        if holder.is_none() && self.workers.len() >= max {
            return Err(over("workers", max));
        }
        // Its present slots make room for those that it registers with.
        let own =
            holder.and_then(|session| self.workers.get(&session)).map_or(0, |w| w.slots.len());
        let max = limits::ALL_SLOTS_MAX;
        if many && slots > own && self.fleet.slots - own + slots > max {
            return Err(over("slots", max));
        }
        Ok(())
    }

    fn check_registration(&self, registration: &Registration) -> Result<(), Rejection> {
        spec::check_name("worker's", &registration.name)?;
        if !self.namespaces.contains_key(&registration.namespace) {
            return Err(Rejection::NamespaceUnknown(registration.namespace.clone()));
        }
        if registration.slots.is_empty() || registration.slots.len() > limits::SLOTS_MAX {
            let max = limits::SLOTS_MAX;
            return Err(Rejection::Invalid(format!("a worker has 1 to {max} slots")));
        }
        registration.slots.iter().try_for_each(|s| s.check())?;
        spec::check_labels(&registration.versions)?;
        let texts = registration.stores.iter().chain([&registration.address]);
        if texts.into_iter().any(|t| t.len() > limits::TEXT_BYTES_MAX)
            || registration.stores.len() > limits::LABELS_MAX
        {
            return Err(Rejection::Invalid("too many stores, or a text is too long".into()));
        }
        Ok(())
    }

    /// The same worker is back: it keeps what it still holds, and returns the rest.
    fn resume(&mut self, ctx: &Context, session: SessionId, registration: Registration) -> Reply {
        self.emit(ctx, EventKind::WorkerRegistered { session, resumed: true });
        self.adopt_lapsed(ctx, session);
        let live: Vec<(RunNo, Attempt)> = self.held_by(session);
        for (no, attempt) in live {
            let kept = registration
                .held
                .iter()
                .filter(|h| h.run == no && h.attempt == attempt)
                .fold(Rows::default(), |mut all, h| {
                    all.unite(&h.rows);
                    all
                });
            let Some((slot, rows)) = self.runs.get(&no).and_then(|r| r.holding(attempt)) else {
                continue;
            };
            let slot_gone = usize::from(slot.slot.0) >= registration.slots.len();
            let moves = slot_gone && self.may_join_first(session, no, attempt);
            let lost = if slot_gone && !moves { rows } else { rows.partition(&kept).1 };
            self.give_back(no, attempt, &lost);
            self.emit_returned(ctx, slot, (no, attempt), &lost, "resumed");
            if moves {
                self.move_to_first(ctx, no, attempt);
            }
        }
        let dropped = registration.held.iter().filter_map(|h| self.lost_of(h)).collect();
        self.unindex_slots(session);
        if let Some(worker) = self.workers.get_mut(&session) {
            self.fleet.left(worker);
            let same_process = worker.instance == registration.instance;
            worker.instance = registration.instance;
            worker.address = registration.address;
            worker.drain = worker.drain.filter(|_| same_process);
            worker.state = worker.state_when_heard();
            worker.stores = registration.stores;
            worker.versions = registration.versions;
            self.dirty.mark_slots(session, worker.slots.len());
            worker.slots.resize_with(registration.slots.len(), Slot::default);
            for (slot, offer) in worker.slots.iter_mut().zip(registration.slots) {
                slot.offer = offer;
                if !same_process {
                    (slot.last_pull, slot.last_grant) = (0, Vec::new());
                    slot.last_death = 0;
                    slot.forget_incidents();
                }
            }
            self.fleet.joined(worker);
        }
        self.index_slots(session);
        self.forget_unheard(session);
        self.dirty.workers.insert(session);
        self.forget_lost_grants(session);
        Reply::Registered { session, resumed: true, dropped }
    }

    pub(crate) fn deregister(
        &mut self,
        ctx: &Context,
        session: SessionId,
    ) -> Result<Reply, Rejection> {
        if !self.workers.contains_key(&session) {
            return Err(Rejection::SessionUnknown);
        }
        self.end_session(ctx, session, SessionEnd::Left);
        Ok(Reply::Ok)
    }

    pub(crate) fn suspect(
        &mut self,
        ctx: &Context,
        session: SessionId,
        started: &[HeldRows],
        grace_ms: u64,
    ) -> Result<Reply, Rejection> {
        let until = LedgerMs(self.meta.clock.0.saturating_add(grace_ms));
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if matches!(worker.state, WorkerState::Suspect { .. }) {
            return Ok(Reply::Ok);
        }
        self.fleet.moved(worker, WorkerState::Suspect { until, grace_ms });
        self.dirty.workers.insert(session);
        self.emit(ctx, EventKind::WorkerSuspect { session });
        #[cfg(feature = "seeded-bugs")]
        self.return_done(session);
        for (no, attempt) in self.held_by(session) {
            let running = started.iter().filter(|h| h.run == no && h.attempt == attempt).fold(
                Rows::default(),
                |mut all, h| {
                    all.unite(&h.rows);
                    all
                },
            );
            let Some((slot, rows)) = self.runs.get(&no).and_then(|r| r.holding(attempt)) else {
                continue;
            };
            // A trial starts as soon as it arrives, because its slot has nothing else.
            let grant = self.runs.get(&no).and_then(|run| run.flight.grants.get(&attempt));
            if grant.is_some_and(|grant| grant.trial.is_some()) {
                continue;
            }
            let idle = rows.partition(&running).1;
            self.lapse_rows(no, attempt, &idle);
            self.emit_returned(ctx, slot, (no, attempt), &idle, "silent");
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn unsuspect(
        &mut self,
        ctx: &Context,
        session: SessionId,
    ) -> Result<Reply, Rejection> {
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if matches!(worker.state, WorkerState::Suspect { .. }) {
            let heard = worker.state_when_heard();
            self.fleet.moved(worker, heard);
            self.dirty.workers.insert(session);
            self.forget_unheard(session);
            self.emit(ctx, EventKind::WorkerBack { session });
            self.adopt_lapsed(ctx, session);
            self.forget_lost_grants(session);
        }
        Ok(Reply::Ok)
    }

    /// A repeated request can only bring the deadline nearer.
    pub(crate) fn drain(
        &mut self,
        ctx: &Context,
        session: SessionId,
        deadline_ms: u64,
    ) -> Result<Reply, Rejection> {
        let asked =
            (deadline_ms > 0).then(|| LedgerMs(self.meta.clock.0.saturating_add(deadline_ms)));
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        let asked_before = worker.drain.is_some();
        let drain = worker.drain.get_or_insert_default();
        drain.until = drain.until.into_iter().chain(asked).min();
        if worker.state == WorkerState::Ready {
            self.fleet.moved(worker, WorkerState::Draining); // A suspect one stays so, or it never ended.
        }
        self.dirty.workers.insert(session);
        if !asked_before {
            self.emit(ctx, EventKind::WorkerDraining { session });
        }
        Ok(Reply::Ok)
    }

    /// Ends a registration: its leases lapse.
    pub(crate) fn end_session(&mut self, ctx: &Context, session: SessionId, end: SessionEnd) {
        for (no, attempt) in self.held_by(session) {
            self.lapse(ctx, no, attempt, "lost");
        }
        #[cfg(feature = "seeded-bugs")]
        self.return_done(session);
        self.forget_unheard(session);
        self.unindex_slots(session);
        if let Some(worker) = self.workers.get(&session) {
            self.reshaped.insert(worker.namespace.clone());
        }
        if let Some(worker) = self.workers.remove(&session) {
            self.fleet.left(&worker);
            self.dirty.mark_slots(session, worker.slots.len());
            let name = (worker.namespace, worker.name);
            self.worker_names.remove(&name);
            let kind = match end {
                SessionEnd::Left => EventKind::WorkerDrained { session, name },
                SessionEnd::Lost => EventKind::WorkerLost { session, name },
            };
            self.emit(ctx, kind);
        }
        self.dirty.workers.insert(session);
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
        let stores = StoreAccess::new(&worker.stores, self.meta.version);
        for (number, slot) in worker.slots.iter_mut().enumerate() {
            let at = slot_ref(session, number);
            slot.offer_no = self.index.add_slot(&worker.namespace, &slot.offer, &stores, at);
            self.incident_slots.add(at, &slot.incidents);
        }
    }

    /// Removes them, before they change or disappear.
    pub(crate) fn unindex_slots(&mut self, session: SessionId) {
        let Some(worker) = self.workers.get_mut(&session) else { return };
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
        self.workers.values().flat_map(|w| {
            let slots = w.slots.iter().enumerate().inspect(|_| look());
            slots.map(move |(i, slot)| (w, slot_ref(w.id, i), slot))
        })
    }
}

fn new_worker(id: SessionId, registration: Registration, wall_ms: u64) -> Worker {
    let slots = registration.slots.into_iter();
    Worker {
        id,
        namespace: registration.namespace,
        name: registration.name,
        instance: registration.instance,
        address: registration.address,
        state: WorkerState::Ready,
        drain: None,
        slots: slots.map(|offer| Slot { offer, ..Slot::default() }).collect(),
        stores: registration.stores,
        versions: registration.versions,
        since_wall_ms: wall_ms,
    }
}
