//! Engines that die, the trials that follow, cordons, and rows that are tried again.

use crate::naive::{Model, Outcome};
use crate::runs::{Row, RowState, Run, kind, only, refuse};
use crate::workers::Worker;
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{FailureClass, HeldRows, Rejection, Reply, Rows};
use std::collections::{BTreeMap, BTreeSet};

/// A slot, and until when any other comes before it.
pub(crate) type Shunned = (SlotRef, LedgerMs);

/// What may have run of an attempt: where, of which run, which rows, and whether it was a trial of one row.
type Ran = (SlotRef, u32, Vec<u64>, bool);

/// A pending or waiting trial as both sides show it: rows, until when, who empties itself for it, whom it shuns.
pub(crate) type Shown = (Vec<u64>, Option<LedgerMs>, Option<SlotRef>, Option<Shunned>);

impl Run {
    /// The pending trials, by number.
    pub(crate) fn ready_trials(&self) -> BTreeSet<u32> {
        let pending = |r: &&Row| matches!(r.state, RowState::Pending { .. });
        self.rows.iter().filter(pending).filter_map(|r| r.trial).collect()
    }

    pub(crate) fn trials(&self) -> BTreeMap<u32, Shown> {
        let mut trials: BTreeMap<u32, Shown> = BTreeMap::new();
        for (number, row) in (0..).zip(&self.rows) {
            let until = match row.state {
                RowState::Pending { .. } => None,
                RowState::Waiting { until } => Some(LedgerMs(until)),
                _ => continue,
            };
            let Some(trial) = row.trial else { continue };
            let shown = trials.entry(trial).or_default();
            shown.0.push(number);
            (shown.1, shown.2) = (until, self.emptying.get(&trial).copied());
            shown.3 = self.shuns.get(&trial).copied();
        }
        trials
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
    pub(crate) fn died(
        &mut self,
        slot: SlotRef,
        number: u64,
        started: &[HeldRows],
        class: FailureClass,
    ) -> Outcome {
        let worker = self.workers.get(&slot.session);
        if worker.is_none_or(|w| usize::from(slot.slot.0) >= w.slots.len()) {
            return Err(Rejection::SlotUnknown);
        }
        let in_trial = self.trial_at(slot);
        let (mut spared, mut ran) = (0, BTreeSet::new());
        let (mut refused, mut dead) = (Vec::new(), BTreeMap::<u32, BTreeSet<u64>>::new());
        for set in started {
            let mut rest = Vec::new();
            for row in set.rows.iter() {
                let run = self.run_of(set.run).ok();
                match run.and_then(|run| run.rows.get_mut(row as usize)) {
                    Some(r) if r.live_for(set.attempt, slot.session) => {
                        r.failed_once = true;
                        ran.insert((set.run.0, row));
                        if r.step_aside(set.attempt) {
                            spared += 1;
                            continue;
                        }
                        r.state = RowState::Failed; // Until it is known what becomes of it.
                        dead.entry(set.run.0).or_default().insert(row);
                    }
                    Some(r) => {
                        r.done_with(set.attempt, slot.session);
                        rest.push(row);
                    }
                    None => rest.push(row),
                }
            }
            let rest = only(&set.rows, |r| rest.contains(&r));
            refuse(set, rest, Rejection::AttemptStale, &mut refused);
        }
        if self.is_news(slot, number) && !in_trial && (started.is_empty() || !ran.is_empty()) {
            self.count_death(slot, ran);
        }
        let among = dead.values().map(BTreeSet::len).sum::<usize>() + spared;
        let (clock, runs) = (self.clock, dead.len());
        for (no, rows) in dead {
            let rows: Vec<u64> = rows.into_iter().collect();
            let run = &mut self.runs[no as usize - 1];
            let memory = class == FailureClass::OutOfMemory;
            let mut poison = false;
            if among == 1 {
                let strikes = &mut run.rows[rows[0] as usize].strikes[kind(class)];
                *strikes += 1;
                poison = *strikes >= if memory { 3 } else { 2 };
                let wait = [1000, 2000, 0][*strikes as usize - 1];
                match poison {
                    true => run.rows[rows[0] as usize].trial = None,
                    false => {
                        run.try_rows(&rows, memory.then_some(clock + wait));
                        run.shuns.insert(run.trials_made, (slot, LedgerMs(clock + 10_000)));
                    }
                }
            } else {
                let first = if runs == 1 { rows.len().div_ceil(2) } else { 0 };
                run.try_rows(&rows[..first], memory.then_some(clock + 1000));
                run.try_rows(&rows[first..], memory.then_some(clock + 1000));
            }
            let hopeless = run.stops(false, poison);
            run.finish_if_done();
            if poison {
                self.acquit((no, rows[0]));
            }
            let events = [(hopeless, "run hopeless"), (poison, "row is poison")];
            events.iter().filter(|e| e.0).for_each(|e| self.note(e.1));
            self.note(if in_trial { "engine died in a trial" } else { "engine died" });
        }
        Ok(Reply::Taken { refused })
    }

    /// A process ended without a word: what may have run is counted, and what was counted often is tried apart.
    pub(crate) fn ended_abruptly(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        kept: &[HeldRows],
    ) {
        let unheard = self.take_unheard(session, kept);
        let ran = self.may_have_run(session, started, kept);
        let is_prime = |model: &Self, (_, no, rows, alone): &Ran| {
            *alone && model.runs[*no as usize - 1].rows[rows[0] as usize].abrupt > 3
        };
        let mut primes = ran.iter().filter(|ran| is_prime(self, ran)).count();
        let proven = primes == 1;
        for ran in ran {
            let prime = is_prime(self, &ran);
            let (slot, no, rows, alone) = ran;
            let clock = self.clock;
            let run = &mut self.runs[no as usize - 1];
            let ends = |row: u64, run: &Run| run.rows[row as usize].abrupt;
            let mut poison = false;
            if prime && proven {
                let row = &mut run.rows[rows[0] as usize];
                row.strikes[kind(FailureClass::EngineDied)] += 1;
                poison = row.strikes[kind(FailureClass::EngineDied)] >= 2;
                if poison {
                    (row.trial, row.state) = (None, RowState::Failed);
                } else {
                    run.try_rows(&rows, None);
                    run.shuns.insert(run.trials_made, (slot, LedgerMs(clock + 10_000)));
                }
                self.events.push("row ended its worker alone".into());
            } else if prime {
                primes -= 1;
                if primes > 0 {
                    let more = ends(rows[0], run) - 3;
                    let wait = (1000 << (more - 1).min(6)).min(60_000);
                    run.try_rows(&rows, Some(clock + wait));
                }
            } else if !alone {
                let often: Vec<u64> =
                    rows.iter().copied().filter(|row| ends(*row, run) >= 3).collect();
                let first = often.len().div_ceil(2);
                run.try_rows(&often[..first], None);
                run.try_rows(&often[first..], None);
                if !often.is_empty() {
                    self.events.push("rows suspected of ending workers".into());
                }
            }
            let run = &mut self.runs[no as usize - 1];
            run.stops(false, poison);
            run.finish_if_done();
            if poison {
                self.acquit((no, rows[0]));
            }
        }
        self.count_unheard(unheard);
    }

    /// What a silent worker may have started, and has no more.
    fn take_unheard(
        &mut self,
        session: SessionId,
        kept: &[HeldRows],
    ) -> BTreeMap<(u32, Attempt), Vec<u64>> {
        let mut all: BTreeMap<(u32, Attempt), Vec<u64>> = BTreeMap::new();
        let Some(worker) = self.workers.get_mut(&session) else { return all };
        let (unheard, draining) = (std::mem::take(&mut worker.unheard), worker.draining);
        for (no, attempt, row) in unheard {
            let of = self.runs[no as usize - 1].rows.get(row as usize);
            let own = of.is_some_and(|row| match row.state {
                RowState::Running(l) => l.attempt == attempt,
                _ => false,
            });
            let mut keeps = kept.iter().filter(|s| (s.run.0, s.attempt) == (no, attempt));
            if !draining && !own && !keeps.any(|s| s.rows.contains(row)) {
                all.entry((no, attempt)).or_default().push(row);
            }
        }
        all
    }

    fn count_unheard(&mut self, unheard: BTreeMap<(u32, Attempt), Vec<u64>>) {
        for ((no, _), rows) in unheard {
            let run = &mut self.runs[no as usize - 1];
            if run.ended() {
                continue;
            }
            let mut often = Vec::new();
            for number in rows {
                let row = &mut run.rows[number as usize];
                if matches!(row.state, RowState::Done { .. } | RowState::Failed)
                    || row.shadow.is_some()
                {
                    continue;
                }
                (row.abrupt, row.failed_once) = (row.abrupt + 1, true);
                self.events.push("may have ended its worker unheard".into());
                let pending = matches!(row.state, RowState::Pending { .. }) && row.trial.is_none();
                if row.abrupt >= 3 && pending {
                    often.push(number);
                }
            }
            let first = often.len().div_ceil(2);
            run.try_rows(&often[..first], None);
            run.try_rows(&often[first..], None);
        }
    }

    fn may_have_run(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        kept: &[HeldRows],
    ) -> Vec<Ran> {
        let Some(worker) = self.workers.get(&session).filter(|w| !w.draining) else {
            return Vec::new();
        };
        let (silent, slots) = (worker.suspect.is_some(), worker.slots.len());
        let mut all = Vec::new();
        for slot in (0..slots).map(|n| SlotRef { session, slot: SlotNo(n as u16) }) {
            for set in self.sets_at(slot) {
                let run = &mut self.runs[set.run.0 as usize - 1];
                let named = |sets: &[HeldRows], row: u64| {
                    let of = |s: &&HeldRows| s.run == set.run && s.attempt == set.attempt;
                    sets.iter().filter(of).any(|s| s.rows.contains(row))
                };
                let own = |row: &u64| match run.rows[*row as usize].state {
                    RowState::Running(l) => l.attempt == set.attempt && l.slot == slot,
                    _ => false,
                };
                let own: Vec<u64> = set.rows.iter().filter(own).collect();
                let trial = own.iter().any(|row| run.rows[*row as usize].trial.is_some());
                let ran = |row: &u64| {
                    (silent || trial || named(started, *row))
                        && !named(kept, *row)
                        && run.rows[*row as usize].shadow.is_none()
                };
                let rows: Vec<u64> = own.iter().copied().filter(ran).collect();
                for row in &rows {
                    let row = &mut run.rows[*row as usize];
                    (row.abrupt, row.failed_once) = (row.abrupt + 1, true);
                }
                if !rows.is_empty() {
                    all.push((slot, set.run.0, rows, trial && own.len() == 1));
                }
            }
        }
        all
    }

    /// Whether a slot tells of a death for the first time.
    fn is_news(&mut self, slot: SlotRef, number: u64) -> bool {
        let Some(worker) = self.workers.get_mut(&slot.session) else { return false };
        let last = &mut worker.slots[usize::from(slot.slot.0)].last_death;
        let news = number == 0 || number > *last;
        *last = number.max(*last);
        if !news {
            self.note("death told again");
        }
        news
    }

    fn count_death(&mut self, slot: SlotRef, ran: BTreeSet<(u32, u64)>) {
        let Some(worker) = self.workers.get_mut(&slot.session) else { return };
        let held = &mut worker.slots[usize::from(slot.slot.0)];
        held.against.push(ran);
        if held.against.len() > 8 {
            held.against.remove(0);
        }
        if held.against.len() >= 3 && !held.cordoned {
            held.cordoned = true;
            self.note("slot cordoned");
        }
    }

    /// A row is guilty: no slot is to blame for the deaths of engines that ran it.
    fn acquit(&mut self, row: (u32, u64)) {
        let mut lifted = false;
        for held in self.workers.values_mut().flat_map(|w| &mut w.slots) {
            let before = held.against.len();
            held.against.retain(|ran| !ran.contains(&row));
            if held.against.len() < before && held.against.len() < 3 && held.cordoned {
                (held.cordoned, lifted) = (false, true);
            }
        }
        if lifted {
            self.note("slot acquitted");
        }
    }

    pub(crate) fn cordon(
        &mut self,
        session: SessionId,
        slot: Option<u16>,
        cordoned: bool,
    ) -> Outcome {
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if slot.is_some_and(|n| usize::from(n) >= worker.slots.len()) {
            return Err(Rejection::SlotUnknown);
        }
        let key = (worker.namespace.clone(), worker.name.clone());
        let (whole, slots) = self.cordons.entry(key).or_default();
        match (slot, cordoned) {
            (Some(_), false) if *whole => {
                return Err(Rejection::Invalid(
                    "the whole worker is cordoned: uncordon it without naming a slot".into(),
                ));
            }
            (None, true) => *whole = true,
            (None, false) => (*whole, *slots) = (false, BTreeSet::new()),
            (Some(slot), true) => drop(slots.insert(slot)),
            (Some(slot), false) => drop(slots.remove(&slot)),
        }
        for (number, held) in (0..).zip(&mut worker.slots) {
            if !cordoned && slot.is_none_or(|slot| slot == number) {
                (held.cordoned, held.against) = (false, Vec::new());
            }
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn cordoned(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        self.cordoned_by_operators(slot) || worker.slots[usize::from(slot.slot.0)].cordoned
    }

    fn cordoned_by_operators(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        let key = (worker.namespace.clone(), worker.name.clone());
        let by_name = self.cordons.get(&key);
        by_name.is_some_and(|(whole, slots)| *whole || slots.contains(&slot.slot.0))
    }

    pub(crate) fn retry(&mut self, no: RunNo, rows: Option<&Rows>) -> Outcome {
        let now = self.clock;
        let run = self.run_of(no)?;
        let finished = run.state == RunState::Finished;
        if run.ended() && !finished || run.gone.is_some() {
            return Err(run.over());
        }
        let deadline = run.created_at + run.spec.deadline_ms;
        if finished && run.spec.deadline_ms > 0 && deadline <= now {
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
        if !self.may_try(no, slot) {
            return None;
        }
        let others = self.slots().into_iter().filter(|other| *other != slot);
        let before = |other: SlotRef| match self.cordoned(slot) {
            true => self.could_have_but_for_its_own_cordon(no, other),
            false => self.could_have(no, other),
        };
        if others.into_iter().any(before) {
            ready.retain(|trial| run.shuns.get(trial).is_none_or(|shuns| shuns.0 != slot));
        }
        let found = ready.iter().copied().find(free).map(|t| (t, true));
        found.or_else(|| ready.first().filter(|_| empty).map(|t| (*t, false)))
    }

    fn slots(&self) -> Vec<SlotRef> {
        let of = |(session, worker): (&SessionId, &Worker)| {
            let slot = *session;
            (0..worker.slots.len())
                .map(move |n| SlotRef { session: slot, slot: SlotNo(n as u16) })
                .collect::<Vec<_>>()
        };
        self.workers.iter().flat_map(of).collect()
    }

    fn could_have(&self, no: u32, slot: SlotRef) -> bool {
        self.workers[&slot.session].ready() && !self.cordoned(slot) && self.fits(no, slot)
    }

    fn could_have_but_for_its_own_cordon(&self, no: u32, slot: SlotRef) -> bool {
        self.workers[&slot.session].ready()
            && !self.cordoned_by_operators(slot)
            && self.fits(no, slot)
    }

    /// A slot with a cordon of the ledger's own has trials where no slot without any could.
    pub(crate) fn may_try(&self, no: u32, slot: SlotRef) -> bool {
        let others = self.slots().into_iter().filter(|other| *other != slot);
        let stays = |other: SlotRef| {
            let worker = &self.workers[&other.session];
            !worker.draining && !self.cordoned(other) && self.fits(no, other)
        };
        !self.cordoned(slot) || !others.into_iter().any(stays)
    }

    pub(crate) fn only_tries(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        worker.ready()
            && worker.slots.get(usize::from(slot.slot.0)).is_some_and(|s| s.cordoned)
            && !self.cordoned_by_operators(slot)
            && self.held_at(slot).next().is_none()
    }

    /// Nobody empties himself for what is not there.
    pub(crate) fn tidy(&mut self) {
        for run in &mut self.runs {
            let ready = run.ready_trials();
            run.emptying.retain(|trial, _| ready.contains(trial));
        }
    }
}
