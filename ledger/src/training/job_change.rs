//! Changes of a job: what follows from them, for its rendezvous, barriers and stores; and what time changes.
//!
//! *Invariant:* every change of a job goes through [`Ledger::change_job`], which applies the consequences, keeps the
//! indexes and emits the events.

use crate::kernel::id::{JobNo, LedgerMs, SessionId, StoreNo};
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::apply::Context;
use crate::machine::command::StoreName;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use crate::training::job::{Departed, Job, JobEffects, JobName, Participant, ParticipantDecl};
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
        if self.remove_participant(&decl.name, Departed::Replaced, times, effects).is_some() {
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
        why: Departed,
        times: (u64, u64),
        effects: &mut JobEffects,
    ) {
        let Some(gone) = self.remove_participant(name, why, times, effects) else { return };
        let what = if why == Departed::Lost { "participant_lost" } else { "participant_left" };
        effects.events.push((what, name.to_owned(), 0, gone.decl.host.clone()));
        self.barriers_without(name, effects);
    }

    fn pass_time(&mut self, now: LedgerMs, effects: &mut JobEffects) {
        self.pass_rendezvous(now, effects);
        self.pass_barriers(now, effects);
    }
}

impl Ledger {
    pub(crate) fn change_job(
        &mut self,
        ctx: &Context,
        no: JobNo,
        act: impl FnOnce(&mut Job, LedgerMs, &mut JobEffects),
    ) {
        let now = self.meta.clock;
        let Some(job) = self.jobs.get_mut(&no) else { return };
        let mut effects = JobEffects::default();
        act(job, now, &mut effects);
        job.settle(now, &mut effects);
        job.head.used_at = now;
        job.head.version += 1;
        if let Some(due) = job.due {
            self.job_times.remove(&(due, no));
        }
        job.due = job.next_due();
        self.job_times.extend(job.due.map(|due| (due, no)));
        self.job_outcomes += u64::from(!effects.only_came());
        let name = job.head.name.clone();
        for incarnation in &effects.went {
            self.incarnations.remove(incarnation);
        }
        self.incarnations
            .extend(effects.came.into_iter().map(|(incarnation, name)| (incarnation, (no, name))));
        self.dirty.jobs.insert(no);
        self.dirty.barriers.extend(effects.barriers.into_iter().map(|barrier| (no, barrier)));
        self.job_changes += 1;
        if let Some(round) = effects.completed {
            // From version 3 on, this round's store goes too: until the round was complete, others could write to it.
            let own = u64::from(self.meta.version >= SCHEDULING_VERSION);
            self.drop_stores_before(&name, round.saturating_add(own));
        }
        for (what, subject, round, reason) in effects.events {
            let job = name.clone();
            self.emit(ctx, EventKind::Job { job, what, subject, round, reason });
        }
    }

    /// The stores of a job's earlier rounds.
    fn stores_before(&self, job: &JobName, round: u64) -> impl Iterator<Item = StoreNo> + use<'_> {
        let JobName { namespace, job } = job.clone();
        let of = |round| StoreName { namespace: namespace.clone(), job: job.clone(), round };
        self.store_names.range(of(1)..of(round)).map(|store| *store.1)
    }

    /// Drops the stores of a job's earlier rounds: no member of a later round uses them.
    pub(crate) fn drop_stores_before(&mut self, job: &JobName, round: u64) {
        let old: Vec<_> = self.stores_before(job, round).collect();
        old.into_iter().for_each(|no| self.remove_store(no));
    }

    /// Does what is due for all jobs.
    pub(crate) fn tick_jobs(&mut self, ctx: &Context) {
        let now = self.meta.clock;
        let due: Vec<JobNo> =
            self.job_times.iter().take_while(|due| due.0 <= now).map(|due| due.1).collect();
        for no in due {
            let Some(job) = self.jobs.get(&no) else { continue };
            let ends = job.head.used_at.0.saturating_add(limits::JOB_TTL_MS);
            let unused = job.head.participants.is_empty() && ends <= now.0;
            // A process may still use the stores of its rounds, and the next job of its name must not find them.
            let stores = || self.stores_before(&job.head.name, u64::MAX).next().is_some();
            if unused && !stores() {
                self.remove_job(no);
            } else {
                self.change_job(ctx, no, |job, now, effects| job.pass_time(now, effects));
            }
        }
    }
}
