//! How many slots the ledger may cordon by itself, and what happens where it may not.
//!
//! *Invariant:* from cluster version 3 on, of the ready slots that offer a model the ledger cordons at most
//! [`limits::CORDONED_PERCENT_MAX`] percent, one at least, and never the last that takes work. A slot that should be cordoned
//! and may not goes on, for its deaths may be its rows' fault. They are the slot's where other slots completed all rows of
//! [`limits::DEATHS_IN_ROW_MAX`] of them, or where no run has rows in each of them. Then the runs whose rows it dies of are
//! paused, with the reason. So a slot that is alone finishes a run whose rows kill engines, and `failures_max` bounds how
//! many of them do.
//!
//! Absent: cordons of operators, who may cordon what they want.

use crate::apply::Context;
use crate::id::{RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::rows::Rows;
use crate::run::RunState;
use crate::worker::{HeldAgainst, WorkerState};
use std::collections::BTreeSet;

/// The ready slots that offer a model.
#[derive(Clone, Copy, Default)]
struct Offered {
    /// All of them.
    all: usize,
    /// Those that the ledger has cordoned.
    cordoned: usize,
    /// Those without any cordon.
    free: usize,
}

impl Offered {
    /// Whether one more may be cordoned.
    fn spares_one(self) -> bool {
        let most = (self.all * limits::CORDONED_PERCENT_MAX / 100).max(1);
        self.cordoned < most && self.free > 0
    }
}

/// Whether a slot with this offer takes all work that a slot with the other offer takes.
fn covers(offer: &str, other: &str) -> bool {
    let any_revision = other.rsplit_once('@').is_some_and(|(name, _)| offer == name);
    offer == "*" || offer == other || any_revision
}

impl Ledger {
    /// The ready slots of a slot's namespace beside it that offer what it offers, model by model; it counts in `all`.
    fn offered_with(&self, slot: SlotRef) -> Vec<Offered> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let Some(own) = worker.slots.get(usize::from(slot.slot.0)) else { return Vec::new() };
        let count = |model: &String| {
            let mut counted = Offered { all: 1, ..Offered::default() };
            let shapes = self.index.shapes_in(&worker.namespace);
            let shapes = shapes
                .filter(|(shape, _)| shape.ineligible.is_empty())
                .filter(|(shape, _)| shape.models.iter().any(|offer| covers(offer, model)));
            for at in shapes.flat_map(|(_, offers)| offers).flat_map(|(_, _, slots)| slots) {
                let other = self.workers.get(&at.session).filter(|_| *at != slot);
                let Some(other) = other.filter(|w| w.state == WorkerState::Ready) else { continue };
                let number = usize::from(at.slot.0);
                let by_ledger = other.slots.get(number).is_some_and(|s| s.cordon.is_some());
                counted.all += 1;
                counted.cordoned += usize::from(by_ledger);
                counted.free += usize::from(self.cordon_of(other, number).is_none());
            }
            counted
        };
        own.offer.models.iter().map(count).collect()
    }

    /// Whether the ledger may cordon a slot: of each model that it offers, enough slots remain.
    pub(crate) fn may_be_cordoned(&self, slot: SlotRef) -> bool {
        self.offered_with(slot).into_iter().all(Offered::spares_one)
    }

    /// An engine of a slot that should be cordoned and may not has died again: what it dies of is paused, if the slot is
    /// proven to be broken.
    pub(crate) fn pause_what_it_dies_of(&mut self, ctx: &Context, slot: SlotRef) {
        let Some(held) = self.slot(slot).map(|held| &held.held_against) else { return };
        let (deaths, name) = (held.len(), self.worker_name(slot.session).map_or("", |name| name.1));
        let runs = |death: &HeldAgainst| death.suspects.iter().map(|ran| ran.0).collect();
        let mut each = held.iter().rev().map(runs);
        let latest: BTreeSet<RunNo> = each.next().unwrap_or_default();
        let common = each.fold(latest.clone(), |common, runs| &common & &runs);
        let proven = held.iter().filter(|death| self.is_innocent(death)).count();
        if !common.is_empty() && proven < limits::DEATHS_IN_ROW_MAX {
            return;
        }
        let reason = format!(
            "the engine of {name} slot {} died {deaths} times without finishing a row, and the ledger may cordon no more \
             slots of its model: repair or cordon the slot, then resume",
            slot.slot
        );
        let mut paused = false;
        for no in if common.is_empty() { latest } else { common } {
            paused |= self.pause_running(ctx, no, &reason);
        }
        if let Some(held) = self.slot_mut(slot).filter(|_| paused) {
            held.held_against.clear(); // Resumed, it has another chance.
        }
    }

    /// Whether other slots completed all rows that ran at a death: its own slot has finished none since.
    fn is_innocent(&self, death: &HeldAgainst) -> bool {
        let done = |(no, rows): &(RunNo, Rows)| {
            let run = self.runs.get(no);
            run.is_some_and(|run| rows.iter().all(|row| run.outcome(row).part().is_some()))
        };
        !death.suspects.is_empty() && death.suspects.iter().all(done)
    }

    /// Pauses a run that goes on.
    pub(crate) fn pause_running(&mut self, ctx: &Context, no: RunNo, reason: &str) -> bool {
        let run = self.runs.get_mut(&no).filter(|run| run.head.state == RunState::Running);
        let Some(run) = run else { return false };
        run.head.state = RunState::Paused;
        run.head.reason = reason.to_owned();
        self.dirty.runs.insert(no);
        self.emit_run(ctx, no, "paused", reason);
        self.refresh_active(no);
        true
    }
}
