//! Handles a run's store that refuses a worker, from cluster version 3 on.
//!
//! *Invariant:* one worker that may not use a store does not pause a run that other workers can continue. The run is
//! paused if the store has refused two workers since the run was last resumed, or if no ready slot of another worker
//! fits it. Otherwise all of the run's rows at the worker come back for the others: the worker could not store their
//! results.
//! Absent: that the worker takes no more rows of the run. It sees that its store refuses it, and reports its slots as
//! ineligible.

use crate::batch::run::{Run, RunState};
use crate::fleet::worker::Worker;
use crate::kernel::id::{Attempt, RunNo, SlotRef};
use crate::kernel::visits::count_visit;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;

impl Ledger {
    /// The store refuses a worker. The run remembers the first one since it was last resumed: a second one pauses it.
    pub(crate) fn store_refuses(&mut self, ctx: &Context, slot: SlotRef, no: RunNo, message: &str) {
        self.settle_slots();
        let run = self.runs.get(&no).filter(|run| run.head.state == RunState::Running);
        let (Some(run), Some(worker)) = (run, self.workers.get(&slot.session)) else { return };
        let (name, others_fit) = (worker.name().to_owned(), self.another_worker_fits(run, worker));
        let Some(run) = self.runs.get_mut(&no) else { return };
        let first = run.head.pause.refused.get_or_insert_with(|| name.clone()).clone();
        self.runs.mark(no);
        let reason = match first == name {
            true if others_fit => return self.take_back(ctx, slot, no),
            true => {
                format!("the store refuses: {message} (worker {name}, and no other fits the run)")
            }
            false => {
                let (one, other) = if first < name { (first, name) } else { (name, first) };
                format!("the store refuses: {message} (workers {one}, {other})")
            }
        };
        self.pause_running(ctx, no, &reason);
    }

    /// Whether a ready slot of another worker fits a run, as of the last [`settle_slots`](Self::settle_slots). Costs the
    /// worker's different offers, however many slots there are.
    pub(crate) fn another_worker_fits(&self, run: &Run, worker: &Worker) -> bool {
        self.index.has_more_free(run.no, self.free_of_worker(run, worker))
    }

    /// How many free slots of a worker fit a run, as of the last [`settle_slots`](Self::settle_slots). Costs the
    /// worker's different offers.
    pub(crate) fn free_of_worker(&self, run: &Run, worker: &Worker) -> usize {
        let fitting = worker.free().iter().inspect(|_| count_visit());
        fitting.filter(|free| self.index.fits(*free.0, run.no)).map(|free| free.1).sum()
    }

    /// Takes all rows of a run from a worker, for good.
    fn take_back(&mut self, ctx: &Context, slot: SlotRef, no: RunNo) {
        let Some(worker) = self.workers.get(&slot.session) else { return };
        let held = worker.slots().iter().flat_map(|slot| slot.held()).filter(|held| held.0 == no);
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
