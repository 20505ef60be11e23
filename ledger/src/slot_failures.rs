//! Failures of rows that are not deaths of engines, counted against the slot.
//!
//! *Invariant:* from cluster version 3 on, a slot lists the failures since it last finished a row: the first row of each
//! report, at most [`limits::DEATHS_HELD_MAX`] of them. A failure counts against the slot if another slot has completed the
//! row since, or if rows of two runs failed there. [`limits::DEATHS_IN_ROW_MAX`] that count cordon the slot. Where the ledger
//! may cordon no more slots (`fleet_guard.rs`), it pauses the runs whose rows other slots completed. A finished row clears
//! the list, and lifts the cordon. The cordon ends by itself after [`limits::FAILURE_CORDON_MS`]: other slots may have gone
//! meanwhile, and a slot that is repaired has no other way to show it.
//! Absent: rows that are invalid, stores that refuse, and deaths of engines (`cordon.rs`).

use crate::apply::Context;
use crate::command::FailureClass;
use crate::event::EventKind;
use crate::id::{LedgerMs, RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::segment::Outcome;
use crate::worker::Slot;
use std::collections::BTreeSet;

impl Slot {
    /// Whether failures, and not deaths, are why the ledger has cordoned it.
    pub(crate) fn is_cordoned_for_failures(&self) -> bool {
        self.cordoned_until.is_some()
    }

    /// Lifts the ledger's own cordon. Returns whether there was one.
    pub(crate) fn lift_cordon(&mut self) -> bool {
        self.cordoned_until = None;
        self.cordon.take().is_some()
    }
}

impl Ledger {
    /// A row failed at a slot: lists it, and cordons the slot if too many count.
    pub(crate) fn count_failure(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (no, row): (RunNo, u64),
        class: FailureClass,
    ) {
        let of_row = matches!(class, FailureClass::InvalidRow | FailureClass::StoreRefused);
        if of_row || !self.asks_a_second_slot() {
            return;
        }
        self.list_failure(slot, (no, row));
        let Some(held) = self.slot(slot).filter(|held| held.cordon.is_none()) else { return };
        let runs: BTreeSet<RunNo> = held.failures.iter().map(|failure| failure.0).collect();
        let done = |failure: &&(RunNo, u64)| {
            let run = self.runs.get(&failure.0);
            run.is_some_and(|run| run.outcome(failure.1).part().is_some())
        };
        let proven: Vec<RunNo> =
            held.failures.iter().filter(done).map(|failure| failure.0).collect();
        let failures = held.failures.len();
        let counted = if runs.len() > 1 { failures } else { proven.len() };
        // The guard looks at all slots of the model: a slot that fails without end asks it a bounded number of times.
        let asked_enough =
            failures == limits::DEATHS_HELD_MAX && proven.len() < limits::DEATHS_IN_ROW_MAX;
        if counted < limits::DEATHS_IN_ROW_MAX || asked_enough {
            return;
        }
        if !self.may_be_cordoned(slot) {
            if proven.len() >= limits::DEATHS_IN_ROW_MAX {
                self.pause_what_fails(ctx, slot, (failures, proven));
            }
            return;
        }
        let reason = format!("{failures} rows failed there without a finished one between");
        let until = LedgerMs(self.meta.clock.0.saturating_add(limits::FAILURE_CORDON_MS));
        let Some(held) = self.slot_mut(slot) else { return };
        (held.cordon, held.cordoned_until) = (Some(reason.clone()), Some(until));
        self.cordon_ends.insert((until, slot));
        let (whole, cordoned) = (false, true);
        self.emit(ctx, EventKind::WorkerCordoned { slot, whole, cordoned, reason });
    }

    /// Ends the cordons for failures that are due.
    pub(crate) fn end_failure_cordons(&mut self, ctx: &Context) {
        while let Some(&(at, slot)) =
            self.cordon_ends.first().filter(|end| end.0 <= self.meta.clock)
        {
            self.cordon_ends.pop_first();
            // Some entries are of cordons that ended earlier.
            let ends = self.slot(slot).is_some_and(|held| held.cordoned_until == Some(at));
            let Some(held) = self.slot_mut(slot).filter(|_| ends) else { continue };
            held.lift_cordon();
            held.failures.clear();
            let reason = "its cordon for failed rows is over: it may try again".to_owned();
            let (whole, cordoned) = (false, false);
            self.emit(ctx, EventKind::WorkerCordoned { slot, whole, cordoned, reason });
        }
    }

    /// Builds the order in which cordons for failures end.
    pub(crate) fn derive_cordon_ends(&mut self) {
        let ends = self.slots().filter_map(|(_, at, slot)| Some((slot.cordoned_until?, at)));
        self.cordon_ends = ends.collect();
    }

    /// The oldest failures stay: other slots need time to complete their rows. The latest makes room, and rows that failed
    /// for good do.
    fn list_failure(&mut self, slot: SlotRef, failure: (RunNo, u64)) {
        let Some(mut listed) = self.slot_mut(slot).map(|held| std::mem::take(&mut held.failures))
        else {
            return;
        };
        listed.retain(|known| *known != failure);
        if listed.len() == limits::DEATHS_HELD_MAX {
            listed.retain(|(no, row)| {
                self.runs.get(no).is_some_and(|run| run.outcome(*row) != Outcome::FAILED)
            });
            listed.truncate(limits::DEATHS_HELD_MAX - 1);
        }
        listed.push(failure);
        if let Some(held) = self.slot_mut(slot) {
            held.failures = listed;
        }
    }

    /// The ledger may not cordon a slot that fails rows which other slots complete.
    fn pause_what_fails(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (failures, runs): (usize, Vec<RunNo>),
    ) {
        let name = self.worker_name(slot.session).map_or("", |name| name.1);
        let reason = format!(
            "{failures} rows failed at {name} slot {} without a finished one between, others completed {} of them, and the \
             ledger may cordon no more slots of its model: repair or cordon the slot, then resume",
            slot.slot,
            runs.len()
        );
        let mut paused = false;
        for no in BTreeSet::from_iter(runs) {
            paused |= self.pause_running(ctx, no, &reason);
        }
        if let Some(held) = self.slot_mut(slot).filter(|_| paused) {
            held.failures.clear(); // After the resume it has another chance.
        }
    }
}
