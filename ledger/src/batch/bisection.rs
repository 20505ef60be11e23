//! Bisection of rows that were running when an engine died: each half is a *trial*, which runs apart from all others.
//!
//! *Invariant:* a trial's rows are pending or, with a `not_before`, waiting; they are in one trial and nowhere else.
//! A trial is granted to a slot that holds nothing, and that slot gets nothing more until the trial's rows are
//! decided or have come back. Rows that come back from a trial form a trial again. So an engine that dies in a trial
//! was killed by one of its rows.
//!
//! A busy slot never runs empty by itself. The first slot that pulls when a trial is ready empties itself for it: it
//! gets nothing until it holds nothing. One slot does that for one trial, so the others continue.
//!
//! After a trial killed an engine, slots other than that engine's come first for a while, even if one of them has had
//! the trial and gave it back: `incident.rs`. Below cluster version 3 this applies only to a trial of one row.
//!
//! A slot that the ledger itself has cordoned still gets trials if it is empty and no slot without a cordon could run
//! them, now or when it is heard again: otherwise rows that kill engines would cordon a whole fleet, and no slot
//! would be left to find them.

use crate::batch::run::Run;
use crate::fleet::worker::{Slot, Worker, WorkerState};
use crate::kernel::id::{LedgerMs, RunNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::kernel::visits::count_visit;
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::cmp::Reverse;

/// A trial's number within its run, from 1. Rows that come back from a trial keep the number.
pub(crate) type TrialNo = u32;

/// Rows to try together, with no others beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) rows: Rows,
    /// Until when they wait, if they do.
    pub(crate) not_before: Option<LedgerMs>,
    /// The slot that gets nothing else until it is empty and gets this.
    pub(crate) emptying: Option<SlotRef>,
}

/// A trial that a slot may have.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) trial: TrialNo,
    /// No other slot empties itself for it.
    pub(crate) free: bool,
}

impl Run {
    /// Makes a trial of rows that are in nothing else.
    pub(crate) fn add_trial(&mut self, rows: Rows, not_before: Option<LedgerMs>) {
        self.flight.trials_made += 1;
        let trial = Trial { rows, not_before, ..Trial::default() };
        self.flight.trials.insert(self.flight.trials_made, trial);
    }

    /// Makes rows of an attempt pending again, in their trial if they were in one.
    pub(crate) fn put_back(&mut self, trial: Option<TrialNo>, rows: &Rows) {
        match trial {
            None => self.bring_back(rows),
            Some(no) => self.flight.trials.entry(no).or_default().rows.unite(rows),
        }
    }

    /// Takes rows that a slot had before out of the pending ones.
    pub(crate) fn take_back(&mut self, trial: Option<TrialNo>, rows: &Rows) {
        let Some(no) = trial else { return self.take_out(rows) };
        let Some(trial) = self.flight.trials.get_mut(&no) else { return };
        trial.rows.subtract(rows);
        if trial.rows.is_empty() {
            self.flight.trials.remove(&no);
        }
    }

    /// The trials that are pending.
    pub(crate) fn ready_trials(&self) -> impl Iterator<Item = (TrialNo, &Trial)> {
        let ready = self.flight.trials.iter().filter(|t| t.1.not_before.is_none());
        ready.map(|(no, trial)| {
            count_visit();
            (*no, trial)
        })
    }

    /// Ends the wait of the trials that waited until then at most, and takes their rows out of `due`.
    pub(crate) fn end_trial_waits(&mut self, until: LedgerMs, due: &mut Rows) {
        for trial in self.flight.trials.values_mut() {
            if trial.not_before.is_some_and(|at| at <= until) {
                trial.not_before = None;
                due.subtract(&trial.rows);
            }
        }
    }

    /// Makes ordinary rows of all trials.
    pub(crate) fn dissolve_trials(&mut self) {
        for trial in std::mem::take(&mut self.flight.trials).into_values() {
            self.bring_back(&trial.rows);
        }
        self.flight.excluded.clear();
    }

    /// Takes up to `count` rows of a trial.
    pub(crate) fn take_trial(&mut self, no: TrialNo, count: u32) -> Rows {
        let Some(trial) = self.flight.trials.get_mut(&no) else { return Rows::default() };
        let rows = trial.rows.take_first(count);
        trial.emptying = None;
        if trial.rows.is_empty() {
            self.flight.trials.remove(&no);
        }
        self.outdate_lapsed(&rows);
        rows
    }
}

