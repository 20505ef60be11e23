//! Deadlines of runs: a run ends at its deadline, counted from its creation in ledger time.
//!
//! *Invariant:* finished rows stay finished, nothing is granted or accepted any more, and a run that has ended before
//! keeps its end. A deadline takes effect only in a `Tick`, so every leader applies it alike.
//!
//! Absent: wall time. Without a leader, ledger time stands still, and no deadline comes nearer.

use crate::batch::run::{Run, RunState};
use crate::kernel::id::LedgerMs;
use crate::kernel::reply::Rejection;
use crate::kernel::visits::count_visit;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;

impl Run {
    /// Its deadline, if it has one and has not ended.
    pub(crate) fn ends_at(&self) -> Option<LedgerMs> {
        count_visit();
        self.deadline().filter(|_| !self.ended())
    }

    /// Its deadline, past or to come.
    pub(crate) fn deadline(&self) -> Option<LedgerMs> {
        match self.head.spec.deadline_ms {
            0 => None,
            ms => Some(LedgerMs(self.head.created_at.0.saturating_add(ms))),
        }
    }

    /// Whether a `Tick` at this time ends it.
    pub(crate) fn is_overdue(&self, now: LedgerMs) -> bool {
        self.ends_at().is_some_and(|at| at <= now)
    }

    /// Why nothing more is done with a run that has ended.
    pub(crate) fn over(&self) -> Rejection {
        match self.head.state {
            RunState::DeadlineExceeded => Rejection::DeadlineExceeded,
            _ => Rejection::RunEnded,
        }
    }
}

impl Ledger {
    /// Ends the runs whose deadline has come.
    pub(crate) fn end_overdue_runs(&mut self, ctx: &Context) {
        let now = self.meta.clock();
        for no in self.deadlines.overdue_runs(now) {
            let Some(run) = self.runs.get(&no).filter(|run| run.is_overdue(now)) else { continue };
            let deadline_ms = run.head.spec.deadline_ms;
            let reason = format!("its deadline of {deadline_ms} ms has passed");
            self.end_early(ctx, no, (RunState::DeadlineExceeded, "deadline"), reason.clone());
            self.emit_run(ctx, no, "deadline_exceeded", &reason);
            self.runs.mark(no);
            self.refresh_active(no);
        }
    }
}
