//! Ends a worker's session, and returns all that it holds.

use crate::fleet::worker::SessionEnd;
use crate::kernel::id::SessionId;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Ends a worker's session. Its rows become pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deregister {
    /// The session.
    pub session: SessionId,
}

impl Operation for Deregister {
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
        ledger.deregister(ctx, self.session)
    }
}

impl Ledger {
    fn deregister(&mut self, ctx: &Context, session: SessionId) -> Result<Reply, Rejection> {
        if !self.workers.contains_key(&session) {
            return Err(Rejection::SessionUnknown);
        }
        self.end_session(ctx, session, SessionEnd::Left);
        Ok(Reply::Ok)
    }
}
