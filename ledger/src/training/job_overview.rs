//! All of a training job as its readers see it at one moment: the part of its participants, and that of its trainers.
//!
//! *Invariant:* reading changes nothing. A list has each job once, whichever of both parts it has.

use crate::machine::ledger::Ledger;
use crate::training::job::JobName;
use crate::training::job_view::JobView;
use crate::training::training_view::TrainingView;

/// A job with at least one of its parts.
#[derive(Clone, Copy, Debug)]
pub struct JobOverview<'a> {
    /// Its name.
    pub name: &'a JobName,
    /// The part of participants; `None` if none has used the job.
    pub participants: Option<JobView<'a>>,
    /// The part of trainers; `None` if none has joined the job.
    pub training: Option<TrainingView<'a>>,
}

impl Ledger {
    /// All of the job of that name, if there is one.
    pub fn job_overview(&self, name: &JobName) -> Option<JobOverview<'_>> {
        let (participants, training) = (self.job(name), self.training(name));
        let of_trainers = training.map(|training| training.name());
        let name = participants.map(|job| job.name()).or(of_trainers)?;
        Some(JobOverview { name, participants, training })
    }

    /// All jobs, the newest first. While trainings are beside the jobs, those with a training come before the others.
    pub fn job_overviews(&self) -> impl Iterator<Item = JobOverview<'_>> {
        let of_trainers = self.trainings_newest_first().map(|training| training.name());
        let separate = self.jobs.table.is_separate();
        let jobs = self.jobs.table.jobs.values().rev();
        let jobs = jobs.filter(move |job| !separate || self.training(&job.head.name).is_none());
        let of_jobs = jobs.map(|job| &job.head.name);
        let all = of_trainers.filter(move |_| separate).chain(of_jobs);
        all.filter_map(move |name| self.job_overview(name))
    }
}
