//! Adds a participant to a job's rendezvous.

use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation};
use crate::training::job::{Job, JobName, ParticipantDecl, Told};
use crate::training::rendezvous::{Standing, Terms};
use serde::{Deserialize, Serialize};

/// Takes part in a job and joins its rendezvous, replacing an earlier participant of the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The job, made if need be.
    pub job: JobName,
    /// The participant.
    pub participant: Box<ParticipantDecl>,
    /// The rendezvous configuration.
    pub terms: Terms,
}

impl Operation for Join {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::OfCommand
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.join(ctx, self.job, *self.participant, self.terms)
    }
}

impl Job {
    fn join(
        &mut self,
        decl: ParticipantDecl,
        came: (SessionId, u64),
        terms: Terms,
        (now, told): (LedgerMs, &mut Told),
    ) {
        let others = self.head.participants.iter().filter(|p| *p.0 != decl.name);
        let met = others.into_iter().any(|(_, p)| p.standing.takes_part());
        if let Some(old) = self.head.participants.get_mut(&decl.name)
            && matches!(old.standing, Standing::Member { .. } | Standing::Redundant)
        {
            // It leaves its round, which may end by that.
            old.standing = Standing::Apart;
            self.settle(now, told);
        }
        let standing = self.standing_to_join(now, &terms);
        if !met {
            self.head.rendezvous.terms = Some(terms);
        }
        self.take_place(decl, came, standing, told);
    }
}

impl Ledger {
    fn join(
        &mut self,
        ctx: &Context,
        job: JobName,
        decl: ParticipantDecl,
        terms: Terms,
    ) -> Result<Reply, Rejection> {
        decl.check()?;
        terms.check()?;
        if let Some(no) = self.job_or_room(&job)? {
            let job = &self.jobs[&no];
            job.admits(&decl.name, &terms)?;
            job.has_room(&decl.name)?;
        }
        let (no, keep_alive_ms) = (self.make_job(job), decl.keep_alive_ms);
        let ticket = ctx.session();
        let (name, holder) = (decl.name.clone(), self.joiner(ctx));
        self.change_job(ctx, no, |job, now, told| {
            job.join(decl, (ticket, ctx.wall_ms), terms, (now, told));
            job.access.joins(name, holder);
        });
        Ok(Reply::Participant { ticket, keep_alive_ms })
    }
}
