//! Trials: rows that are tried apart, the slots that get them, and failed rows that are retried.

use crate::naive::{Model, Outcome};
use crate::rows::{Row, RowState};
use crate::runs::Run;
use crate::workers::Worker;
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{HeldRows, Rejection, Reply, Rows};
use std::collections::{BTreeMap, BTreeSet};

/// A slot, and until when any other comes before it.
pub(crate) type Excluded = (SlotRef, LedgerMs);

/// A pending or waiting trial as both sides show it: its rows, until when it waits, the slot that empties itself for
/// it, the slot that comes after others.
pub(crate) type Shown = (Vec<u64>, Option<LedgerMs>, Option<SlotRef>, Option<Excluded>);

impl Run {
    /// The pending trials, by number.
    pub(crate) fn ready_trials(&self) -> BTreeSet<u32> {
        let pending = |r: &&Row| matches!(r.state, RowState::Pending { .. });
        self.rows.iter().filter(pending).filter_map(|r| r.trial).collect()
    }

    pub(crate) fn try_rows(&mut self, rows: &[u64], until: Option<u64>) {
        if rows.is_empty() {
            return;
        }
        self.trials_made += 1;
        self.retries += rows.len() as u64;
        for &row in rows {
            let row = &mut self.rows[row as usize];
            row.trial = Some(self.trials_made);
            row.state = match until {
                Some(until) => RowState::Waiting { until },
                None => RowState::Pending { late: None },
            };
        }
    }
}

impl Model {
    pub(crate) fn retry(&mut self, no: RunNo, rows: Option<&Rows>) -> Outcome {
        let now = self.clock;
        let run = self.run_of(no)?;
        let finished = run.state == RunState::Finished;
        if run.ended() && !finished || run.gone.is_some() {
            return Err(run.over());
        }
        if finished && run.is_overdue(now) {
            return Err(Rejection::DeadlineExceeded);
        }
        let failed = |(number, row): &(u64, &Row)| {
            row.state == RowState::Failed && rows.is_none_or(|rows| rows.contains(*number))
        };
        let asked = (0..).zip(&run.rows).filter(failed).count() as u64;
        let namespace = run.namespace.clone();
        if asked > 0 {
            self.room_for_rows(&namespace, asked)?;
        }
        if asked > 0 && finished {
            self.room_for_a_run(&namespace)?;
        }
        let run = self.run_of(no)?;
        let mut again = 0;
        for (number, row) in (0..).zip(&mut run.rows) {
            let named = rows.is_none_or(|rows| rows.contains(number));
            if row.state == RowState::Failed && named {
                *row = Row { granted: true, failed_once: true, ..Row::default() };
                again += 1;
            }
        }
        if again > 0 && run.state == RunState::Finished {
            run.state = RunState::Running;
        }
        if again > 0 {
            self.note("rows tried again");
        }
        Ok(Reply::Retried { rows: again })
    }

    /// Whether a slot holds a trial.
    pub(crate) fn trial_at(&self, slot: SlotRef) -> bool {
        self.held_at(slot).any(|row| row.trial.is_some())
    }

    pub(crate) fn held_at(&self, slot: SlotRef) -> impl Iterator<Item = &Row> {
        let rows = self.runs.iter().flat_map(|r| &r.rows);
        rows.filter(move |r| r.leases().any(|l| l.slot == slot))
    }

    /// Everything that a slot holds.
    pub(crate) fn sets_at(&self, slot: SlotRef) -> Vec<HeldRows> {
        let mut sets: BTreeMap<(u32, Attempt), Vec<(u64, u32)>> = BTreeMap::new();
        for (no, run) in (1..).zip(&self.runs) {
            for (number, row) in (0..).zip(&run.rows) {
                for lease in row.leases().filter(|l| l.slot == slot) {
                    sets.entry((no, lease.attempt)).or_default().push((number, 1));
                }
            }
        }
        let set = |((no, attempt), rows): ((u32, Attempt), Vec<(u64, u32)>)| {
            let rows = Rows::from_ranges(rows).expect("ascending");
            HeldRows { run: RunNo(no), attempt, rows }
        };
        sets.into_iter().map(set).collect()
    }

    pub(crate) fn takes_work(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        worker.ready()
            && usize::from(slot.slot.0) < worker.slots.len()
            && !self.cordoned(slot)
            && !self.trial_at(slot)
    }

