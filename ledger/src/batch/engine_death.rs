//! Handles the death of an engine, which one of its rows may have caused.
//!
//! *Invariant:* only a row that ran alone gets a strike. All rows that ran together are suspects: a row that another
//! slot has by now, or that is done or cancelled, ran too and may be the cause. Suspects are tried again in halves,
//! each half alone on a slot, until the row that kills the engine is alone.
//! The halving is part of the state, so a new leader continues where the old one stopped. A death counts against the
//! slot too: `slot_incidents.rs`. So that a broken slot poisons no good row, rows are tried next at another slot than
//! the one whose engine they killed, if there is one: `blame.rs`.
//!
//! Rows that finished before the death stay done; rows that had not started stay with the slot, or come back, as its
//! worker says.
//!
//! A process numbers its deaths, so a death that it reports again to the next leader counts once.

use crate::batch::fail::{Failure, bound_failure};
use crate::batch::failure_record::{FailedTry, Ruling, Verdict, backoff_ms};
use crate::batch::incident::EndKind;
use crate::batch::slot_incidents::SlotIncident;
use crate::kernel::id::{LedgerMs, RunNo, SlotRef};
use crate::kernel::reply::{RefusedRows, Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{Evidence, FailureClass, HeldRows};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A slot's engine died with these rows started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineDied {
    /// The engine's slot.
    pub slot: SlotRef,
    /// Numbers the deaths that the slot's process reports, from 1; 0: it does not count them.
    pub number: u64,
    /// The started and unfinished rows, of all runs.
    pub started: Vec<HeldRows>,
    /// [`FailureClass::EngineDied`] or [`FailureClass::OutOfMemory`], by the evidence.
    pub class: FailureClass,
    /// Machine-readable reason.
    pub code: String,
    /// Human-readable.
    pub message: String,
    /// The evidence about the death.
    pub evidence: Evidence,
}

impl Operation for EngineDied {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = true;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.class.came_with())
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.slot.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        let Self { slot, number, started, class, code, message, evidence } = self;
        let failure = Failure { class, code, message, evidence };
        ledger.engine_died(ctx, slot, (number, &started), failure)
    }
}

impl Ledger {
    pub(crate) fn engine_died(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (number, started): (u64, &[HeldRows]),
        mut failure: Failure,
    ) -> Result<Reply, Rejection> {
        if !matches!(failure.class, FailureClass::EngineDied | FailureClass::OutOfMemory) {
            return Err(Rejection::Invalid("an engine dies of itself or of memory".into()));
        }
        bound_failure(&mut failure);
        let held = self.slot_mut(slot).ok_or(Rejection::SlotUnknown)?;
        let in_trial = held.trial().is_some();
        let told_before = held.death_reported(number);
        let mut refused = Vec::new();
        let (dead, spared) = self.take_started(slot, started, &mut refused);
        let suspects: Vec<(RunNo, Rows)> =
            dead.iter().chain(&spared).map(|held| (held.run, held.rows.clone())).collect();
        // If other slots have all rows of a report by now, the report is old.
        let counts = !in_trial || self.asks_a_second_slot();
        if counts && !told_before && (started.is_empty() || !suspects.is_empty()) {
            if let Some(held) = self.slot_mut(slot) {
                held.count_death();
            }
            let incident = SlotIncident::new(EndKind::EngineDied, suspects);
            self.count_incident(ctx, slot, incident, &failure.code);
        }
        let among = started.iter().map(|h| h.rows.len()).sum::<u64>();
        for held in spared {
            let failed = self.failed_try(ctx, slot, held.attempt, &failure);
            self.excuse(held.run, &held.rows, &failed);
            let (class, code) = (failure.class, failure.code.clone());
            self.emit(
                ctx,
                EventKind::Failed { slot, held, class, code, for_good: Rows::default() },
            );
        }
        let mut by_run: BTreeMap<RunNo, Vec<HeldRows>> = BTreeMap::new();
        dead.into_iter().for_each(|h| by_run.entry(h.run).or_default().push(h));
        let runs = by_run.len();
        for (no, sets) in by_run {
            let failed_before = self.runs.get(&no).map_or(0, |r| r.head.counts.failed);
            let for_good = match among {
                1 => self.alone(ctx, slot, &sets[0], &failure),
                _ => {
                    self.suspect_rows(ctx, slot, &sets, &failure, (among as u32, runs == 1));
                    Rows::default()
                }
            };
            for held in sets {
                let (class, code) = (failure.class, failure.code.clone());
                let for_good = for_good.clone();
                self.emit(ctx, EventKind::Failed { slot, held, class, code, for_good });
            }
            self.stop_if_hopeless(ctx, no, &failure, failed_before);
            self.refresh_active(no);
            self.finish_if_done(ctx, no);
        }
        Ok(Reply::Taken { refused })
    }

