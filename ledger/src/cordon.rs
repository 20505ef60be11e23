//! Slots that get no work: because an operator says so, or because their engine keeps dying.
//!
//! *Invariant:* a cordon stops grants and nothing else: what a slot holds it may finish. An
//! operator's cordon is of a worker's *name*, and stays until it is lifted, whatever becomes of the
//! worker. The ledger's own is of a slot of one process, and goes with it, or when rows turn out to
//! have been guilty of deaths that it was for, or when the slot finishes a row of a trial: it may have
//! trials where nobody else can, so that a fleet is never cordoned for good by rows that kill engines. From cluster version
//! 3 on the ledger cordons few slots of a model and never the last: `fleet_guard.rs`.

use crate::apply::Context;
use crate::event::EventKind;
use crate::id::{RunNo, SessionId, SlotNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::reply::{Rejection, Reply};
use crate::rows::Rows;
use crate::worker::{HeldAgainst, Worker};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an operator has cordoned of the worker of one name, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameCordon {
    /// All of it, and of whatever slots it will have.
    pub(crate) whole: Option<String>,
    pub(crate) slots: BTreeMap<SlotNo, String>,
}

impl Ledger {
    pub(crate) fn cordon(
        &mut self,
        ctx: &Context,
        session: SessionId,
        slot: Option<SlotNo>,
        cordoned: bool,
        reason: String,
    ) -> Result<Reply, Rejection> {
        if reason.len() > limits::MESSAGE_BYTES_MAX {
            return Err(Rejection::Invalid("the reason is too long".into()));
        }
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        if slot.is_some_and(|SlotNo(n)| usize::from(n) >= worker.slots.len()) {
            return Err(Rejection::SlotUnknown);
        }
        let (space, name) = (worker.namespace.clone(), worker.name.clone());
        let namespace = self.namespaces.get_mut(&space).ok_or(Rejection::SessionUnknown)?;
        let known = namespace.cordons.get(&name);
        if cordoned && known.is_none() && namespace.cordons.len() >= limits::CORDONS_MAX {
            let max = limits::CORDONS_MAX as u64;
            return Err(Rejection::Limit { what: "cordoned workers of a namespace".into(), max });
        }
        if !cordoned && slot.is_some() && known.is_some_and(|k| k.whole.is_some()) {
            return Err(Rejection::Invalid(
                "the whole worker is cordoned: uncordon it without naming a slot".into(),
            ));
        }
        let entry = namespace.cordons.entry(name.clone()).or_default();
        match (slot, cordoned) {
            (None, true) => entry.whole = Some(reason.clone()),
            (None, false) => *entry = NameCordon::default(),
            (Some(slot), true) => drop(entry.slots.insert(slot, reason.clone())),
            (Some(slot), false) => drop(entry.slots.remove(&slot)),
        }
        if *entry == NameCordon::default() {
            namespace.cordons.remove(&name);
        }
        self.dirty.namespaces.insert(space);
        self.dirty.workers.touch(session);
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
        let Some(worker) = self.workers.get_mut(&session) else { return };
        for (number, held) in worker.slots.iter_mut().enumerate() {
            if slot.is_none_or(|SlotNo(n)| usize::from(n) == number) {
                held.lift_cordon();
                held.held_against.clear();
                held.failures.clear();
            }
        }
        self.dirty.mark_slots(session, worker.slots.len());
    }

    /// An engine died: too often in a row, and its slot gets no more work. What it dies of in trials was suspected before:
    /// deaths of the same rows count once.
    pub(crate) fn count_death(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (suspects, in_trial): (Vec<(RunNo, Rows)>, bool),
        code: &str,
    ) {
        let Some(held) = self.slot_mut(slot) else { return };
        held.deaths += 1;
        if in_trial {
            held.held_against.retain(|known| !known.ran_any(&suspects));
        }
        if held.held_against.len() == limits::DEATHS_HELD_MAX {
            held.held_against.remove(0);
        }
        held.held_against.push(HeldAgainst { suspects });
        let deaths = held.held_against.len();
        if deaths < limits::DEATHS_IN_ROW_MAX || held.cordon.is_some() {
            return;
        }
        if self.asks_a_second_slot() && !self.may_be_cordoned(slot) {
            return self.pause_what_it_dies_of(ctx, slot);
        }
        let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
        let reason = format!("its engine died {deaths} times without finishing a row{code}");
        let Some(held) = self.slot_mut(slot) else { return };
        held.cordon = Some(reason.clone());
        let (whole, cordoned) = (false, true);
        self.emit(ctx, EventKind::WorkerCordoned { slot, whole, cordoned, reason });
    }

    /// A row is guilty: deaths of engines that ran it are held against their slots no more.
    pub(crate) fn acquit(&mut self, ctx: &Context, no: RunNo, row: u64) {
        let ran =
            |h: &HeldAgainst| h.suspects.iter().any(|(n, rows)| *n == no && rows.contains(row));
        let of = |w: &Worker| w.slots.iter().any(|s| s.held_against.iter().any(ran));
        let sessions: Vec<SessionId> =
            self.workers.values().filter(|w| of(w)).map(|w| w.id).collect();
        for session in sessions {
            let Some(worker) = self.workers.get_mut(&session) else { continue };
            self.dirty.mark_slots(session, worker.slots.len());
            let mut lifted = Vec::new();
            for (number, held) in worker.slots.iter_mut().enumerate() {
                let before = held.held_against.len();
                held.held_against.retain(|h| !ran(h));
                let left = held.held_against.len();
                let few = left < before && left < limits::DEATHS_IN_ROW_MAX;
                if few && !held.is_cordoned_for_failures() && held.lift_cordon() {
                    lifted.push(SlotRef { session, slot: SlotNo(number as u16) });
                }
            }
            for slot in lifted {
                let reason = format!("row {row} of run {no} was why its engine died");
                let (whole, cordoned) = (false, false);
                self.emit(ctx, EventKind::WorkerCordoned { slot, whole, cordoned, reason });
            }
        }
    }

    /// A slot has finished a row: no death before is held against it. Its cordon goes when the row was
    /// one of a trial, which it was given after the cordon; others it may have finished before. A cordon for failures goes
    /// with any row: the slot works.
    pub(crate) fn row_finished(&mut self, ctx: &Context, slot: SlotRef, in_trial: bool) {
        let Some(held) = self.slot_mut(slot) else { return };
        let for_failures = held.is_cordoned_for_failures();
        if held.cordon.is_some() && !in_trial && !for_failures {
            return;
        }
        held.held_against.clear();
        held.failures.clear();
        if held.lift_cordon() {
            let reason = match for_failures {
                true => "it finished a row".to_owned(),
                false => "its engine finished a row of a trial".to_owned(),
            };
            let (whole, cordoned) = (false, false);
            self.emit(ctx, EventKind::WorkerCordoned { slot, whole, cordoned, reason });
        }
    }

    /// Whether the ledger has cordoned a slot, and no operator.
    pub(crate) fn is_cordoned_by_itself(&self, worker: &Worker, slot: usize) -> bool {
        worker.slots.get(slot).is_some_and(|s| s.cordon.is_some())
            && self.operators_cordon_of(worker, slot).is_none()
    }

    fn operators_cordon_of<'a>(&'a self, worker: &Worker, slot: usize) -> Option<&'a String> {
        let by_name = self.namespaces.get(&worker.namespace)?.cordons.get(&worker.name)?;
        let slot = u16::try_from(slot).ok().and_then(|n| by_name.slots.get(&SlotNo(n)));
        by_name.whole.as_ref().or(slot)
    }

    /// Why a slot gets no work; `None` when it does.
    pub(crate) fn cordon_of<'a>(&'a self, worker: &'a Worker, slot: usize) -> Option<&'a str> {
        let own = || worker.slots.get(slot).and_then(|s| s.cordon.as_ref());
        self.operators_cordon_of(worker, slot).or_else(own).map(String::as_str)
    }
}
