//! Cordons: slots that get no work because an operator says so, or because rows keep ending badly there.
//!
//! *Invariant:* a cordon stops grants and nothing else: a slot may finish what it holds. An operator's cordon applies
//! to a worker's *name*, and stays until it is lifted, whatever becomes of the worker: its namespace keeps it
//! (`namespace.rs`). The ledger's own cordon applies to a slot of one process and ends with it: `slot_incidents.rs`
//! says when it starts and ends. A slot with the ledger's cordon may get trials if no other slot can run them, so that
//! rows that kill engines never cordon a fleet for good. From cluster version 3 on the ledger cordons only few slots of
//! a model and never the last: `cordon_limit.rs`.

use crate::fleet::worker::Worker;
use crate::kernel::id::{SessionId, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::slot_ref;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Stops grants to a worker or to one of its slots, or allows them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// The session.
    pub session: SessionId,
    /// One slot, or all.
    pub slot: Option<SlotNo>,
    /// Whether grants stop.
    pub cordoned: bool,
    /// The reason, human-readable.
    pub reason: String,
}

impl Operation for Cordon {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.session)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        let Self { session, slot, cordoned, ref reason } = *self;
        Some(ledger.check_cordon(session, slot, cordoned, reason).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.cordon(ctx, self.session, self.slot, self.cordoned, self.reason)
    }
}

impl Ledger {
    /// The namespace and the name of the worker to cordon or uncordon.
    fn check_cordon(
        &self,
        session: SessionId,
        slot: Option<SlotNo>,
        cordoned: bool,
        reason: &str,
    ) -> Result<(String, String), Rejection> {
        if reason.len() > limits::REASON_BYTES_MAX {
            return Err(Rejection::Invalid("the reason is too long".into()));
        }
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        if slot.is_some_and(|SlotNo(n)| usize::from(n) >= worker.slots.len()) {
            return Err(Rejection::SlotUnknown);
        }
        let (space, name) = (worker.namespace.clone(), worker.name.clone());
        let namespace = self.namespaces.get(&space).ok_or(Rejection::SessionUnknown)?;
        namespace.check_cordon(&name, slot, cordoned)?;
        Ok((space, name))
    }

    fn cordon(
        &mut self,
        ctx: &Context,
        session: SessionId,
        slot: Option<SlotNo>,
        cordoned: bool,
        reason: String,
    ) -> Result<Reply, Rejection> {
        let (space, name) = self.check_cordon(session, slot, cordoned, &reason)?;
        if let Some(namespace) = self.namespaces.change(&space) {
            namespace.set_cordon(&name, slot, cordoned, &reason);
        }
        self.workers.touch(session);
        if !cordoned {
            self.forgive(session, slot);
        }
        let at = SlotRef { session, slot: slot.unwrap_or_default() };
        let whole = slot.is_none();
        self.emit(ctx, EventKind::WorkerCordoned { slot: at, whole, cordoned, reason });
        Ok(Reply::Ok)
    }

    /// Lifts the ledger's own cordon of a slot, or of all.
    fn forgive(&mut self, session: SessionId, slot: Option<SlotNo>) {
        let slots = self.slots_of(session).unwrap_or(0);
        for at in (0..slots).map(|number| slot_ref(session, number)) {
            if slot.is_none_or(|only| only == at.slot) {
                self.clear_incidents(at);
            }
        }
        self.workers.mark_slots(session, slots);
    }

    /// Whether the ledger has cordoned a slot, but no operator has.
    pub(crate) fn is_cordoned_by_itself(&self, worker: &Worker, slot: usize) -> bool {
        worker.slots.get(slot).is_some_and(|s| s.cordon.is_some())
            && self.operators_cordon_of(worker, slot).is_none()
    }

    fn operators_cordon_of(&self, worker: &Worker, slot: usize) -> Option<&str> {
        self.namespaces.get(&worker.namespace)?.cordon_of(&worker.name, slot)
    }

    /// Why a slot gets no work; `None` if it gets work.
    pub(crate) fn cordon_of<'a>(&'a self, worker: &'a Worker, slot: usize) -> Option<&'a str> {
        let own = || worker.slots.get(slot).and_then(|s| s.cordon());
        self.operators_cordon_of(worker, slot).or_else(own)
    }
}
