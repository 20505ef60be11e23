//! Unreported starts: rows that a worker may have started without a report before it fell silent.
//!
//! A row that crashes its host as soon as it starts is in no heartbeat. When its worker is suspect, the row is
//! pending, like all rows that had not started, and goes to the next host. *Invariant:* such rows are remembered as
//! long as their session is suspect, and no longer. If the session ends that way, it counts as a crash for each of
//! them that is undecided and that no two slots run. From [`limits::ABRUPT_ENDS_MAX`] crashes on a row is a suspect
//! like those of `abrupt_end.rs`, and is tried apart: at once if it is pending, otherwise when the worker that has it
//! is silent too. A crash is no proof, and never a strike here: a silent worker keeps a trial whole, so
//! `abrupt_end.rs` counts what was in one.

use crate::batch::abrupt_end::worker_lost;
use crate::batch::segment::Outcome;
use crate::batch::trouble::{FailedTry, Ruling};
use crate::fleet::worker::WorkerState;
use crate::kernel::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// As [`OpKind::Suspect`], for a worker that may have started more rows than it reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectUnheard {
    /// The session.
    pub session: SessionId,
    /// The rows it is known to have started, which it keeps for the grace period.
    pub started: Vec<HeldRows>,
    /// Further rows of its own that it may have started: pending at once, and counted if its session ends without
    /// a word.
    pub unheard: Vec<HeldRows>,
    /// How long, in ledger time.
    pub grace_ms: u64,
}

impl Operation for SuspectUnheard {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::OfState
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.suspect_unheard(ctx, self.session, (&self.started, &self.unheard), self.grace_ms)
    }
}

/// Rows of one session, by attempt.
pub(crate) type Unheard = BTreeMap<(RunNo, Attempt), Rows>;

impl Ledger {
    /// A worker is silent, and may have started these `unheard` rows besides those known to be `started`.
    pub(crate) fn suspect_unheard(
        &mut self,
        ctx: &Context,
        session: SessionId,
        (started, unheard): (&[HeldRows], &[HeldRows]),
        grace_ms: u64,
    ) -> Result<Reply, Rejection> {
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        // The end of a draining worker counts for no row.
        if worker.state == WorkerState::Ready {
            let mut all = Unheard::new();
            for HeldRows { run: no, attempt, rows } in unheard {
                let Some(run) = self.runs.get(no) else { continue };
                let own = run.flight.grants.get(attempt).filter(|g| g.slot.session == session);
                let Some(own) = own.filter(|grant| grant.trial.is_none()) else { continue };
                let (mut rows, _) = rows.partition(&own.rows);
                rows = run.flight.shadows.without(&rows);
                if !rows.is_empty() {
                    all.entry((*no, *attempt)).or_default().unite(&rows);
                }
            }
            if !all.is_empty() {
                self.try_often_unheard(ctx, &all);
                self.unheard.insert(session, all);
                self.dirty.unheard.insert(session);
            }
        }
        self.suspect(ctx, session, started, grace_ms)
    }

    /// Takes rows that have been through enough crashes from a worker that is silent now.
    fn try_often_unheard(&mut self, ctx: &Context, unheard: &Unheard) {
        for (&(no, attempt), rows) in unheard {
            let Some(run) = self.runs.get(&no) else { continue };
            let Some(slot) = run.flight.grants.get(&attempt).map(|grant| grant.slot) else {
                continue;
            };
            let ends = |row: &u64| run.troubles.get(row).map_or(0, |trouble| trouble.abrupt_ends);
            let often = rows.iter().filter(|row| ends(row) >= limits::ABRUPT_ENDS_MAX);
            let rows = Rows::from_ranges(often.map(|row| (row, 1))).unwrap_or_default();
            let held = HeldRows { run: no, attempt, rows };
            self.end_attempt(ctx, slot, &held, &worker_lost(), |ledger, held, _| {
                ledger.try_halves(no, held.rows.clone(), None);
                Rows::default()
            });
        }
    }

    /// Drops the unreported starts of a session that is heard again, or is gone.
    pub(crate) fn forget_unheard(&mut self, session: SessionId) {
        if self.unheard.remove(&session).is_some() {
            self.dirty.unheard.insert(session);
        }
    }

    /// Takes the unreported starts of a session whose process is gone, except for rows that it still holds, which are
    /// counted separately.
    pub(crate) fn take_unheard(&mut self, session: SessionId) -> Unheard {
        let mut unheard = self.unheard.get(&session).cloned().unwrap_or_default();
        self.forget_unheard(session);
        for ((no, attempt), rows) in &mut unheard {
            let run = self.runs.get(no);
            if let Some(own) = run.and_then(|run| run.flight.grants.get(attempt)) {
                rows.subtract(&own.rows);
            }
        }
        unheard
    }

    /// Counts the crash of a process for rows that it may have run, wherever they are now; `kept` is what the next
    /// process has of them on its disk.
    pub(crate) fn count_unheard(
        &mut self,
        ctx: &Context,
        session: SessionId,
        (unheard, kept): (Unheard, &[HeldRows]),
    ) {
        if self.workers.get(&session).is_none_or(|worker| worker.drain.is_some()) {
            return;
        }
        let slot = SlotRef { session, slot: SlotNo(0) };
        let among = unheard.values().map(Rows::len).sum::<u64>() as u32;
        for ((no, attempt), mut rows) in unheard {
            let of = kept.iter().filter(|set| set.run == no && set.attempt == attempt);
            of.for_each(|set| rows.subtract(&set.rows));
            let failed = FailedTry {
                ruling: Ruling::Suspect { among },
                ..self.failed_try(ctx, slot, attempt, &worker_lost())
            };
            let Some(run) = self.runs.get_mut(&no).filter(|run| !run.ended()) else { continue };
            rows = run.flight.shadows.without(&rows);
            let open = rows.iter().filter(|row| run.outcome(*row) == Outcome::NONE);
            let rows = Rows::from_ranges(open.map(|row| (row, 1))).unwrap_or_default();
            let mut often = Rows::default();
            for row in rows.iter() {
                let trouble = run.troubles.entry(row).or_default();
                trouble.abrupt_ends += 1;
                if trouble.abrupt_ends >= limits::ABRUPT_ENDS_MAX {
                    often.push(row, 1);
                }
            }
            let pending = run.flight.returned.common(&often);
            run.take_out(&pending);
            run.outdate_lapsed(&pending);
            self.excuse(no, &rows, &failed);
            self.try_halves(no, pending, None);
            self.refresh_active(no);
        }
    }
}
