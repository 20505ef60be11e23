//! Unreported starts: rows that a worker may have started without a report before it fell silent.
//!
//! A row that crashes its host as soon as it starts is in no heartbeat. When its worker is suspect, the row is
//! pending, like all rows that had not started, and goes to the next host. *Invariant:* such rows are remembered as
//! long as their session is suspect, and no longer. If the session ends that way, it counts as a crash for each of
//! them that is undecided and that no two slots run. From [`limits::WORKER_CRASHES_MAX`] crashes on a row is a suspect
//! like those of `worker_crash.rs`, and is tried apart: at once if it is pending, otherwise when the worker that has it
//! is silent too. A crash is no proof, and never a strike here: a silent worker keeps a trial whole, so
//! `worker_crash.rs` counts what was in one.

use crate::batch::failure_record::{FailedTry, Ruling};
use crate::batch::segment::Outcome;
use crate::batch::worker_crash::worker_lost;
use crate::kernel::codec;
use crate::kernel::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::image::{ImageDelta, session_key};
use crate::machine::image_load::{LoadError, number, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// As [`OpKind::Suspect`], for a worker that may have started more rows than it reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectWithUnreportedStarts {
    /// The session.
    pub session: SessionId,
    /// The rows it is known to have started, which it keeps for the grace period.
    pub started: Vec<HeldRows>,
    /// Further rows of its own that it may have started: pending at once, and counted if its session ends without
    /// a word.
    pub unreported_starts: Vec<HeldRows>,
    /// How long, in ledger time.
    pub grace_ms: u64,
}

impl Operation for SuspectWithUnreportedStarts {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.suspect_with_unreported_starts(
            ctx,
            self.session,
            (&self.started, &self.unreported_starts),
            self.grace_ms,
        )
    }
}

/// Rows of one session, by attempt.
pub(crate) type UnreportedStarts = BTreeMap<(RunNo, Attempt), Rows>;

/// Rows that suspect workers may have started, and which of these records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuspectStarts {
    by_session: BTreeMap<SessionId, UnreportedStarts>,
    dirty: BTreeSet<SessionId>,
}

impl SuspectStarts {
    fn insert(&mut self, session: SessionId, all: UnreportedStarts) {
        self.by_session.insert(session, all);
        self.dirty.insert(session);
    }

    fn take(&mut self, session: SessionId) -> Option<UnreportedStarts> {
        let all = self.by_session.remove(&session)?;
        self.dirty.insert(session);
        Some(all)
    }

    /// Drops the unreported starts of a session that is heard again, or is gone.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.take(session);
    }

    /// All sessions with unreported starts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SessionId, &UnreportedStarts)> {
        self.by_session.iter()
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for id in std::mem::take(&mut self.dirty) {
            delta.set(session_key(b'X', id), self.by_session.get(&id).map(codec::encode));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    pub(crate) fn each_session(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (id, unreported_starts) in &self.by_session {
            each(&session_key(b'X', *id), &codec::encode(unreported_starts));
        }
    }

    /// Reads a record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        self.by_session.insert(SessionId(u64::from_be_bytes(number(key, 1)?)), read(key, value)?);
        Ok(())
    }
}

impl Ledger {
    /// A worker is silent, and may have started the rows of `unreported_starts` besides those known to be `started`.
    pub(crate) fn suspect_with_unreported_starts(
        &mut self,
        ctx: &Context,
        session: SessionId,
        (started, unreported_starts): (&[HeldRows], &[HeldRows]),
        grace_ms: u64,
    ) -> Result<Reply, Rejection> {
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        // The end of a draining worker counts for no row.
        if worker.is_ready() {
            let mut all = UnreportedStarts::new();
            for HeldRows { run: no, attempt, rows } in unreported_starts {
                let Some(run) = self.runs.get(no) else { continue };
                let own = run.flight.grants.get(attempt).filter(|g| g.slot.session == session);
                let Some(own) = own.filter(|grant| grant.group.is_none()) else { continue };
                let (mut rows, _) = rows.partition(&own.rows);
                rows = run.flight.speculative.without(&rows);
                if !rows.is_empty() {
                    all.entry((*no, *attempt)).or_default().unite(&rows);
                }
            }
            if !all.is_empty() {
                self.try_often_unreported(ctx, &all);
                self.unreported_starts.insert(session, all);
            }
        }
        self.suspect(ctx, session, started, grace_ms)
    }

    /// Takes rows that have been through enough crashes from a worker that is silent now.
    fn try_often_unreported(&mut self, ctx: &Context, unreported_starts: &UnreportedStarts) {
        for (&(no, attempt), rows) in unreported_starts {
            let Some(run) = self.runs.get(&no) else { continue };
            let Some(slot) = run.flight.grants.get(&attempt).map(|grant| grant.slot) else {
                continue;
            };
            let ends = |row: &u64| run.failures.get(row).map_or(0, |record| record.crashes);
            let often = rows.iter().filter(|row| ends(row) >= limits::WORKER_CRASHES_MAX);
            let rows = Rows::from_ranges(often.map(|row| (row, 1))).unwrap_or_default();
            let held = HeldRows { run: no, attempt, rows };
            self.end_attempt(ctx, slot, &held, &worker_lost(), |ledger, held, _| {
                ledger.try_halves(no, held.rows.clone(), None);
                Rows::default()
            });
        }
    }

    /// Takes the unreported starts of a session whose process is gone, except for rows that it still holds, which are
    /// counted separately.
    pub(crate) fn take_unreported_starts(&mut self, session: SessionId) -> UnreportedStarts {
        let mut unreported_starts = self.unreported_starts.take(session).unwrap_or_default();
        for ((no, attempt), rows) in &mut unreported_starts {
            let run = self.runs.get(no);
            if let Some(own) = run.and_then(|run| run.flight.grants.get(attempt)) {
                rows.subtract(&own.rows);
            }
        }
        unreported_starts
    }

    /// Counts the crash of a process for rows that it may have run, wherever they are now; `kept` is what the next
    /// process has of them on its disk.
    pub(crate) fn count_unreported_starts(
        &mut self,
        ctx: &Context,
        session: SessionId,
        (unreported_starts, kept): (UnreportedStarts, &[HeldRows]),
    ) {
        if self.workers.get(&session).is_none_or(|worker| worker.drain().is_some()) {
            return;
        }
        let slot = SlotRef { session, slot: SlotNo(0) };
        let among = unreported_starts.values().map(Rows::len).sum::<u64>() as u32;
        for ((no, attempt), mut rows) in unreported_starts {
            let of = kept.iter().filter(|set| set.run == no && set.attempt == attempt);
            of.for_each(|set| rows.subtract(&set.rows));
            let failed = FailedTry {
                ruling: Ruling::Suspect { among },
                ..self.failed_try(ctx, slot, attempt, &worker_lost())
            };
            let Some(run) = self.runs.get_mut(&no).filter(|run| !run.ended()) else { continue };
            rows = run.flight.speculative.without(&rows);
            let open = rows.iter().filter(|row| run.outcome(*row) == Outcome::NONE);
            let rows = Rows::from_ranges(open.map(|row| (row, 1))).unwrap_or_default();
            let mut often = Rows::default();
            for row in rows.iter() {
                let record = run.failures.entry(row).or_default();
                record.crashes += 1;
                if record.crashes >= limits::WORKER_CRASHES_MAX {
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
