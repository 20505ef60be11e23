//! Who is to blame where an engine dies: the row or the slot.
//!
//! *Invariant:* from cluster version 3 on, a row fails for good of engines that died only after it ended engines on two
//! slots, where a second one that takes work fits it. It waits for the second one for [`limits::SECOND_SLOT_WAIT_MS`] at
//! most. Then the slot that had it may have it again, and decides. A verdict of one slot, where there was a second one,
//! does not clear that slot. A worker that registers anew under its name is the same: its slots are no second ones.
//!
//! Absent: what a death means for the rows (`engine_death.rs`), who is given which trial (`trial.rs`), and what operators
//! cordon (`cordon.rs`).

use crate::gate::SCHEDULING_VERSION;
use crate::id::{Attempt, LedgerMs, RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::run::Run;
use crate::trial::TrialNo;
use crate::trouble::Trouble;
use crate::worker::WorkerState;

/// What follows from an engine that died of a row that ran alone.
pub(crate) struct Conclusion {
    /// The row may fail for good by it.
    pub(crate) decides: bool,
    /// If it does, deaths of engines that ran it are held against no slot.
    pub(crate) acquits: bool,
    /// It decides nothing, and the row goes on waiting for a second slot until then.
    pub(crate) until: Option<LedgerMs>,
}

impl Ledger {
    /// Whether the cluster's version asks a second slot before it blames a row.
    pub(crate) fn asks_a_second_slot(&self) -> bool {
        self.meta.version >= SCHEDULING_VERSION
    }

    /// What follows from an engine of a slot that died of one row alone, in a trial or outside.
    pub(crate) fn conclude(
        &self,
        slot: SlotRef,
        (no, row): (RunNo, u64),
        trial: Option<TrialNo>,
    ) -> Conclusion {
        let second = Conclusion { decides: true, acquits: true, until: None };
        let Some(run) = self.runs.get(&no).filter(|_| self.asks_a_second_slot()) else {
            return second;
        };
        let shuns = trial.and_then(|trial| run.flight.shuns.get(&trial));
        let same = match shuns {
            Some((at, _)) if self.workers.contains_key(&at.session) => *at == slot,
            _ => self.was_struck_at(run, row, slot),
        };
        if !same || !self.another_comes_first(run, slot) {
            return second;
        }
        // A trial that shuns nobody has waited for long enough.
        let waited = trial.is_some() && shuns.is_none();
        Conclusion { decides: waited, acquits: false, until: shuns.map(|shuns| shuns.1) }
    }

    /// Whether an engine of this slot's worker was the last that died of a row alone.
    fn was_struck_at(&self, run: &Run, row: u64, slot: SlotRef) -> bool {
        let name = self.workers.get(&slot.session).map(|worker| worker.name.as_str());
        let by = run.troubles.get(&row).and_then(Trouble::struck_by);
        by.is_some() && by == name
    }

    /// Whether this is the slot that a trial shuns, or the worker that had it has registered anew.
    pub(crate) fn is_the_shunned(&self, run: &Run, slot: SlotRef, trial: TrialNo) -> bool {
        let Some((at, _)) = run.flight.shuns.get(&trial) else { return false };
        let row = || run.flight.trials.get(&trial).and_then(|trial| trial.rows.iter().next());
        *at == slot
            || self.asks_a_second_slot()
                && !self.workers.contains_key(&at.session)
                && row().is_some_and(|row| self.was_struck_at(run, row, slot))
    }

    /// Whether another slot than this one may have rows of a run that this one had: it takes work and fits.
    pub(crate) fn another_comes_first(&self, run: &Run, slot: SlotRef) -> bool {
        // Where all have a cordon, each may try, and then also another one of these comes first.
        let cordoned = self.slot(slot).is_some_and(|pulls| pulls.cordon.is_some());
        self.others(run, slot).any(|(worker, number)| {
            worker.state == WorkerState::Ready
                && (self.cordon_of(worker, number).is_none()
                    || cordoned && self.is_cordoned_by_itself(worker, number))
        })
    }

    /// The trial of an attempt that a session holds, if it is of one.
    pub(crate) fn trial_of(&self, slot: SlotRef, no: RunNo, attempt: Attempt) -> Option<TrialNo> {
        let grant = self.runs.get(&no)?.flight.grants.get(&attempt)?;
        grant.trial.filter(|_| grant.slot.session == slot.session)
    }

    /// A trial is decided: it shuns nobody any more, unless some of its rows are still to come.
    pub(crate) fn trial_over(&mut self, no: RunNo, trial: Option<TrialNo>) {
        let v3 = self.asks_a_second_slot();
        let (Some(trial), Some(run)) = (trial.filter(|_| v3), self.runs.get_mut(&no)) else {
            return;
        };
        if !run.flight.trials.contains_key(&trial) && run.flight.shuns.remove(&trial).is_some() {
            self.dirty.runs.insert(no);
        }
    }

    /// The trials of a run made after `before` are better had by another slot than this one, for a while: the others may
    /// never ask. `until` where that has begun already.
    pub(crate) fn shun(
        &mut self,
        no: RunNo,
        slot: SlotRef,
        before: TrialNo,
        until: Option<LedgerMs>,
    ) {
        let for_ms = match self.asks_a_second_slot() {
            true => limits::SECOND_SLOT_WAIT_MS,
            false => limits::SHUN_MS,
        };
        let until = until.unwrap_or(LedgerMs(self.meta.clock.0.saturating_add(for_ms)));
        let Some(run) = self.runs.get_mut(&no) else { return };
        for trial in before + 1..=run.flight.trials_made {
            run.flight.shuns.insert(trial, (slot, until));
        }
        self.dirty.runs.insert(no);
    }

    /// Of a run that has nothing else to give: the rows that wait for a second slot, for people.
    pub(crate) fn waits_for_a_second_slot(&self, run: &Run) -> String {
        if !self.asks_a_second_slot() || run.grantable_beside_trials() > 0 {
            return String::new();
        }
        let mut waiting = Vec::new();
        for (number, trial) in run.ready_trials() {
            match run.flight.shuns.get(&number) {
                Some(shuns) if self.another_comes_first(run, shuns.0) => {
                    waiting.push((trial, shuns));
                }
                _ => return String::new(),
            }
        }
        let Some((trial, (at, until))) = waiting.first() else { return String::new() };
        let name = self.workers.get(&at.session).map_or("(gone)", |worker| &worker.name);
        let seconds = until.0.saturating_sub(self.meta.clock.0).div_ceil(1000);
        let more = match waiting.len() {
            1 => String::new(),
            trials => format!("; {} more groups of rows wait too", trials - 1),
        };
        format!(
            "an engine of {name} slot {} died of rows {}: they wait for another slot, for {seconds} s at most{more}",
            at.slot, trial.rows
        )
    }
}
