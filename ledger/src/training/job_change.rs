//! Jobs come, change and go: what follows from that, for its rendezvous, barriers and stores; and what time changes.
//!
//! *Invariant:* every change of a job goes through [`Ledger::change_job`]: the job changes and its indexes follow, then the
//! stores of rounds that are over are dropped, then the events are emitted.

use crate::kernel::id::{JobNo, LedgerMs, SessionId};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::Rejection;
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use crate::training::job::{
    DepartureReason, Job, JobChange, JobEffects, JobName, Participant, ParticipantDecl,
};
use crate::training::rendezvous::ParticipantState;

impl Job {
    /// Refuses one participant too many.
    pub(crate) fn has_room(&self, name: &str) -> Result<(), Rejection> {
        let there = self.head.participants.contains_key(name);
        match there || self.head.participants.len() < limits::PARTICIPANTS_MAX {
            true => Ok(()),
            false => {
                let what = "participants of one job".into();
                Err(Rejection::Limit { what, max: limits::PARTICIPANTS_MAX as u64 })
            }
        }
    }

    /// Adds a participant, and replaces one of the same name.
    pub(crate) fn take_place(
        &mut self,
        decl: ParticipantDecl,
        (incarnation, wall_ms): (SessionId, u64),
        state: ParticipantState,
        effects: &mut JobEffects,
    ) {
        let times = (wall_ms, wall_ms);
        if self.remove_participant(&decl.name, DepartureReason::Replaced, times, effects).is_some()
        {
            self.void_arrivals(&decl.name, effects);
        }
        effects.came.push((incarnation, decl.name.clone()));
        let name = decl.name.clone();
        let participant = Participant { incarnation, decl, seen_wall_ms: wall_ms, state };
        self.head.participants.insert(name, participant);
    }

    /// Removes a participant, and everything that cannot continue without it.
    pub(crate) fn depart(
        &mut self,
        name: &str,
        why: DepartureReason,
        times: (u64, u64),
        effects: &mut JobEffects,
    ) {
        let Some(gone) = self.remove_participant(name, why, times, effects) else { return };
        let what =
            if why == DepartureReason::Lost { "participant_lost" } else { "participant_left" };
        effects.events.push((what, name.to_owned(), 0, gone.decl.host.clone()));
        self.barriers_without(name, effects);
    }

    fn pass_time(&mut self, now: LedgerMs, effects: &mut JobEffects) {
        self.pass_rendezvous(now, effects);
        self.pass_barriers(now, effects);
    }
}

impl Ledger {
    /// The job of that name, or `None` if it can be created: there is room, or another job can make room.
    pub(crate) fn job_or_room(&self, name: &JobName) -> Result<Option<JobNo>, Rejection> {
        if let Some(no) = self.jobs.no(name) {
            return Ok(Some(no));
        }
        names::check_name("job's", &name.job)?;
        if !self.namespaces.contains_key(&name.namespace) {
            return Err(Rejection::NamespaceUnknown(name.namespace.clone()));
        }
        self.jobs.to_forget(&name.namespace, &self.stores)?;
        Ok(None)
    }

    /// The job, created if needed, after [`Ledger::job_or_room`] found room for it.
    pub(crate) fn make_job(&mut self, name: JobName) -> JobNo {
        if let Some(no) = self.jobs.no(&name) {
            return no;
        }
        let unused = self.jobs.to_forget(&name.namespace, &self.stores).unwrap_or_default();
        unused.into_iter().for_each(|no| self.remove_job(no));
        self.jobs.make(name, self.meta.clock(), &mut self.meta.jobs_made)
    }

    /// Removes a job without participants, with its barriers and the stores of its rounds. The next job of its name counts
    /// rounds from 1 and must not find the old stores.
    pub(crate) fn remove_job(&mut self, no: JobNo) {
        if let Some(name) = self.jobs.remove(no) {
            self.stores.drop_before(&name, u64::MAX);
        }
    }

    pub(crate) fn change_job(
        &mut self,
        ctx: &Context,
        no: JobNo,
        act: impl FnOnce(&mut Job, LedgerMs, &mut JobEffects),
    ) {
        let Some(change) = self.jobs.change(no, self.meta.clock(), act) else { return };
        let JobChange { job: name, completed, events } = change;
        if let Some(round) = completed {
            // From version 3 on, this round's store goes too: until the round was complete, others could write to it.
            let own = u64::from(self.meta.version() >= SCHEDULING_VERSION);
            self.stores.drop_before(&name, round.saturating_add(own));
        }
        for (what, subject, round, reason) in events {
            let job = name.clone();
            self.emit(ctx, EventKind::Job { job, what, subject, round, reason });
        }
    }

    /// Does what is due for all jobs.
    pub(crate) fn tick_jobs(&mut self, ctx: &Context) {
        let now = self.meta.clock();
        for no in self.jobs.due(now) {
            let Some(job) = self.jobs.get(no) else { continue };
            let ends = job.head.used_at.0.saturating_add(limits::JOB_TTL_MS);
            let unused = job.is_unused() && ends <= now.0;
            // A process may still use the stores of its rounds, and the next job of its name must not find them.
            if unused && !self.stores.has_rounds(&job.head.name) {
                self.remove_job(no);
            } else {
                self.change_job(ctx, no, |job, now, effects| job.pass_time(now, effects));
            }
        }
    }
}
