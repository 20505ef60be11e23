//! Owns: failed attempts, and reports about rows that their slot no longer holds.
//!
//! *Invariant:* only the holder of a live grant may fail or return its rows. A lapsed attempt can do neither, because
//! its rows are pending already; trying to ends the attempt. The policy of its class decides what a failure means;
//! the ledger counts failures so that the counts survive a failover.
//! Absent: how rows leave an attempt (`lapse.rs`).

use crate::batch::failure_record::{FailedTry, Ruling, Verdict};
use crate::batch::incident::EndKind;
use crate::batch::run::RunState;
use crate::fleet::slot::Slot;
#[cfg(feature = "seeded-bugs")]
use crate::kernel::id::LedgerMs;
use crate::kernel::id::{Attempt, RunNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{RefusedRows, Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{Evidence, FailureClass, HeldRows};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
#[cfg(feature = "seeded-bugs")]
use crate::machine::seeded::{Bug, seeded};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;

/// An attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fail {
    /// The reporting slot.
    pub slot: SlotRef,
    /// The failed rows.
    pub held: HeldRows,
    /// Which policy applies.
    pub class: FailureClass,
    /// Machine-readable reason.
    pub code: String,
    /// Human-readable.
    pub message: String,
    /// The evidence for the class.
    pub evidence: Evidence,
}

impl Operation for Fail {
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
        self.held.rows.len()
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.slot.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        let Self { slot, held, class, code, message, evidence } = self;
        ledger.fail(ctx, slot, &held, Failure { class, code, message, evidence })
    }
}

/// A worker's report of a failed attempt.
pub(crate) struct Failure {
    pub(crate) class: FailureClass,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) evidence: Evidence,
}

impl Ledger {
    pub(crate) fn fail(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        held: &HeldRows,
        mut failure: Failure,
    ) -> Result<Reply, Rejection> {
        bound_failure(&mut failure);
        let (taken, mut refused) = (self.taken_of(slot, held).unwrap_or_default(), Vec::new());
        let (taken, rest) = held.rows.partition(&taken);
        if !rest.is_empty() {
            refused.push(self.refuse_stale(slot, held, rest));
        }
        if taken.is_empty() {
            return Ok(Reply::Taken { refused }); // Who holds nothing pauses nothing.
        }
        let live = self.runs.get(&held.run).and_then(|r| r.flight.grants.get(&held.attempt));
        let group = live.and_then(|grant| grant.group);
        let aside = self.release_shared_rows(held.run, held.attempt, &taken);
        let (_, own) = taken.partition(&aside);
        self.release(held.run, held.attempt, &own);
        let failed = self.failed_try(ctx, slot, held.attempt, &failure);
        self.excuse(held.run, &aside, &failed);
        let failed_before = self.runs.get(&held.run).map_or(0, |r| r.head.counts.failed);
        let end = match failure.class {
            FailureClass::EngineDied | FailureClass::OutOfMemory => (EndKind::EngineDied, true),
            _ => (EndKind::RowFailed, false),
        };
        let (mut again, mut for_good) = (Rows::default(), Rows::default());
        let another = OnceCell::new();
        for row in own.iter() {
            let decides = !end.1 || self.report_decides(slot, (held.run, row), &another);
            match self.fail_row(held.run, row, failed.clone(), decides) {
                Some(Verdict::Again) => again.push(row, 1),
                Some(Verdict::Failed) => for_good.push(row, 1),
                Some(Verdict::Wait(_)) => {
                    self.record_incident(slot, (held.run, row), end);
                }
                None => {}
            }
        }
        let failed = HeldRows { run: held.run, attempt: held.attempt, rows: taken };
        let (class, code) = (failure.class, failure.code.clone());
        self.emit(ctx, EventKind::Failed { slot, held: failed, class, code, for_good });
        if let Some(run) = self.runs.get_mut(&held.run).filter(|_| !again.is_empty()) {
            run.head.counts.returned += again.len();
            run.put_back(group, &again);
        }
        let of_store = failure.class == FailureClass::StoreRefused;
        if self.is_old_refusal(held, &failure) {
            // The store counts as repaired since then.
        } else if of_store && self.asks_a_second_slot() {
            self.store_refuses(ctx, slot, held.run, &failure.message);
        } else {
            self.stop_if_hopeless(ctx, held.run, &failure, failed_before);
        }
        self.refresh_active(held.run);
        self.finish_if_done(ctx, held.run);
        if let Some(row) = own.iter().next() {
            self.count_failure(ctx, slot, (held.run, row), failure.class);
        }
        Ok(Reply::Taken { refused })
    }

