//! Owns: which certificates may use the store of a job's complete round, from cluster version 3 on.
//!
//! *Invariant:* only the holders of the sessions that its members joined with may use the store of the latest
//! complete round, even after these members are gone. The holders are fixed when the round is complete, and the
//! store's earlier contents are dropped then. A member that joined below version 3, or with a session that was opened
//! below version 3, has no known holder; the store of its round stays open to its namespace. Below version 3 the name
//! of a session's holder omits the namespaces of its certificate, so no later session of that certificate matches it.
//! A caller that names an incarnation must still be a member by it: a process that another one has replaced is not.
//! Absent: the stores of round 0 and of jobs without a complete round, and which process of a holder asks without
//! an incarnation.

use crate::kernel::id::SessionId;
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::{StoreName, StoreOp};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::SCHEDULING_VERSION;
use crate::training::job::{Job, JobName};
use crate::training::rendezvous::{ParticipantState, RoundMember};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// As [`OpKind::Store`], by a member of the store's round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseRoundStore {
    /// Which.
    pub store: StoreName,
    /// The member's incarnation.
    pub incarnation: SessionId,
    /// As those of [`OpKind::Store`].
    pub ops: Vec<StoreOp>,
}

impl Operation for UseRoundStore {
    const SINCE: u32 = 3;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.ops.iter().map(StoreOp::came_with).max().unwrap_or(0))
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        self.ops.iter().any(StoreOp::grows)
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.store.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.check_incarnation(&self.store, self.incarnation)?;
        ledger.use_store_for(ctx, self.store, self.ops)
    }
}

/// One record of the image, unless it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoundAccess {
    /// The holders of participants, by the participants' names.
    joined: BTreeMap<String, String>,
    /// The holders of the members of the latest complete round. If it is empty, the store is open to the namespace.
    members: BTreeSet<String>,
}

impl RoundAccess {
    /// Records the holder of a participant that has joined. An earlier participant of its name is gone.
    pub(crate) fn joins(&mut self, name: String, holder: Option<String>) {
        if let Some(holder) = holder {
            self.joined.insert(name, holder);
        }
    }

    /// Removes a participant that is gone.
    pub(crate) fn leaves(&mut self, name: &str) {
        self.joined.remove(name);
    }

    /// Fixes the holders of a complete round with these members.
    pub(crate) fn completes(&mut self, roster: &[RoundMember]) {
        let holders = roster.iter().map(|member| self.joined.get(&member.decl.name).cloned());
        let holders: Option<BTreeSet<String>> = holders.collect();
        self.members = holders.unwrap_or_default();
    }

    /// The participants whose holders are known.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.joined.keys().map(String::as_str)
    }
}

impl Ledger {
    /// The holder of the session that sent this operation.
    fn caller(&self, ctx: &Context) -> Option<&str> {
        self.client_holder(ctx.caller?)
    }

    /// Records which client sessions were opened before the cluster's version was raised to 3 from `before`.
    pub(crate) fn separate_sessions(&mut self, ctx: &Context, before: u32) {
        let raised = before < SCHEDULING_VERSION && self.meta.version() >= SCHEDULING_VERSION;
        if raised {
            self.clients.separate(ctx.session());
        }
    }

    /// The holder to record for a joining participant; `None` below version 3 and for a session that was opened below
    /// it. Such a join can be in progress while the version is raised.
    pub(crate) fn joiner(&self, ctx: &Context) -> Option<String> {
        let session = ctx.caller.filter(|session| self.clients.names_holder(*session))?;
        let holder = self.client_holder(session);
        holder.filter(|_| self.meta.version() >= SCHEDULING_VERSION).map(str::to_owned)
    }

    /// The job of a round's store, if the cluster's version checks rounds.
    fn job_of_round(&self, name: &StoreName) -> Option<&Job> {
        if name.round == 0 || self.meta.version() < SCHEDULING_VERSION {
            return None;
        }
        let job = JobName { namespace: name.namespace.clone(), job: name.job.clone() };
        self.jobs.by_name(&job)
    }

    /// Refuses to change the store of a round before the latest complete one of its job. Refuses the store of the latest
    /// complete round to a caller with no member in that round.
    pub(crate) fn check_round(&self, ctx: &Context, name: &StoreName) -> Result<(), Rejection> {
        let Some(job) = self.job_of_round(name) else { return Ok(()) };
        let latest = job.head.rendezvous.latest_complete();
        if name.round < latest {
            return Err(Rejection::Invalid(format!(
                "the store of round {} of job {} is gone: round {latest} is complete; join it to use its store",
                name.round, name.job
            )));
        }
        job.check_member(name, self.caller(ctx))
    }

    /// Refuses to drop the store of the latest complete round if the caller has no member in it.
    pub(crate) fn check_drop(&self, ctx: &Context, name: &StoreName) -> Result<(), Rejection> {
        self.check_round_member(name, self.caller(ctx))
    }

    /// Refuses the store of the latest complete round of a job to a holder, if no member joined with a session of it.
    ///
    /// # Errors
    /// [`JobRefusal::NotOfRound`].
    pub fn check_round_member(
        &self,
        name: &StoreName,
        holder: Option<&str>,
    ) -> Result<(), Rejection> {
        self.job_of_round(name).map_or(Ok(()), |job| job.check_member(name, holder))
    }

    /// Refuses the store of a round to an incarnation that belongs to no member of that round.
    ///
    /// # Errors
    /// [`JobRefusal::ParticipantUnknown`] if the incarnation is void, [`JobRefusal::NotOfRound`] if it belongs to another
    /// round or none.
    pub fn check_incarnation(
        &self,
        name: &StoreName,
        incarnation: SessionId,
    ) -> Result<(), Rejection> {
        let Some((job, participant)) = self.participant(incarnation) else {
            return Err(JobRefusal::ParticipantUnknown.into());
        };
        let of_job = job.name().namespace == name.namespace && job.name().job == name.job;
        let member = matches!(participant.state, ParticipantState::Member { .. });
        match of_job && member && job.rendezvous().round == name.round {
            true => Ok(()),
            false => Err(not_of_round(name)),
        }
    }
}

impl Job {
    fn check_member(&self, name: &StoreName, holder: Option<&str>) -> Result<(), Rejection> {
        let members = &self.access.members;
        let complete = name.round == self.head.rendezvous.latest_complete();
        let of_round = holder.is_some_and(|holder| members.contains(holder));
        match complete && !members.is_empty() && !of_round {
            true => Err(not_of_round(name)),
            false => Ok(()),
        }
    }
}

fn not_of_round(name: &StoreName) -> Rejection {
    JobRefusal::NotOfRound { round: name.round, job: name.job.clone() }.into()
}
