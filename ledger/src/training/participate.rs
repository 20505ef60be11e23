//! Adds a participant to a job, outside of its rendezvous.

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::job::{JobName, ParticipantDecl};
use crate::training::rendezvous::ParticipantState;
use serde::{Deserialize, Serialize};

/// Takes part in a job without joining its rendezvous, replacing an earlier participant of the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participate {
    /// The job, made if need be.
    pub job: JobName,
    /// The participant.
    pub participant: Box<ParticipantDecl>,
}

impl Operation for Participate {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.job.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.participate(ctx, self.job, *self.participant)
    }
}

impl Ledger {
    fn participate(
        &mut self,
        ctx: &Context,
        job: JobName,
        decl: ParticipantDecl,
    ) -> Result<Reply, Rejection> {
        decl.check()?;
        if let Some(job) = self.job_or_room(&job)?.and_then(|no| self.jobs.get(no)) {
            job.has_room(&decl.name)?;
        }
        let (no, keep_alive_ms) = (self.make_job(job), decl.keep_alive_ms);
        let incarnation = ctx.session();
        self.change_job(ctx, no, |job, _, told| {
            job.take_place(decl, (incarnation, ctx.wall_ms), ParticipantState::Apart, told);
        });
        Ok(Reply::Participant { incarnation, keep_alive_ms })
    }
}
