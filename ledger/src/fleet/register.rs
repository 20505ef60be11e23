//! Registers a worker, or resumes its session.
//!
//! *Invariant:* one live registration per name, and one live process per registration. Whatever happens to a session,
//! each of its rows stays its own or becomes pending; none is lost in between. If a new process has
//! fewer slots, the rows of a missing slot move to its first one, which reports their results.

use crate::fleet::slot::Slot;
use crate::fleet::worker::{SessionEnd, Worker, WorkerState};
use crate::kernel::id::{Attempt, RunNo, SessionId};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{HeldRows, Registration};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject, rows_of};
use std::collections::BTreeMap;

/// The operation, which is larger than most others.
pub type Register = Box<Registration>;

impl Operation for Registration {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // All runs of a worker.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        // The number of workers is bounded, and on a full disk a worker still reports results.
        false
    }

    fn rows(&self) -> u64 {
        // A worker that comes back gets its rows again, or returns them.
        rows_of(&self.held)
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.register(ctx, self)
    }
}

impl Ledger {
    pub(crate) fn register(
        &mut self,
        ctx: &Context,
        mut registration: Registration,
    ) -> Result<Reply, Rejection> {
        self.check_registration(&registration)?;
        let key = (registration.namespace.clone(), registration.name.clone());
        let holder = self.workers.by_name(&key);
        self.check_room_of_fleet(holder, registration.slots.len())?;
        if let Some(session) = holder {
            let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
            let other = worker.instance != registration.instance;
            // Even if it presents the session: then it runs in a copy of the other process's directory.
            if registration.holder_alive && other {
                let (name, address) = (worker.name.clone(), worker.address.clone());
                return Err(Rejection::WorkerNameTaken { name, address });
            }
            if other {
                let Registration { started, held, .. } = &registration;
                self.worker_crashed(ctx, session, started, held);
            }
            if registration.resume == Some(session) {
                return Ok(self.resume(ctx, session, registration));
            }
            self.end_session(ctx, session, SessionEnd::Lost);
        }
        let session = ctx.session();
        let dropped = self.dropped_by(&registration);
        let held = std::mem::take(&mut registration.held);
        self.workers.add(new_worker(session, registration, ctx.wall_ms));
        self.index_slots(session);
        self.emit(ctx, EventKind::WorkerRegistered { session, resumed: false });
        self.adopt_held(ctx, session, &held);
        Ok(Reply::Registered { session, resumed: false, dropped })
    }

    /// Refuses a registration that exceeds the limit of workers or of slots.
    fn check_room_of_fleet(
        &self,
        holder: Option<SessionId>,
        slots: usize,
    ) -> Result<(), Rejection> {
        let many = self.meta.version() >= limits::FLEET_VERSION;
        let over = |what: &str, max: usize| Rejection::Limit { what: what.into(), max: max as u64 };
        let max = if many { limits::WORKERS_MAX } else { limits::WORKERS_BEFORE_MAX };
        if holder.is_none() && self.workers.len() >= max {
            return Err(over("workers", max));
        }
        // Its present slots do not count, because the new ones replace them.
        let own =
            holder.and_then(|session| self.workers.get(&session)).map_or(0, |w| w.slots.len());
        let max = limits::ALL_SLOTS_MAX;
        if many && slots > own && self.workers.size().slots - own + slots > max {
            return Err(over("slots", max));
        }
        Ok(())
    }

    fn check_registration(&self, registration: &Registration) -> Result<(), Rejection> {
        names::check_name("worker's", &registration.name)?;
        if !self.namespaces.contains_key(&registration.namespace) {
            return Err(Rejection::NamespaceUnknown(registration.namespace.clone()));
        }
        if registration.slots.is_empty() || registration.slots.len() > limits::SLOTS_MAX {
            let max = limits::SLOTS_MAX;
            return Err(Rejection::Invalid(format!("a worker has 1 to {max} slots")));
        }
        registration.slots.iter().try_for_each(|s| s.check())?;
        names::check_labels(&registration.versions)?;
        let texts = registration.stores.iter().chain([&registration.address]);
        if texts.into_iter().any(|t| t.len() > limits::TEXT_BYTES_MAX)
            || registration.stores.len() > limits::LABELS_MAX
        {
            return Err(Rejection::Invalid("too many stores, or a text is too long".into()));
        }
        Ok(())
    }

    /// The rows that the worker lists and may not decide.
    fn dropped_by(&self, registration: &Registration) -> Vec<HeldRows> {
        let Registration { namespace, held, .. } = registration;
        held.iter().filter_map(|set| self.lost_by_worker(namespace, set)).collect()
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
        let dropped = self.dropped_by(&registration);
        self.unindex_slots(session);
        self.workers.change(session, |worker| {
            let same_process = worker.instance == registration.instance;
            worker.instance = registration.instance;
            worker.address = registration.address;
            worker.drain = worker.drain.filter(|_| same_process);
            worker.state = worker.state_when_heard();
            worker.stores = registration.stores;
            worker.versions = registration.versions;
            worker.slots.resize_with(registration.slots.len(), Slot::default);
            for (slot, offer) in worker.slots.iter_mut().zip(registration.slots) {
                slot.offer = offer;
                if !same_process {
                    (slot.last_pull, slot.last_grant) = (0, Vec::new());
                    slot.last_death = 0;
                    slot.forget_incidents();
                }
            }
        });
        self.index_slots(session);
        self.unreported_starts.forget(session);
        self.forget_lost_grants(session);
        Reply::Registered { session, resumed: true, dropped }
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
        free: BTreeMap::new(),
        stores: registration.stores,
        versions: registration.versions,
        since_wall_ms: wall_ms,
    }
}