impl Ledger {
    /// Whether a slot takes any work at all.
    pub(crate) fn takes_work(&self, worker: &Worker, slot: usize) -> bool {
        worker.state == WorkerState::Ready
            && worker.slots.get(slot).is_some_and(|s| s.trial.is_none())
            && self.cordon_of(worker, slot).is_none()
    }

    /// Whether a slot has a cordon of the ledger's own, and could get a trial now.
    pub(crate) fn takes_only_trials(&self, worker: &Worker, slot: usize) -> bool {
        worker.state == WorkerState::Ready
            && worker.slots.get(slot).is_some_and(|s| s.trial.is_none() && s.rows_held == 0)
            && self.is_cordoned_by_itself(worker, slot)
    }

    /// Whether a run could give rows to this slot if it had some.
    pub(crate) fn serves(&self, run: &Run, worker: &Worker, slot: &Slot) -> bool {
        run.head.namespace == worker.namespace
            && run.room() > 0
            && self.index.fits(slot.offer_no, run.no)
    }

    /// The trial that a slot empties itself for, as long as it could have it.
    pub(crate) fn own_trial(&self, slot: SlotRef) -> Option<(RunNo, TrialNo)> {
        let worker = self.workers.get(&slot.session)?;
        let pulls = worker.slots.get(slot.slot.0 as usize)?;
        let own = self.run_lists.trials().filter_map(|no| {
            let run = self.runs.get(&no)?;
            let own = run.ready_trials().find(|t| t.1.emptying == Some(slot))?.0;
            let may =
                self.serves(run, worker, pulls) && self.cordon_allows_trials(run, slot, pulls);
            may.then_some((Reverse(run.head.spec.priority), no, own))
        });
        own.min().map(|(_, no, trial)| (no, trial))
    }

    /// The trial of a run that a slot may have: any trial if it is `empty`, otherwise one for which no other slot
    /// empties itself. It excludes a trial for which other slots come first while one of them could have it. A slot
    /// with a cordon gets none while there is a slot without one.
    pub(crate) fn offered_trial(&self, run: &Run, slot: SlotRef, empty: bool) -> Option<Offered> {
        let pulls = self.slot(slot)?;
        if run.flight.trials.is_empty() || !self.cordon_allows_trials(run, slot, pulls) {
            return None;
        }
        let free = |s: Option<SlotRef>| s.is_none_or(|s| !self.may_empty(s));
        let another = OnceCell::new();
        let excluded = |trial| {
            self.is_excluded(run, slot, trial)
                && *another.get_or_init(|| self.another_slot_takes(run, slot))
        };
        let open = || run.ready_trials().filter(|t| !excluded(t.0));
        let found = open().find(|t| free(t.1.emptying)).map(|t| Offered { trial: t.0, free: true });
        let any = || open().next().map(|t| Offered { trial: t.0, free: false });
        found.or_else(|| any().filter(|_| empty))
    }

    /// Whether a slot may have trials of a run: with a cordon of the ledger's own only if no slot without a cordon could.
    /// The slots of a worker that is only silent count, for it may come back.
    fn cordon_allows_trials(&self, run: &Run, slot: SlotRef, pulls: &Slot) -> bool {
        pulls.cordon.is_none()
            || !self.others(run, slot).any(|(w, number)| self.cordon_of(w, number).is_none())
    }

    /// The other slots that could have rows of a run, ignoring silence and cordons.
    pub(crate) fn others<'a>(
        &'a self,
        run: &'a Run,
        slot: SlotRef,
    ) -> impl Iterator<Item = (&'a Worker, usize)> {
        let others = self.index.slots_for(run.no).filter(move |at| *at != slot && run.room() > 0);
        let others =
            others.filter_map(|at| Some((self.workers.get(&at.session)?, at.slot.0 as usize)));
        others.filter(|(worker, _)| worker.drain.is_none())
    }

    /// Whether trials show, now or soon, if a slot that the ledger itself has cordoned stays so.
    pub(crate) fn trials_may_lift_cordon(&self, run: &Run, worker: &Worker, slot: SlotRef) -> bool {
        let number = slot.slot.0 as usize;
        let in_trial = worker.slots.get(number).is_some_and(|s| s.trial.is_some());
        self.is_cordoned_by_itself(worker, number) && (in_trial || !run.flight.trials.is_empty())
    }

    /// Whether a slot is still emptying itself: it holds rows, and may get the trial once it holds none.
    fn may_empty(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        let at = slot.slot.0 as usize;
        self.takes_work(worker, at) && worker.slots.get(at).is_some_and(|s| s.rows_held > 0)
    }
}
