//! Removes a participant that leaves its job.

use crate::kernel::id::SessionId;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::job::DepartureReason;
use serde::{Deserialize, Serialize};

/// A participant leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// Its incarnation.
    pub incarnation: SessionId,
}

impl Operation for Leave {
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
        ledger.subject_of_participant(self.incarnation)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        Ok(ledger.leave(ctx, self.incarnation))
    }
}

impl Ledger {
    /// Has no effect if the incarnation is void already.
    fn leave(&mut self, ctx: &Context, incarnation: SessionId) -> Reply {
        if let Some((no, name)) = self.jobs.by_incarnation(incarnation).cloned() {
            let times = (ctx.wall_ms, ctx.wall_ms);
            self.change_job(ctx, no, |job, _, told| {
                job.depart(&name, DepartureReason::Left, times, told);
            });
        }
        Reply::Ok
    }
}
