//! The behavior of the seeded bugs that change rows, if it is more than leaving out a check. Only builds with the
//! feature `seeded-bugs` have it.
//!
//! *Invariant:* each bug keeps the counts of grants and of decided rows, so that it shows in what clients see and not
//! as an arithmetic panic.

// One of these uses a type that the ledger must not use.
#![allow(clippy::disallowed_types)]

use crate::batch::run::Run;
use crate::batch::segment::Outcome;
use crate::kernel::id::{Attempt, RunNo, SessionId};
use crate::kernel::rows::Rows;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use crate::machine::seeded::{Bug, seeded};
use std::collections::HashSet;

impl Run {
    /// Returned rows for a claim.
    pub(super) fn take_wrongly(&mut self, count: u32) -> Option<Rows> {
        if seeded(Bug::ClaimUnchecked) {
            return Some(self.flight.returned.clone().take_first(count));
        }
        if !seeded(Bug::ApplyInHashOrder) {
            return None;
        }
        let all: HashSet<u64> = self.flight.returned.from(0).collect();
        let mut some: Vec<u64> = all.into_iter().take(count as usize).collect();
        some.sort_unstable();
        let rows = Rows::from_ranges(some.into_iter().map(|row| (row, 1)))?;
        self.take_out(&rows);
        Some(rows)
    }
}

impl Ledger {
    /// The rows that a completion is granted beyond those that its attempt may decide.
    pub(super) fn misjudge(
        &mut self,
        (no, set): (RunNo, &HeldRows),
        (mut accepted, mut rest): (Rows, Rows),
    ) -> (Rows, Rows) {
        let more = match () {
            () if seeded(Bug::CompletionOverwrites) => self.reopen_done(no, &rest),
            () if seeded(Bug::OvertakenAttemptAccepted) => self.take_from_anyone(no, &rest),
            () => return (accepted, rest),
        };
        // Rows that an attempt still holds are released when it decides them; the others are not its own.
        let holds = self.runs.get(&no).is_some_and(|run| run.holding(set.attempt).is_some());
        if !holds {
            rest.subtract(&more);
            accepted.unite(&more);
        }
        (accepted, rest)
    }

    fn reopen_done(&mut self, no: RunNo, rows: &Rows) -> Rows {
        let mut reopened = Rows::default();
        let Some(run) = self.runs.get_mut(&no) else { return reopened };
        for row in rows.iter().filter(|row| run.outcome(*row).part().is_some()).collect::<Vec<_>>()
        {
            let at = run.segment_at(row);
            run.segments[at].forget(row);
            run.head.counts.done -= 1;
            reopened.push(row, 1);
        }
        reopened
    }

    fn take_from_anyone(&mut self, no: RunNo, rows: &Rows) -> Rows {
        let mut taken = Rows::default();
        for row in rows.iter() {
            let Some(run) = self.runs.get(&no) else { break };
            if run.outcome(row) != Outcome::NONE {
                continue;
            }
            let one = Rows::range(row, 1);
            let holder = run.flight.grants.iter().find(|(_, g)| g.rows.contains(row));
            if let Some(attempt) = holder.map(|(attempt, _)| *attempt) {
                self.release(no, attempt, &one);
            } else if run.flight.returned.contains(row) {
                let Some(run) = self.runs.get_mut(&no) else { break };
                run.outdate_lapsed(&one);
                run.take_out(&one);
            } else {
                continue;
            }
            taken.push(row, 1);
        }
        taken
    }

    /// Rows returned under an attempt that does not hold them, which become pending.
    pub(super) fn nack_of_anyone(&mut self, no: RunNo, rows: &Rows) -> Rows {
        let mut taken = Rows::default();
        let Some(run) = self.runs.get_mut(&no).filter(|_| seeded(Bug::NackOfAnyone)) else {
            return taken;
        };
        for row in rows.iter().filter(|row| *row < run.head.next_fresh) {
            let waits = run.failures.get(&row).is_some_and(|t| t.not_before.is_some());
            if run.outcome(row) == Outcome::NONE && !waits {
                taken.push(row, 1);
            }
        }
        run.bring_back(&taken);
        self.runs.mark(no);
        self.refresh_active(no);
        taken
    }

    /// The rows that a session had done of its last grants become pending.
    pub(crate) fn return_done(&mut self, session: SessionId) {
        if !seeded(Bug::DoneRowReturned) {
            return;
        }
        let slots = self.workers.get(&session).map_or(&[][..], |worker| worker.slots());
        let last: Vec<HeldRows> =
            slots.iter().flat_map(|s| s.last_grant()).map(|granted| granted.held.clone()).collect();
        for held in last {
            let Some(run) = self.runs.get_mut(&held.run) else { continue };
            for row in held.rows.iter() {
                if run.outcome(row).part().is_some() {
                    run.bring_back(&Rows::range(row, 1));
                }
            }
            self.runs.mark(held.run);
            self.refresh_active(held.run);
        }
    }

    /// Loses rows that lapsed and should be pending.
    pub(super) fn lose(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) {
        let Some(run) = self.runs.get_mut(&no).filter(|_| seeded(Bug::RowsLostWithSession)) else {
            return;
        };
        run.take_out(rows);
        run.flight.lapsed.remove(&attempt);
        self.refresh_active(no);
    }
}