    /// The record of a failed attempt.
    pub(crate) fn failed_try(
        &self,
        ctx: &Context,
        slot: SlotRef,
        attempt: Attempt,
        failure: &Failure,
    ) -> FailedTry {
        FailedTry {
            attempt,
            worker: self.workers.get(&slot.session).map_or("", |w| w.name()).to_owned(),
            class: failure.class,
            code: failure.code.clone(),
            message: failure.message.clone(),
            evidence: failure.evidence.clone(),
            wall_ms: ctx.wall_ms,
            ruling: Ruling::Excused,
        }
    }

    fn fail_row(
        &mut self,
        no: RunNo,
        row: u64,
        failed: FailedTry,
        decides: bool,
    ) -> Option<Verdict> {
        let now = self.meta.clock();
        #[cfg(feature = "seeded-bugs")]
        let now = match seeded(Bug::WallClockInApply) {
            true => LedgerMs(now.0 + crate::machine::seeded::own_ms() % 100),
            false => now,
        };
        let verdict = self.runs.add_failure((no, row), failed, decides, now)?;
        match verdict {
            Verdict::Again => {} // The caller returns all of these at once.
            Verdict::Wait(until) => {
                if let Some(run) = self.runs.get_mut(&no) {
                    run.head.counts.retries += 1;
                }
                self.runs.wait(no, std::iter::once(row), until);
            }
            Verdict::Failed => self.runs.fail_for_good(no, row),
        }
        Some(verdict)
    }

    /// Whether the store refused an attempt that was granted before the run was last resumed. Such a report may come
    /// after the resumption, from which on the store counts as repaired: only a later attempt is news.
    fn is_old_refusal(&self, held: &HeldRows, failure: &Failure) -> bool {
        let resumed = self.runs.get(&held.run).map_or(0, |run| run.head.resumed_index);
        failure.class == FailureClass::StoreRefused && held.attempt.index() < resumed
    }

    /// Pauses a run that cannot continue: too many of its rows fail or, below cluster version 3, the store refuses it
    /// once. A run that was resumed despite its failures continues until the next failure.
    pub(crate) fn stop_if_hopeless(
        &mut self,
        ctx: &Context,
        no: RunNo,
        failure: &Failure,
        failed_before: u64,
    ) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        if run.head.state != RunState::Running {
            return;
        }
        let (failed, max) = (run.head.counts.failed, run.head.spec.failures_max);
        if failure.class == FailureClass::StoreRefused {
            run.head.state = RunState::Paused;
            run.head.reason = format!("the store refuses: {}", failure.message);
        } else if failed > max && failed > failed_before {
            run.head.state = RunState::Paused;
            run.head.reason =
                format!("{failed} rows failed for good, more than failures_max = {max}");
        }
        let paused = (run.head.state == RunState::Paused).then(|| run.head.reason.clone());
        self.runs.mark(no);
        if let Some(reason) = paused {
            self.emit_run(ctx, no, "paused", &reason);
        }
    }

    /// Refuses rows that this session no longer has under this attempt. Lapsed rows among them end for good: the
    /// worker is done with them, so they must not become its own again when it is back.
    pub(crate) fn refuse_stale(
        &mut self,
        slot: SlotRef,
        held: &HeldRows,
        rows: Rows,
    ) -> RefusedRows {
        let HeldRows { run: no, attempt, .. } = *held;
        if let Some(run) = self.runs.get_mut(&no)
            && let Some(lapsed) = run.flight.lapsed.get(&attempt)
            && lapsed.slot.session == slot.session
        {
            let (over, _) = rows.partition(&lapsed.rows);
            run.outdate_lapsed(&over);
            self.runs.mark(no);
        }
        RefusedRows { run: no, attempt, rows, why: Rejection::AttemptStale }
    }

    /// The rows that this session has under this attempt, whether another slot runs them too or not.
    pub(crate) fn taken_of(&self, slot: SlotRef, held: &HeldRows) -> Option<Rows> {
        let (at, rows) = self.runs.get(&held.run)?.holding(held.attempt)?;
        (at.session == slot.session).then_some(rows)
    }

    pub(crate) fn slot(&self, slot: SlotRef) -> Option<&Slot> {
        self.workers.slot(slot)
    }

    pub(crate) fn slot_mut(&mut self, slot: SlotRef) -> Option<&mut Slot> {
        self.workers.slot_mut(slot)
    }
}

/// Truncates a worker's report of a failure to its bounds. It is never refused for its size: the worker would forget
/// the rows, and the ledger would keep them.
pub(crate) fn bound_failure(failure: &mut Failure) {
    truncate(&mut failure.code, limits::NAME_BYTES_MAX);
    truncate(&mut failure.message, limits::REASON_BYTES_MAX);
    truncate(&mut failure.evidence.exception, limits::NAME_BYTES_MAX);
}

/// Cuts a text to at most `max` bytes without cutting a character.
fn truncate(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
}
