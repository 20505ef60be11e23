//! How many slots the ledger may cordon by itself, and what happens where it may not.
//!
//! *Invariant:* from cluster version 3 on, of the ready slots that offer a model the ledger cordons at most
//! [`limits::CORDONED_PERCENT_MAX`] percent, one at least, and never the last that takes work. A slot that should be cordoned
//! and may not goes on, for its incidents may be its rows' fault. They are the slot's where other slots completed all rows of
//! [`limits::DEATHS_IN_ROW_MAX`] of them, or where its engine died so often and no run has rows in each of these deaths. Then
//! the runs of the completed incidents are paused, or those of the latest death, with the reason. So a slot that is alone
//! finishes a run whose rows kill engines, and `failures_max` bounds how many of them do.
//!
//! Absent: which incidents count (`slot_incidents.rs`), and cordons of operators, who may cordon what they want.

use crate::apply::Context;
use crate::id::{RunNo, SlotRef};
use crate::incident::EndKind;
use crate::ledger::Ledger;
use crate::limits;
use crate::run::RunState;
use crate::slot_incidents::SlotIncident;
use crate::worker::WorkerState;
use std::collections::BTreeSet;

/// The ready slots that offer a model.
#[derive(Clone, Copy, Default)]
struct ModelSlots {
    /// All of them.
    all: usize,
    /// Those that the ledger has cordoned.
    cordoned: usize,
    /// Those without any cordon.
    free: usize,
}

impl ModelSlots {
    /// Whether one more may be cordoned.
    fn allows_a_cordon(self) -> bool {
        let most = (self.all * limits::CORDONED_PERCENT_MAX / 100).max(1);
        self.cordoned < most && self.free > 0
    }
}

/// Whether a slot with this offer takes all work that a slot with the other offer takes.
fn covers(offer: &str, other: &str) -> bool {
    let any_revision = other.rsplit_once('@').is_some_and(|(name, _)| offer == name);
    offer == "*" || offer == other || any_revision
}

/// The runs of a slot's latest death, if there are enough deaths and no run has rows in each of them.
fn runs_of_unrelated_deaths(incidents: &[SlotIncident]) -> BTreeSet<RunNo> {
    let deaths = incidents.iter().filter(|incident| incident.end == EndKind::EngineDied);
    let each: Vec<BTreeSet<RunNo>> = deaths.map(|death| death.runs().collect()).collect();
    let latest = each.last().cloned().unwrap_or_default();
    let related = latest.iter().any(|no| each.iter().all(|runs| runs.contains(no)));
    match related || each.len() < limits::DEATHS_IN_ROW_MAX {
        true => BTreeSet::new(),
        false => latest,
    }
}

impl Ledger {
    /// The ready slots of a slot's namespace beside it that offer what it offers, model by model; it counts in `all`.
    fn slots_by_model(&self, slot: SlotRef) -> Vec<ModelSlots> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let Some(own) = worker.slots.get(usize::from(slot.slot.0)) else { return Vec::new() };
        let count = |model: &String| {
            let mut counted = ModelSlots { all: 1, ..ModelSlots::default() };
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
        self.slots_by_model(slot).into_iter().all(ModelSlots::allows_a_cordon)
    }

    /// Of a slot that should be cordoned and may not: pauses the runs of its incidents, if they are proven to be its fault.
    pub(crate) fn pause_runs_of(&mut self, ctx: &Context, slot: SlotRef) {
        let Some(held) = self.slot(slot) else { return };
        let completed = self.completed(&held.incidents);
        let (count, runs) = completed.fold((0, BTreeSet::new()), |(count, mut runs), incident| {
            runs.extend(incident.runs());
            (count + 1, runs)
        });
        let runs = match count < limits::DEATHS_IN_ROW_MAX {
            false => runs,
            true => runs_of_unrelated_deaths(&held.incidents),
        };
        let name = self.worker_name(slot.session).map_or("", |name| name.1);
        let reason = format!(
            "{name} slot {}: {}, others completed the rows of {count} of these, and the ledger may cordon no more slots of \
             its model: repair or cordon the slot, then resume",
            slot.slot,
            held.describe_incidents("")
        );
        let mut paused = false;
        for no in runs {
            paused |= self.pause_running(ctx, no, &reason);
        }
        if let Some(held) = self.slot_mut(slot).filter(|_| paused) {
            held.incidents.clear(); // After the resume it has another chance.
        }
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
