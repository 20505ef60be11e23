//! Marks a silent worker as suspect: its unstarted rows become pending, and it gets no more.

use crate::fleet::worker::WorkerState;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// A worker is silent: its unstarted rows become pending, and it gets no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// The session.
    pub session: SessionId,
    /// The rows it is known to have started, which it keeps for the grace period.
    pub started: Vec<HeldRows>,
    /// How long, in ledger time.
    pub grace_ms: u64,
}

impl Operation for Suspect {
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
        ledger.suspect(ctx, self.session, &self.started, self.grace_ms)
    }
}

impl Ledger {
    pub(crate) fn suspect(
        &mut self,
        ctx: &Context,
        session: SessionId,
        started: &[HeldRows],
        grace_ms: u64,
    ) -> Result<Reply, Rejection> {
        let until = LedgerMs(self.meta.clock().0.saturating_add(grace_ms));
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        if matches!(worker.state, WorkerState::Suspect { .. }) {
            return Ok(Reply::Ok);
        }
        self.workers.set_state(session, WorkerState::Suspect { until, grace_ms });
        self.emit(ctx, EventKind::WorkerSuspect { session });
        #[cfg(feature = "seeded-bugs")]
        self.return_done(session);
        for (no, attempt) in self.held_by(session) {
            let running = started.iter().filter(|h| h.run == no && h.attempt == attempt).fold(
                Rows::default(),
                |mut all, h| {
                    all.unite(&h.rows);
                    all
                },
            );
            let Some((slot, rows)) = self.runs.get(&no).and_then(|r| r.holding(attempt)) else {
                continue;
            };
            // A trial starts as soon as it arrives, because its slot has nothing else.
            if self.runs.get(&no).is_some_and(|run| run.is_trial(attempt)) {
                continue;
            }
            let idle = rows.partition(&running).1;
            self.lapse_rows(no, attempt, &idle);
            self.emit_returned(ctx, slot, (no, attempt), &idle, "silent");
        }
        Ok(Reply::Ok)
    }
}
