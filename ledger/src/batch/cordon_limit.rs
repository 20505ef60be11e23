//! Bounds how many slots the ledger may cordon by itself, and handles slots that it may not cordon.
//!
//! *Invariant:* from cluster version 3 on, of the ready slots that offer a model the ledger cordons at most
//! [`limits::CORDONED_PERCENT_MAX`] percent, but at least one, and never the last that takes work. A slot that should
//! be cordoned but may not be continues, because its incidents may be its rows' fault. They are the slot's fault if
//! other slots completed all rows of as many of them as cordon a slot, or if its engine died that often and no run has
//! rows in each of these deaths. In that case the runs of the completed incidents are paused, or those of the latest
//! death, with the reason. So a slot that is alone finishes a run whose rows kill engines, and `failures_max` bounds
//! how many of them do.
//!
//! Absent: which incidents count (`slot_incidents.rs`), and cordons of operators, which are not bounded.

use crate::batch::incident::EndKind;
use crate::batch::run::{Run, RunState};
use crate::batch::slot_incidents::SlotIncident;
use crate::kernel::id::{RunNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::visits::count_visit;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use std::collections::BTreeSet;

/// Suffix of the human-readable reason of each pause by this module. `PauseState::at_cordon_limit` records the cause.
/// If a user pauses the run too, that replaces both, and the pause becomes the user's.
const AT_LIMIT: &str =
    "and the ledger may cordon no more slots of its model: repair or cordon the slot, then resume";

/// The ready slots that offer a model.
#[derive(Clone, Copy, Default)]
struct ModelSlots {
    /// All slots.
    all: u64,
    /// Slots that the ledger has cordoned.
    cordoned: u64,
    /// Those without any cordon.
    free: u64,
}

impl ModelSlots {
    /// Whether one more may be cordoned.
    fn allows_a_cordon(self) -> bool {
        let most = (self.all * limits::CORDONED_PERCENT_MAX as u64 / 100).max(1);
        self.cordoned < most && self.free > 0
    }
}

/// Whether a slot with this offer takes all work that a slot with the other offer takes.
fn covers(offer: &str, other: &str) -> bool {
    let any_revision = other.rsplit_once('@').is_some_and(|(name, _)| offer == name);
    offer == "*" || offer == other || any_revision
}

/// The runs of a slot's latest death, if there are enough deaths and no run has rows in each of them.
fn runs_of_unrelated_deaths(incidents: &[SlotIncident], enough: usize) -> BTreeSet<RunNo> {
    let deaths = incidents.iter().filter(|incident| incident.end == EndKind::EngineDied);
    let each: Vec<BTreeSet<RunNo>> = deaths.map(|death| death.runs().collect()).collect();
    let latest = each.last().cloned().unwrap_or_default();
    let related = latest.iter().any(|no| each.iter().all(|runs| runs.contains(no)));
    match related || each.len() < enough {
        true => BTreeSet::new(),
        false => latest,
    }
}

impl Run {
    /// Whether the run is paused because a slot is to blame and may not be cordoned.
    pub(crate) fn at_cordon_limit(&self) -> bool {
        self.head.pause.at_cordon_limit
    }
}

impl Ledger {
    /// Whether any run is paused because a slot that is to blame may not be cordoned. Takes time in proportion to the paused
    /// runs.
    pub fn at_cordon_limit(&self) -> bool {
        self.run_lists.paused().filter_map(|no| self.runs.get(&no)).any(Run::at_cordon_limit)
    }

    /// The ready slots of a slot's namespace that offer its models, model by model; the slot itself counts in `all`.
    /// Costs the lists of models that slots offer, however many slots there are.
    fn slots_by_model(&self, slot: SlotRef) -> Vec<ModelSlots> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let Some(own) = worker.slots().get(usize::from(slot.slot.0)) else { return Vec::new() };
        let itself = own.counted().unwrap_or_default();
        let count = |model: &String| {
            let mut counted = ModelSlots { all: 1, ..ModelSlots::default() };
            for (models, slots) in self.tally.lists_in(worker.namespace()) {
                count_visit();
                if models.iter().any(|offer| covers(offer, model)) {
                    counted.all += slots.ready;
                    counted.cordoned += slots.cordoned;
                    counted.free += slots.free;
                }
            }
            counted.all -= u64::from(itself.ready);
            counted.cordoned -= u64::from(itself.cordoned);
            counted.free -= u64::from(itself.free);
            counted
        };
        own.offer().models.iter().map(count).collect()
    }

    /// Whether the ledger may cordon a slot: of each model that it offers, enough slots remain.
    pub(crate) fn may_be_cordoned(&mut self, slot: SlotRef) -> bool {
        self.settle_slots();
        self.slots_by_model(slot).into_iter().all(ModelSlots::allows_a_cordon)
    }

    /// Pauses the runs of a slot's incidents if these are proven to be the slot's fault. The slot should be cordoned and may
    /// not.
    pub(crate) fn pause_runs_of(&mut self, ctx: &Context, slot: SlotRef) {
        let Some(held) = self.slot(slot) else { return };
        let completed = self.completed(held.incidents());
        let (count, runs) = completed.fold((0, BTreeSet::new()), |(count, mut runs), incident| {
            runs.extend(incident.runs());
            (count + 1, runs)
        });
        let enough = self.cordon_after();
        let runs = match count < enough {
            false => runs,
            true => runs_of_unrelated_deaths(held.incidents(), enough),
        };
        let name = self.worker_name(slot.session).map_or("", |name| name.1);
        let reason = format!(
            "{name} slot {}: {}, others completed the rows of {count} of these, {AT_LIMIT}",
            slot.slot,
            held.describe_incidents("")
        );
        let mut paused = false;
        for no in runs {
            if self.pause_running(ctx, no, &reason)
                && let Some(run) = self.runs.get_mut(&no)
            {
                run.head.pause.at_cordon_limit = true;
                paused = true;
            }
        }
        if paused {
            self.take_incidents(slot); // After the resume it has another chance.
        }
    }

    /// Pauses a run if it is running. Returns whether it did.
    pub(crate) fn pause_running(&mut self, ctx: &Context, no: RunNo, reason: &str) -> bool {
        let run = self.runs.get_mut(&no).filter(|run| run.head.state == RunState::Running);
        let Some(run) = run else { return false };
        run.head.state = RunState::Paused;
        run.head.reason = reason.to_owned();
        self.runs.mark(no);
        self.emit_run(ctx, no, "paused", reason);
        self.refresh_active(no);
        true
    }
}