    /// Ends the attempts of the rows that the engine ran, and refuses the rest. The second result is the rows that
    /// another slot runs too: they continue there.
    fn take_started(
        &mut self,
        slot: SlotRef,
        started: &[HeldRows],
        refused: &mut Vec<RefusedRows>,
    ) -> (Vec<HeldRows>, Vec<HeldRows>) {
        let (mut dead, mut spared) = (Vec::new(), Vec::new());
        for held in started {
            let live = self.taken_of(slot, held).unwrap_or_default();
            let (rows, rest) = held.rows.partition(&live);
            let (run, attempt) = (held.run, held.attempt);
            if !rest.is_empty() {
                refused.push(self.refuse_stale(slot, held, rest));
            }
            let aside = self.release_shared_rows(run, attempt, &rows);
            let (_, rows) = rows.partition(&aside);
            if !rows.is_empty() {
                self.release(run, attempt, &rows);
                dead.push(HeldRows { run, attempt, rows });
            }
            if !aside.is_empty() {
                spared.push(HeldRows { run, attempt, rows: aside });
            }
        }
        (dead, spared)
    }

    /// The one row that the engine ran: a strike, and the next try is a trial too. Returns the row
    /// if it has failed for good.
    pub(crate) fn alone(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        held: &HeldRows,
        f: &Failure,
    ) -> Rows {
        let row = held.rows.end() - 1;
        let found = self.conclude(slot, (held.run, row));
        let failed = self.failed_try(ctx, slot, held.attempt, f);
        let now = self.meta.clock();
        let verdict = self.runs.add_failure((held.run, row), failed, found.decides, now);
        let Some(verdict) = verdict else { return Rows::default() };
        match verdict {
            Verdict::Failed => {
                self.runs.fail_for_good(held.run, row);
                if found.clears_slots {
                    self.clear_slots_of(ctx, held.run, row);
                }
                return held.rows.clone();
            }
            Verdict::Again => {
                if let Some(run) = self.runs.get_mut(&held.run) {
                    run.add_group(held.rows.clone(), None);
                }
            }
            Verdict::Wait(until) => {
                // An immediate retry shows soonest whether the row or the engine is to blame; after running out of
                // memory, wait first.
                let until = (f.class == FailureClass::OutOfMemory).then_some(until);
                self.put_on_trial(held.run, held.rows.clone(), until);
                self.exclude_from_latest_group(held.run, slot);
                self.record_incident(slot, (held.run, row), (EndKind::EngineDied, true));
            }
        }
        Rows::default()
    }

    /// The suspects of one run, when the engine ran several rows: halves if all are of this run, otherwise the run's
    /// rows as they are, apart from the other runs'.
    fn suspect_rows(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        sets: &[HeldRows],
        f: &Failure,
        (among, halve): (u32, bool),
    ) {
        let no = sets[0].run;
        let mut all = Rows::default();
        for held in sets {
            let failed = FailedTry {
                ruling: Ruling::Suspect { among },
                ..self.failed_try(ctx, slot, held.attempt, f)
            };
            self.excuse(no, &held.rows, &failed);
            for row in held.rows.iter() {
                self.record_incident(slot, (no, row), (EndKind::EngineDied, false));
            }
            all.unite(&held.rows);
        }
        let until = (f.class == FailureClass::OutOfMemory)
            .then(|| LedgerMs(self.meta.clock().0.saturating_add(backoff_ms(1))));
        match halve {
            true => self.try_halves(no, all, until),
            false => self.put_on_trial(no, all, until),
        }
    }

    /// Splits suspects into two groups, or one for a single row.
    pub(crate) fn try_halves(&mut self, no: RunNo, mut rows: Rows, until: Option<LedgerMs>) {
        let first = rows.take_first(rows.len().div_ceil(2) as u32);
        self.put_on_trial(no, first, until);
        self.put_on_trial(no, rows, until);
    }

    /// Makes failed rows one group, now or later.
    pub(crate) fn put_on_trial(&mut self, no: RunNo, rows: Rows, until: Option<LedgerMs>) {
        if rows.is_empty() {
            return;
        }
        if let Some(until) = until {
            self.runs.wait(no, rows.iter(), until);
        }
        let Some(run) = self.runs.change(&no) else { return };
        run.head.counts.retries += rows.len();
        run.add_group(rows, until);
    }
}
