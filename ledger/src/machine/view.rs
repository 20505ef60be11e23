//! What services may read from the state: small copies, never references into it.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to what it returns.

pub use crate::batch::blocked_runs::Blocked;
pub use crate::batch::failure_record::{DoneTry, FailedTry, FailureRecord, Ruling, Strikes};
pub use crate::batch::flight_view::{BisectionGroupView, FlightView};
pub use crate::batch::incident::{EndKind, Incident, NamedSlot};
pub use crate::batch::item_view::{AvoidedSlots, ItemPlace, ItemState, ItemView};
pub use crate::batch::run::{Counts, RunState};
pub use crate::batch::run_view::{RunView, SegmentView};
use crate::batch::spec::SlotOffer;
pub use crate::fleet::pool_view::Pool;
pub use crate::fleet::size::Fleet;
use crate::fleet::slot::Slot;
use crate::fleet::worker::Worker;
pub use crate::fleet::worker::{Drain, WorkerState};
use crate::kernel::id::{Attempt, RunNo, SessionId, SlotRef};
use crate::kernel::limits;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use std::collections::BTreeMap;

/// A slot at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Its offer.
    pub offer: SlotOffer,
    /// Rows that it holds.
    pub rows_held: u64,
    /// Rows that it has finished in this session.
    pub rows_done: u64,
    /// Deaths of its engine in this session; below cluster version 3 without those in trials.
    pub deaths: u64,
    /// Why it gets no work; `None` if it gets work.
    pub cordon: Option<String>,
    /// Whether it holds a trial, and so gets nothing else.
    pub in_trial: bool,
}

/// A worker at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Its session.
    pub session: SessionId,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The process that it is.
    pub instance: u64,
    /// Its address, informational only.
    pub address: String,
    /// Its state.
    pub state: WorkerState,
    /// Its drain, if it was asked to drain, suspect or not.
    pub drain: Option<Drain>,
    /// Its slots.
    pub slots: Vec<SlotView>,
    /// Versions of its parts.
    pub versions: BTreeMap<String, String>,
}

impl Ledger {
    /// The holder of a client session, as `role/name`; `None` if there is no such session.
    pub fn client_holder(&self, session: SessionId) -> Option<&str> {
        self.clients.holder(session)
    }

    /// One worker.
    pub fn worker_view(&self, session: SessionId) -> Option<WorkerView> {
        let worker = self.workers.get(&session)?;
        Some(WorkerView {
            session,
            namespace: worker.namespace().to_owned(),
            name: worker.name().to_owned(),
            instance: worker.instance(),
            address: worker.address().to_owned(),
            state: worker.state(),
            drain: worker.drain(),
            slots: worker
                .slots()
                .iter()
                .enumerate()
                .map(|(i, s)| SlotView {
                    offer: s.offer().clone(),
                    rows_held: s.rows_held(),
                    rows_done: s.rows_done(),
                    deaths: s.deaths(),
                    cordon: self.cordon_of(worker, i).map(str::to_owned),
                    in_trial: s.trial().is_some(),
                })
                .collect(),
            versions: worker.versions().clone(),
        })
    }

    /// Counts of workers by state, and of their slots. Takes the same time for any fleet.
    pub fn fleet(&self) -> Fleet {
        self.workers.size()
    }

    /// The state of a worker.
    pub fn worker_state(&self, session: SessionId) -> Option<WorkerState> {
        self.workers.get(&session).map(Worker::state)
    }

    /// A worker's drain, with its deadline.
    pub fn worker_drain(&self, session: SessionId) -> Option<Drain> {
        self.workers.get(&session)?.drain()
    }

    /// The process that registered a session last.
    pub fn worker_instance(&self, session: SessionId) -> Option<u64> {
        self.workers.get(&session).map(Worker::instance)
    }

    /// Namespace and name of a worker.
    pub fn worker_name(&self, session: SessionId) -> Option<(&str, &str)> {
        self.workers.get(&session).map(|w| (w.namespace(), w.name()))
    }

