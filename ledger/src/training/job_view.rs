//! A job as its readers see it.
//!
//! *Invariant:* reading changes nothing.

use crate::kernel::id::{JobNo, SessionId};
use crate::machine::command::StoreName;
use crate::machine::ledger::Ledger;
use crate::training::barrier::Generation;
use crate::training::job::{Departure, Job, JobName, Participant};
use crate::training::rendezvous::{ParticipantState, Rendezvous};
use std::ops::Bound;

/// A job.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    no: JobNo,
    job: &'a Job,
}

impl<'a> JobView<'a> {
    /// Its number, which no other job of its name has or had.
    pub fn number(&self) -> JobNo {
        self.no
    }

    /// Its name.
    pub fn name(&self) -> &'a JobName {
        &self.job.head.name
    }

    /// Counts its changes.
    pub fn version(&self) -> u64 {
        self.job.head.version
    }

    /// Its rendezvous.
    pub fn rendezvous(&self) -> &'a Rendezvous {
        &self.job.head.rendezvous
    }

    /// The participants, by name.
    pub fn participants(&self) -> impl Iterator<Item = &'a Participant> + use<'a> {
        self.job.head.participants.values()
    }

    /// How many participants are in this state.
    pub fn count(&self, which: impl Fn(ParticipantState) -> bool) -> u32 {
        self.job.count(which)
    }

    /// The latest departures, oldest first.
    pub fn departures(&self) -> impl DoubleEndedIterator<Item = &'a Departure> + use<'a> {
        self.job.head.departures.iter()
    }

    /// The store of its complete round.
    pub fn round_store(&self) -> StoreName {
        let JobName { namespace, job } = self.name().clone();
        StoreName { namespace, job, round: self.rendezvous().round }
    }

    /// The latest generations of a barrier, ascending.
    pub fn generations(
        &self,
        barrier: &str,
    ) -> impl DoubleEndedIterator<Item = &'a Generation> + use<'a> {
        self.job.barriers.get(barrier).into_iter().flat_map(|b| &b.generations)
    }

    /// The barriers after this name, and the latest generation of each.
    pub fn barriers(
        &self,
        after: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Generation)> + use<'a> {
        let behind = (Bound::Excluded(after.to_owned()), Bound::Unbounded);
        let barriers = self.job.barriers.range(behind);
        barriers.filter_map(|(name, b)| Some((name.as_str(), b.generations.back()?)))
    }
}

impl Ledger {
    /// The job of that name, if a participant has used it.
    pub fn job(&self, name: &JobName) -> Option<JobView<'_>> {
        let no = self.jobs.no(name)?;
        let job = self.jobs.get(no).filter(|job| job.is_used_by_participants())?;
        Some(JobView { no, job })
    }

    /// The jobs of a namespace that participants have used, after this one by name.
    pub fn jobs_after(&self, namespace: &str, after: &str) -> impl Iterator<Item = JobView<'_>> {
        let from = JobName { namespace: namespace.to_owned(), job: after.to_owned() };
        let namespace = namespace.to_owned();
        self.all_jobs_after(from).take_while(move |job| job.name().namespace == namespace)
    }

    /// The jobs of every namespace that participants have used, after this one by namespace and name.
    pub fn all_jobs_after(&self, after: JobName) -> impl Iterator<Item = JobView<'_>> {
        self.jobs
            .names_after(after)
            .filter_map(|(_, no)| self.jobs.get(*no).map(|job| JobView { no: *no, job }))
            .filter(|view| view.job.is_used_by_participants())
    }

    /// The participant with that incarnation, and its job, while it exists.
    pub fn participant(&self, incarnation: SessionId) -> Option<(JobView<'_>, &Participant)> {
        let (no, name) = self.jobs.by_incarnation(incarnation)?;
        let job = self.jobs.get(*no)?;
        Some((JobView { no: *no, job }, job.head.participants.get(name)?))
    }

    /// All incarnations, and for how many milliseconds each may be silent.
    pub fn keep_alives(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let all = self.jobs.all().flat_map(|job| job.head.participants.values());
        all.map(|p| (p.incarnation, p.decl.keep_alive_ms))
    }

    /// Changes whenever a job changes. Not part of the state: it only tells readers to check again.
    pub fn job_changes(&self) -> u64 {
        self.jobs.changes()
    }

    /// Changes whenever a job changes for its present participants, but not when one more has come and the others wait on.
    pub fn job_outcomes(&self) -> u64 {
        self.jobs.outcomes()
    }
}
