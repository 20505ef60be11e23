//! The store of a run refuses a worker, from cluster version 3 on.
//!
//! *Invariant:* one worker that may not use a store pauses no run that others can go on with. The run is paused where the
//! store has refused two workers since the run was last resumed, or where no ready slot of another worker fits it. Otherwise
//! all that the worker has of the run comes back for the others: it could not bring a result of it.
//! Absent: that the worker takes no more rows of the run. It sees that its store refuses it, and says that its slots are
//! ineligible.

use crate::apply::Context;
use crate::command::FailureClass;
use crate::id::{Attempt, RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::run::{Run, RunState};
use crate::worker::Worker;
use std::collections::BTreeSet;

/// Workers that a reason names.
const NAMED_MAX: usize = 3;

impl Run {
    /// The workers that the store has refused since the run was last resumed.
    fn refused(&self) -> BTreeSet<&str> {
        let tries = self.troubles.values().flat_map(|trouble| &trouble.history);
        let refusals = tries.filter(|t| {
            t.class == FailureClass::StoreRefused && t.attempt.index() >= self.head.resumed_index
        });
        refusals.map(|refusal| refusal.worker.as_str()).collect()
    }
}

impl Ledger {
    /// The store refuses a worker, which is in the history of a row already.
    pub(crate) fn store_refuses(&mut self, ctx: &Context, slot: SlotRef, no: RunNo, message: &str) {
        self.settle_slots();
        let run = self.runs.get(&no).filter(|run| run.head.state == RunState::Running);
        let (Some(run), Some(worker)) = (run, self.workers.get(&slot.session)) else { return };
        let refused: Vec<String> = run.refused().into_iter().map(str::to_owned).collect();
        if refused.len() > 1 || !self.another_worker_fits(run, worker) {
            let all = refused.len();
            let mut names = refused.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>();
            if all > NAMED_MAX {
                names.push("others");
            }
            let names = names.join(", ");
            let reason = match all {
                1 => format!(
                    "the store refuses: {message} (worker {names}, and no other fits the run)"
                ),
                _ => format!("the store refuses: {message} (workers {names})"),
            };
            self.pause_running(ctx, no, &reason);
        } else {
            self.take_back(ctx, slot, no);
        }
    }

    /// Whether a ready slot of another worker fits a run, as of the last [`settle_slots`](Self::settle_slots). Costs the
    /// worker's own slots, however many slots there are.
    pub(crate) fn another_worker_fits(&self, run: &Run, worker: &Worker) -> bool {
        let own = worker.slots.iter().filter(|slot| {
            let free = slot.counted.is_some_and(|counted| counted.free);
            free && self.index.fits(slot.offer_no, run.no)
        });
        self.index.has_more_free(run.no, own.count())
    }

    /// Takes all rows of a run from a worker, for good.
    fn take_back(&mut self, ctx: &Context, slot: SlotRef, no: RunNo) {
        let Some(worker) = self.workers.get(&slot.session) else { return };
        let held = worker.slots.iter().flat_map(|slot| &slot.held).filter(|held| held.0 == no);
        let attempts: Vec<Attempt> = held.map(|held| held.1).collect();
        for attempt in attempts {
            let Some((at, rows)) = self.runs.get(&no).and_then(|run| run.holding(attempt)) else {
                continue;
            };
            self.give_back(no, attempt, &rows);
            self.emit_returned(ctx, at, (no, attempt), &rows, "store_refused");
        }
    }
}