    /// Whether a pull of a ready worker has its answer already: claiming under that number gives it again, or says that a
    /// newer one was answered.
    pub fn has_answered(&self, slot: SlotRef, seq: u64) -> bool {
        let worker = self.workers.get(&slot.session).filter(|w| w.is_ready());
        let held = worker.and_then(|w| w.slots().get(slot.slot.0 as usize));
        held.is_some_and(|held| held.last_pull() >= seq)
    }

    /// Whether proposing this pull would get an answer: rows, its earlier rows, or that its session is gone.
    pub fn answers_pull(&self, slot: SlotRef, seq: u64) -> bool {
        match self.workers.get(&slot.session).map(|w| w.slots().get(slot.slot.0 as usize)) {
            Some(Some(pulls)) => pulls.last_pull() >= seq || self.has_work_for(slot),
            Some(None) | None => true,
        }
    }

    /// Every session, in the order of registration.
    pub fn worker_sessions(&self) -> Vec<SessionId> {
        self.workers.sessions()
    }

    /// The session of the worker of that name.
    pub fn find_worker(&self, namespace: &str, name: &str) -> Option<SessionId> {
        self.workers.by_name(&(namespace.to_owned(), name.to_owned()))
    }

    /// Everything that a session holds.
    pub fn held_rows(&self, session: SessionId) -> Vec<HeldRows> {
        self.queues(session).into_iter().flatten().collect()
    }

    /// The same by slot: the rows granted to each, the oldest first.
    pub fn queues(&self, session: SessionId) -> Vec<Vec<HeldRows>> {
        let queue = |slot: &Slot| {
            let mut held: Vec<(Attempt, RunNo)> = slot.held().iter().map(|h| (h.1, h.0)).collect();
            held.sort_unstable();
            let rows = |(attempt, run)| {
                let (_, rows) = self.runs.get(&run)?.holding(attempt)?;
                Some(HeldRows { run, attempt, rows })
            };
            held.into_iter().filter_map(rows).collect()
        };
        let slots = self.workers.get(&session).map_or(&[][..], |w| w.slots());
        slots.iter().map(queue).collect()
    }

    /// Whether a pull of this slot would get anything. The leader checks this before it proposes.
    pub fn has_work_for(&self, slot: SlotRef) -> bool {
        let Some((worker, pulls)) = self.pulling(slot) else { return false };
        self.turns_for(pulls).filter_map(|turn| self.runs.get(&turn.run)).any(|run| {
            let rows = pulls.cordon().is_none() && self.grantable_to(run, worker, slot.slot) > 0;
            rows || self.offered_group(run, slot, pulls.rows_held() == 0).is_some()
        })
    }

    /// A slot that may be given something, and its worker.
    pub(crate) fn pulling(&self, slot: SlotRef) -> Option<(&Worker, &Slot)> {
        let worker = self.workers.get(&slot.session)?;
        let at = slot.slot.0 as usize;
        let pulls = worker.slots().get(at)?;
        let takes = self.takes_work(worker, at) || self.takes_only_groups(worker, at);
        let full = pulls.rows_held() >= u64::from(limits::SLOT_ROWS_MAX)
            || self.namespace_room(worker.namespace()) == 0;
        // A slot that will get a group empties itself first.
        let waits = || pulls.rows_held() > 0 && self.own_group(slot).is_some();
        (takes && !full && !waits()).then_some((worker, pulls))
    }

    /// The runs of which `victim` holds rows that `idle_slot` may get.
    pub fn stealable(&self, victim: SlotRef, idle_slot: SlotRef) -> Vec<RunNo> {
        let (Some(holder), Some(held)) = (self.workers.get(&victim.session), self.slot(victim))
        else {
            return Vec::new();
        };
        // A silent worker answers no steal.
        if holder.is_suspect() || held.trial().is_some() || !self.takes_others_rows(idle_slot) {
            return Vec::new();
        }
        let mut runs: Vec<RunNo> = held.held().iter().map(|h| h.0).collect();
        runs.dedup();
        runs.retain(|no| self.may_steal(idle_slot, *no));
        runs
    }
}