    /// The trial that a run offers to a slot, and whether no other slot empties itself for it.
    pub(crate) fn offered(&self, no: u32, slot: SlotRef, empty: bool) -> Option<(u32, bool)> {
        let run = &self.runs[no as usize - 1];
        let free = |trial: &u32| match run.emptying.get(trial) {
            Some(s) => !(self.takes_work(*s) && self.held_at(*s).next().is_some()),
            None => true,
        };
        let mut ready = run.ready_trials();
        if !self.cordon_allows_trials(no, slot) {
            return None;
        }
        let takers = self.takers(no, slot);
        if !takers.is_empty() {
            let first = |trial: u32| {
                let pending = |row: &&Row| {
                    matches!(row.state, RowState::Pending { .. }) && row.trial == Some(trial)
                };
                run.rows.iter().find(pending).expect("it is ready")
            };
            ready.retain(|trial| {
                self.excluded(no, *trial, first(*trial)).is_none_or(|(at, _)| at != slot)
            });
            let named = |at: SlotRef| (self.workers[&at.session].name.clone(), at.slot);
            ready.retain(|trial| {
                let failed = first(*trial).failed_at();
                let another = takers.iter().any(|at| !failed.contains(&named(*at)));
                !another || !failed.contains(&named(slot))
            });
        }
        let found = ready.iter().copied().find(free).map(|t| (t, true));
        found.or_else(|| ready.first().filter(|_| empty).map(|t| (*t, false)))
    }

    /// Whether another slot may have what this one had.
    pub(crate) fn another_slot_takes(&self, no: u32, slot: SlotRef) -> bool {
        !self.takers(no, slot).is_empty()
    }

    /// The other slots that may have what this one had.
    fn takers(&self, no: u32, slot: SlotRef) -> Vec<SlotRef> {
        let others = self.slots().into_iter().filter(|other| *other != slot);
        let before = |other: &SlotRef| match self.cordoned(slot) {
            true => self.could_have_but_for_its_own_cordon(no, *other),
            false => self.could_have(no, *other),
        };
        others.filter(before).collect()
    }

    /// The slot that comes after others for a trial, as its first row says, and until when.
    fn excluded(&self, no: u32, trial: u32, first: &Row) -> Option<Excluded> {
        let run = &self.runs[no as usize - 1];
        if !self.is_fair() {
            return run.excluded.get(&trial).copied();
        }
        let (worker, slot) = first.excluded()?;
        let named = |w: &&Worker| w.namespace == run.namespace && w.name == *worker;
        let session = *self.workers.iter().find(|(_, w)| named(w))?.0;
        let until = first.incident.as_ref()?.until?;
        Some((SlotRef { session, slot: *slot }, LedgerMs(until)))
    }

    pub(crate) fn trials(&self, no: u32) -> BTreeMap<u32, Shown> {
        let run = &self.runs[no as usize - 1];
        let mut trials: BTreeMap<u32, Shown> = BTreeMap::new();
        for (number, row) in (0..).zip(&run.rows) {
            let until = match row.state {
                RowState::Pending { .. } => None,
                RowState::Waiting { until } => Some(LedgerMs(until)),
                _ => continue,
            };
            let Some(trial) = row.trial else { continue };
            let excluded = || self.excluded(no, trial, row);
            let shown = trials.entry(trial).or_insert_with(|| (Vec::new(), None, None, excluded()));
            shown.0.push(number);
            (shown.1, shown.2) = (until, run.emptying.get(&trial).copied());
        }
        trials
    }

    pub(crate) fn slots(&self) -> Vec<SlotRef> {
        let of = |(session, worker): (&SessionId, &Worker)| {
            let slot = *session;
            (0..worker.slots.len())
                .map(move |n| SlotRef { session: slot, slot: SlotNo(n as u16) })
                .collect::<Vec<_>>()
        };
        self.workers.iter().flat_map(of).collect()
    }

    fn could_have(&self, no: u32, slot: SlotRef) -> bool {
        self.workers[&slot.session].ready()
            && !self.cordoned(slot)
            && self.fits_paused_or_not(no, slot)
    }

    fn could_have_but_for_its_own_cordon(&self, no: u32, slot: SlotRef) -> bool {
        self.workers[&slot.session].ready()
            && !self.cordoned_by_operators(slot)
            && self.fits_paused_or_not(no, slot)
    }

    /// A slot with a cordon of the ledger's own has trials where no slot without any could.
    pub(crate) fn cordon_allows_trials(&self, no: u32, slot: SlotRef) -> bool {
        let others = self.slots().into_iter().filter(|other| *other != slot);
        let stays = |other: SlotRef| {
            let worker = &self.workers[&other.session];
            !worker.draining && !self.cordoned(other) && self.fits(no, other)
        };
        !self.cordoned(slot) || !others.into_iter().any(stays)
    }

    pub(crate) fn takes_only_trials(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        worker.ready()
            && worker.slots.get(usize::from(slot.slot.0)).is_some_and(|s| s.cordoned)
            && !self.cordoned_by_operators(slot)
            && self.held_at(slot).next().is_none()
    }

    /// Clears slots that empty themselves for a trial that no longer exists.
    pub(crate) fn tidy(&mut self) {
        for run in &mut self.runs {
            let ready = run.ready_trials();
            run.emptying.retain(|trial, _| ready.contains(trial));
        }
    }
}
