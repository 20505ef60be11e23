//! Removes a participant that was silent for too long.

use crate::kernel::id::SessionId;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::job::DepartureReason;
use serde::{Deserialize, Serialize};

/// A participant was silent for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoseParticipant {
    /// Its incarnation.
    pub incarnation: SessionId,
    /// The length of the silence; `None` if the leader has never heard it.
    pub silent_ms: Option<u64>,
}

impl Operation for LoseParticipant {
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
        Ok(ledger.lose_participant(ctx, self.incarnation, self.silent_ms))
    }
}

impl Ledger {
    pub(crate) fn lose_participant(
        &mut self,
        ctx: &Context,
        incarnation: SessionId,
        silent_ms: Option<u64>,
    ) -> Reply {
        if let Some((no, name)) = self.jobs.by_incarnation(incarnation).cloned() {
            let wall_ms = ctx.wall_ms;
            self.change_job(ctx, no, |job, _, told| {
                let seen = job.head.participants.get(&name).map_or(0, |p| p.seen_wall_ms);
                let heard = silent_ms.map_or(seen, |silent_ms| wall_ms.saturating_sub(silent_ms));
                job.depart(&name, DepartureReason::Lost, (wall_ms, heard.max(seen)), told);
            });
        }
        Reply::Ok
    }
}
