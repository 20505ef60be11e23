//! Adds a participant to a job's rendezvous.

use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::job::{Job, JobEffects, JobName, ParticipantDecl};
use crate::training::rendezvous::{ParticipantState, RendezvousConfig};
use serde::{Deserialize, Serialize};

/// Takes part in a job and joins its rendezvous, replacing an earlier participant of the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The job, made if need be.
    pub job: JobName,
    /// The participant.
    pub participant: Box<ParticipantDecl>,
    /// The rendezvous configuration.
    pub config: RendezvousConfig,
}

impl Operation for Join {
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
        ledger.join(ctx, self.job, *self.participant, self.config)
    }
}

impl Job {
    fn join(
        &mut self,
        decl: ParticipantDecl,
        came: (SessionId, u64),
        config: RendezvousConfig,
        (now, effects): (LedgerMs, &mut JobEffects),
    ) {
        let others = self.head.participants.iter().filter(|p| *p.0 != decl.name);
        let met = others.into_iter().any(|(_, p)| p.state.takes_part());
        if let Some(old) = self.head.participants.get_mut(&decl.name)
            && matches!(old.state, ParticipantState::Member { .. } | ParticipantState::Redundant)
        {
            // It leaves its round, which can end the round.
            old.state = ParticipantState::Apart;
            self.settle(now, effects);
        }
        let state = self.state_to_join(now, &config);
        if !met {
            self.head.rendezvous.config = Some(config);
        }
        self.take_place(decl, came, state, effects);
    }
}

impl Ledger {
    fn join(
        &mut self,
        ctx: &Context,
        job: JobName,
        decl: ParticipantDecl,
        config: RendezvousConfig,
    ) -> Result<Reply, Rejection> {
        decl.check()?;
        config.check()?;
        if let Some(job) = self.job_or_room(&job)?.and_then(|no| self.jobs.get(no)) {
            job.admits(&decl.name, &config)?;
            job.has_room(&decl.name)?;
        }
        let (no, keep_alive_ms) = (self.make_job(job), decl.keep_alive_ms);
        let incarnation = ctx.session();
        let (name, holder) = (decl.name.clone(), self.joiner(ctx));
        self.change_job(ctx, no, |job, now, effects| {
            job.join(decl, (incarnation, ctx.wall_ms), config, (now, effects));
            job.access.joins(name, holder);
        });
        Ok(Reply::Participant { incarnation, keep_alive_ms })
    }
}
