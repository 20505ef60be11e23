//! Handles the crash of a worker's process while rows ran. One of those rows may crash whole hosts.
//!
//! No report names the row, so the crash counts for every row that may have run. One crash is weak evidence, because
//! hosts also crash for other reasons. *Invariant:* until a row has been through [`limits::WORKER_CRASHES_MAX`]
//! crashes, it becomes pending again as if its worker had returned it. From then on it is a suspect, like a row of an
//! engine that died: trials in halves isolate it. It gets a strike only if it was alone on its slot and no other row
//! of that worker was in the same position. So no row crashes one host after another forever.
//!
//! Rows that a silent worker may have started without a report count too: `unreported_starts.rs`.
//!
//! The end of a draining worker counts for no row, because that worker may exit before its rows finish. A row that
//! two slots run continues at the other slot.

use crate::batch::fail::Failure;
use crate::batch::failure_record::{FailedTry, Ruling, backoff_ms};
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SessionId, SlotRef};
use crate::kernel::limits;
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{Evidence, FailureClass, HeldRows};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;

/// What may have run of one attempt.
struct Ran {
    slot: SlotRef,
    held: HeldRows,
    /// For each row, the number of its crashes, including this one.
    ends: Vec<u32>,
    /// It was a trial of one row.
    alone: bool,
}

impl Ran {
    /// The row is proven guilty, unless another row is in the same position.
    fn is_prime(&self) -> bool {
        self.alone && self.ends.iter().all(|ends| *ends > limits::WORKER_CRASHES_MAX)
    }

    fn suspects(&self) -> Rows {
        let all = self.held.rows.iter().zip(&self.ends);
        let often = all.filter(|(_, ends)| **ends >= limits::WORKER_CRASHES_MAX);
        Rows::from_ranges(often.map(|(row, _)| (row, 1))).unwrap_or_default()
    }
}

/// The failure of an attempt that ended with its worker, without a report.
pub(crate) fn worker_lost() -> Failure {
    Failure {
        class: FailureClass::EngineDied,
        code: "WORKER_LOST".into(),
        message: "its worker's process ended without a word".into(),
        evidence: Evidence::default(),
    }
}

impl Ledger {
    /// The process of a session has crashed. `started` is what it may have run, as the leader knows; `kept` is what
    /// the next process has of it on its disk. Rows that are not suspects yet stay with the session.
    pub(crate) fn worker_crashed(
        &mut self,
        ctx: &Context,
        session: SessionId,
        started: &[HeldRows],
        kept: &[HeldRows],
    ) {
        let unreported_starts = self.take_unreported_starts(session);
        let ran = self.may_have_run(session, started, kept);
        let among = ran.iter().map(|ran| ran.held.rows.len()).sum::<u64>() as u32;
        let mut primes = ran.iter().filter(|ran| ran.is_prime()).count();
        let proven = primes == 1;
        let failure = worker_lost();
        for ran in ran {
            let (slot, no) = (ran.slot, ran.held.run);
            if ran.is_prime() && proven {
                self.end_attempt(ctx, slot, &ran.held, &failure, |ledger, held, failure| {
                    ledger.alone(ctx, slot, held, failure)
                });
                continue;
            }
            let failed = FailedTry {
                ruling: Ruling::Suspect { among },
                ..self.failed_try(ctx, slot, ran.held.attempt, &failure)
            };
            self.excuse(no, &ran.held.rows, &failed);
            if ran.is_prime() {
                // If several rows are in this position, one is tried next, and the others wait for the result.
                primes -= 1;
                if primes > 0 {
                    let more = ran.ends.first().map_or(1, |ends| ends - limits::WORKER_CRASHES_MAX);
                    let until = LedgerMs(self.meta.clock().0.saturating_add(backoff_ms(more)));
                    self.end_attempt(ctx, slot, &ran.held, &failure, |ledger, held, _| {
                        ledger.put_on_trial(no, held.rows.clone(), Some(until));
                        Rows::default()
                    });
                }
            } else if !ran.alone {
                let held = HeldRows { rows: ran.suspects(), ..ran.held };
                self.end_attempt(ctx, slot, &held, &failure, |ledger, held, _| {
                    ledger.try_halves(no, held.rows.clone(), None);
                    Rows::default()
                });
            }
        }
        self.count_unreported_starts(ctx, session, (unreported_starts, kept));
    }

    /// Returns the rows of a session that may have run, and counts the crash for each of them.
    fn may_have_run(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        kept: &[HeldRows],
    ) -> Vec<Ran> {
        let Some(worker) = self.workers.get(&session).filter(|w| w.drain().is_none()) else {
            return Vec::new();
        };
        // A silent worker holds only rows that it had started.
        let silent = worker.is_suspect();
        let held: Vec<(RunNo, Attempt)> =
            worker.slots().iter().flat_map(|slot| slot.held().iter().copied()).collect();
        let mut ran = Vec::new();
        for (no, attempt) in held {
            let Some(run) = self.runs.get_mut(&no) else { continue };
            let Some(grant) = run.flight.grants.get(&attempt) else { continue };
            let (slot, trial, whole) = (grant.slot, grant.group.is_some(), grant.rows.len());
            let named = |sets: &[HeldRows]| {
                let of = sets.iter().filter(|set| set.run == no && set.attempt == attempt);
                of.fold(Rows::default(), |mut all, set| {
                    all.unite(&set.rows);
                    all
                })
            };
            let mut rows = match silent || trial {
                true => grant.rows.clone(),
                false => grant.rows.partition(&named(started)).0,
            };
            rows.subtract(&named(kept));
            rows = run.flight.speculative.without(&rows);
            if rows.is_empty() {
                continue;
            }
            let count = |row| {
                let record = run.failures.entry(row).or_default();
                record.crashes += 1;
                record.crashes
            };
            let ends = rows.iter().map(count).collect();
            self.runs.mark_failures(no, rows.iter());
            let held = HeldRows { run: no, attempt, rows };
            ran.push(Ran { slot, held, ends, alone: trial && whole == 1 });
        }
        ran
    }

    /// Ends the attempt of rows for good; `then` moves the rows to their new place and returns those that failed for
    /// good.
    pub(crate) fn end_attempt(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        held: &HeldRows,
        failure: &Failure,
        then: impl FnOnce(&mut Self, &HeldRows, &Failure) -> Rows,
    ) {
        if held.rows.is_empty() {
            return;
        }
        let no = held.run;
        let failed_before = self.runs.get(&no).map_or(0, |run| run.head.counts.failed);
        self.release(no, held.attempt, &held.rows);
        let for_good = then(self, held, failure);
        let (held, class, code) = (held.clone(), failure.class, failure.code.clone());
        self.emit(ctx, EventKind::Failed { slot, held, class, code, for_good });
        self.stop_if_hopeless(ctx, no, failure, failed_before);
        self.refresh_active(no);
        self.finish_if_done(ctx, no);
    }
}
