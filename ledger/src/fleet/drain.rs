//! Drains a worker: it gets no more work, and ends within its deadline.

use crate::fleet::worker::WorkerState;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// A worker takes no more work, on its own or an operator's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainWorker {
    /// The session.
    pub session: SessionId,
    /// The ledger time within which it must be gone; 0 for no bound. A later call may only bring the deadline
    /// nearer.
    pub deadline_ms: u64,
}

impl Operation for DrainWorker {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

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
        ledger.subject_of_worker(self.session)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_drain(self.session))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.drain(ctx, self.session, self.deadline_ms)
    }
}

impl Ledger {
    fn check_drain(&self, session: SessionId) -> Result<(), Rejection> {
        self.workers.get(&session).ok_or(Rejection::SessionUnknown).map(|_| ())
    }

    /// A repeated request can only bring the deadline nearer.
    fn drain(
        &mut self,
        ctx: &Context,
        session: SessionId,
        deadline_ms: u64,
    ) -> Result<Reply, Rejection> {
        self.check_drain(session)?;
        let requested =
            (deadline_ms > 0).then(|| LedgerMs(self.meta.clock().0.saturating_add(deadline_ms)));
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        let asked_before = worker.drain.is_some();
        let drain = worker.drain.get_or_insert_default();
        drain.until = drain.until.into_iter().chain(requested).min();
        if worker.state == WorkerState::Ready {
            // A suspect one stays so, or it never ended.
            self.workers.set_state(session, WorkerState::Draining);
        }
        self.workers.mark(session);
        if !asked_before {
            self.emit(ctx, EventKind::WorkerDraining { session });
        }
        Ok(Reply::Ok)
    }
}
