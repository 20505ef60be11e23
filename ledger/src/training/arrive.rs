//! Records the arrival of a participant at a barrier.
//!
//! *Invariant:* a refused arrival has changed nothing; a repeated arrival counts once.

use crate::kernel::id::SessionId;
use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::arrival::{Arrival, Arriving};
use crate::training::barrier::BarrierSpec;
use crate::training::job::{Job, JobName, ParticipantDecl};
use crate::training::rendezvous::ParticipantState;
use serde::{Deserialize, Serialize};

/// A participant has arrived at a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrive {
    /// The job, made if need be.
    pub job: JobName,
    /// The barrier, made if need be.
    pub barrier: String,
    /// The generation.
    pub generation: u64,
    /// The incarnation of the arriving participant; `None` for the participant of that name, created if needed.
    pub incarnation: Option<SessionId>,
    /// Identifies the participant if it has no incarnation.
    pub participant: Box<ParticipantDecl>,
    /// The participants that the generation waits for.
    pub spec: BarrierSpec,
}

impl Operation for Arrive {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.spec.members.came_with()).max(self.spec.policy.came_with())
    }

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
        let who = Arriving { incarnation: self.incarnation, participant: *self.participant };
        ledger.arrive(ctx, (self.job, self.barrier, self.generation), who, self.spec)
    }
}

impl Ledger {
    fn arrive(
        &mut self,
        ctx: &Context,
        (job, barrier, generation): (JobName, String, u64),
        who: Arriving,
        spec: BarrierSpec,
    ) -> Result<Reply, Rejection> {
        names::check_name("barrier's", &barrier)?;
        spec.check()?;
        if generation == 0 {
            return Err(Rejection::Invalid("generations count from 1".into()));
        }
        let found = self.job_or_room(&job)?;
        let name = self.who_arrives(found, &who)?;
        let none = Job::default();
        let there = found.and_then(|no| self.jobs.get(no)).unwrap_or(&none);
        there.has_room(&name)?;
        let had = there.head.participants.get(&name);
        let (incarnation, keep_alive_ms) = match had {
            Some(had) => (had.incarnation, had.decl.keep_alive_ms),
            None => (ctx.session(), who.participant.keep_alive_ms),
        };
        let arrival = there.arrival((&barrier, generation), (&name, incarnation), &spec)?;
        let forget = there.barrier_to_forget(&barrier)?;
        let new_participant = had.is_none().then_some(who.participant);
        let no = self.make_job(job);
        self.change_job(ctx, no, |job, now, told| {
            match new_participant {
                Some(decl) => {
                    job.take_place(decl, (incarnation, ctx.wall_ms), ParticipantState::Apart, told);
                }
                None => {
                    let had = job.head.participants.get_mut(&name);
                    had.into_iter().for_each(|p| p.seen_wall_ms = ctx.wall_ms);
                }
            }
            if let Some(forget) = forget {
                job.barriers.remove(&forget);
                told.barriers.insert(forget);
            }
            if !matches!(arrival, Arrival::Late) {
                let at = (barrier.as_str(), generation);
                job.count_arrival(at, (&name, incarnation), (spec, arrival), (now, told));
            }
        });
        Ok(Reply::Participant { incarnation, keep_alive_ms })
    }
}
