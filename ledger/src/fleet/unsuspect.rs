//! Marks a worker as heard again: it keeps what no other worker has taken.

use crate::fleet::worker::WorkerState;
use crate::kernel::id::SessionId;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// A suspect worker is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsuspect {
    /// The session.
    pub session: SessionId,
}

impl Operation for Unsuspect {
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
        ledger.unsuspect(ctx, self.session)
    }
}

impl Ledger {
    fn unsuspect(&mut self, ctx: &Context, session: SessionId) -> Result<Reply, Rejection> {
        let worker = self.workers.get(&session).ok_or(Rejection::SessionUnknown)?;
        if matches!(worker.state, WorkerState::Suspect { .. }) {
            let state = worker.state_when_heard();
            self.workers.set_state(session, state);
            self.unreported_starts.forget(session);
            self.emit(ctx, EventKind::WorkerBack { session });
            self.adopt_lapsed(ctx, session);
            self.forget_lost_grants(session);
        }
        Ok(Reply::Ok)
    }
}
