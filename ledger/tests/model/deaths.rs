//! Engine deaths and worker crashes: counts the rows that may have run, and tries them apart.

use crate::naive::{Model, Outcome};
use crate::rows::{RowState, kind, only, refuse};
use crate::runs::Run;
use crate::workers::Ended;
use rollout_ledger::id::{Attempt, LedgerMs, SessionId, SlotNo, SlotRef};
use rollout_ledger::{FailureClass, HeldRows, Rejection, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// What may have run of an attempt: the slot, the run, the rows, and whether it was a trial of one row.
type Ran = (SlotRef, u32, Vec<u64>, bool);

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
        let mut ran = BTreeSet::new();
        let (mut refused, mut dead) = (Vec::new(), BTreeMap::<u32, BTreeSet<u64>>::new());
        for set in started {
            let mut rest = Vec::new();
            for row in set.rows.iter() {
                let run = self.run_of(set.run).ok();
                match run.and_then(|run| run.rows.get_mut(row as usize)) {
                    Some(r) if r.live_for(set.attempt, slot.session) => {
                        r.failed_once = true;
                        ran.insert((set.run.0, row));
                        if r.release_shared_rows(set.attempt) {
                            continue;
                        }
                        r.state = RowState::Failed; // Until it is known what becomes of it.
                        dead.entry(set.run.0).or_default().insert(row);
                    }
                    Some(r) => {
                        r.drop_lapsed_lease(set.attempt, slot.session);
                        rest.push(row);
                    }
                    None => rest.push(row),
                }
            }
            let rest = only(&set.rows, |r| rest.contains(&r));
            refuse(set, rest, Rejection::AttemptStale, &mut refused);
        }
        let counts = !in_trial || self.is_fair();
        if self.is_news(slot, number) && counts && (started.is_empty() || !ran.is_empty()) {
            self.count_incident(slot, Ended { by_death: true, unreadable: false, rows: ran });
        }
        let among = started.iter().map(|set| set.rows.len()).sum::<u64>();
        let (clock, runs) = (self.clock, dead.len());
        for (no, rows) in dead {
            let rows: Vec<u64> = rows.into_iter().collect();
            let memory = class == FailureClass::OutOfMemory;
            let (mut poison, mut clears) = (false, true);
            if among == 1 {
                let found = self.conclude(slot, no, rows[0]);
                clears = found.1;
                poison = self.strike(slot, (no, rows[0]), class, found);
            } else {
                let fair = self.is_fair();
                let name = self.workers[&slot.session].name.clone();
                let time = (clock, self.version);
                let run = &mut self.runs[no as usize - 1];
                for row in rows.iter().filter(|_| fair) {
                    let at = (name.clone(), slot.slot);
                    run.rows[*row as usize].ended_at(at, time, false);
                }
                let first = if runs == 1 { rows.len().div_ceil(2) } else { 0 };
                run.try_rows(&rows[..first], memory.then_some(clock + 1000));
                run.try_rows(&rows[first..], memory.then_some(clock + 1000));
            }
            let run = &mut self.runs[no as usize - 1];
            let hopeless = run.stops(false, poison);
            run.finish_if_done();
            if poison && clears {
                self.clear_slots_of((no, rows[0]));
            }
            let events = [(hopeless, "run hopeless"), (poison, "row is poison")];
            events.iter().filter(|e| e.0).for_each(|e| self.note(e.1));
            self.note(if in_trial { "engine died in a trial" } else { "engine died" });
        }
        Ok(Reply::Taken { refused })
    }

    /// An engine died of a row alone. Returns whether the row is poison; if not, it is on trial.
    fn strike(
        &mut self,
        slot: SlotRef,
        (no, number): (u32, u64),
        class: FailureClass,
        (decides, _): (bool, bool),
    ) -> bool {
        let name = self.workers[&slot.session].name.clone();
        let (fair, version) = (self.is_fair(), self.version);
        let (clock, run) = (self.clock, &mut self.runs[no as usize - 1]);
        let memory = class == FailureClass::OutOfMemory;
        let row = &mut run.rows[number as usize];
        row.strikes[kind(class)] += 1;
        let strikes = row.strikes[kind(class)];
        if decides && strikes >= if memory { 3 } else { 2 } {
            (row.trial, row.state) = (None, RowState::Failed);
            return true;
        }
        if fair {
            row.ended_at((name, slot.slot), (clock, version), true);
        }
        let pause = (1000 << (strikes - 1).min(6)).min(60_000);
        run.try_rows(&[number], memory.then_some(clock + pause));
        if !fair {
            run.excluded.insert(run.trials_made, (slot, LedgerMs(clock + 10_000)));
        }
        false
    }

    /// Whether a slot whose engine died of a row may decide by it, and whether it clears slots if it does.
    pub(crate) fn conclude(&self, slot: SlotRef, no: u32, number: u64) -> (bool, bool) {
        let incident = &self.runs[no as usize - 1].rows[number as usize].incident;
        let at = (self.workers[&slot.session].name.clone(), slot.slot);
        let here = incident.as_ref().filter(|i| i.died_alone_at.as_ref() == Some(&at));
        match here {
            Some(incident) if self.is_fair() && self.another_slot_takes(no, slot) => {
                (incident.until.is_none(), false)
            }
            _ => (true, true),
        }
    }

    /// A process ended without a word: what may have run is counted, and what was counted often is tried apart.
    pub(crate) fn worker_crashed(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        kept: &[HeldRows],
    ) {
        let unreported_starts = self.take_unreported_starts(session, kept);
        let ran = self.may_have_run(session, started, kept);
        let is_prime = |model: &Self, (_, no, rows, alone): &Ran| {
            *alone && model.runs[*no as usize - 1].rows[rows[0] as usize].crashes > 3
        };
        let mut primes = ran.iter().filter(|ran| is_prime(self, ran)).count();
        let proven = primes == 1;
        for ran in ran {
            let prime = is_prime(self, &ran);
            let (slot, no, rows, alone) = ran;
            let clock = self.clock;
            let ends = |row: u64, run: &Run| run.rows[row as usize].crashes;
            let (mut poison, mut clears) = (false, true);
            if prime && proven {
                // Its lease has ended: what runs elsewhere counts against the cap.
                self.runs[no as usize - 1].rows[rows[0] as usize].state = RowState::Failed;
                let found = self.conclude(slot, no, rows[0]);
                clears = found.1;
                poison = self.strike(slot, (no, rows[0]), FailureClass::EngineDied, found);
                self.events.push("row ended its worker alone".into());
            } else if prime {
                primes -= 1;
                let run = &mut self.runs[no as usize - 1];
                if primes > 0 {
                    let more = ends(rows[0], run) - 3;
                    let wait = (1000 << (more - 1).min(6)).min(60_000);
                    run.try_rows(&rows, Some(clock + wait));
                }
            } else if !alone {
                let run = &mut self.runs[no as usize - 1];
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
            if poison && clears {
                self.clear_slots_of((no, rows[0]));
            }
        }
        self.count_unreported_starts(unreported_starts);
    }

    /// The rows that a silent worker may have started, and no longer has.
    fn take_unreported_starts(
        &mut self,
        session: SessionId,
        kept: &[HeldRows],
    ) -> BTreeMap<(u32, Attempt), Vec<u64>> {
        let mut all: BTreeMap<(u32, Attempt), Vec<u64>> = BTreeMap::new();
        let Some(worker) = self.workers.get_mut(&session) else { return all };
        let (unreported_starts, draining) =
            (std::mem::take(&mut worker.unreported_starts), worker.draining);
        for (no, attempt, row) in unreported_starts {
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

    fn count_unreported_starts(&mut self, unreported_starts: BTreeMap<(u32, Attempt), Vec<u64>>) {
        for ((no, _), rows) in unreported_starts {
            let run = &mut self.runs[no as usize - 1];
            if run.ended() {
                continue;
            }
            let mut often = Vec::new();
            for number in rows {
                let row = &mut run.rows[number as usize];
                if matches!(row.state, RowState::Done { .. } | RowState::Failed)
                    || row.speculative.is_some()
                {
                    continue;
                }
                (row.crashes, row.failed_once) = (row.crashes + 1, true);
                self.events.push("may have ended its worker unheard".into());
                let pending = matches!(row.state, RowState::Pending { .. }) && row.trial.is_none();
                if row.crashes >= 3 && pending {
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
                        && run.rows[*row as usize].speculative.is_none()
                };
                let rows: Vec<u64> = own.iter().copied().filter(ran).collect();
                for row in &rows {
                    let row = &mut run.rows[*row as usize];
                    (row.crashes, row.failed_once) = (row.crashes + 1, true);
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
}
