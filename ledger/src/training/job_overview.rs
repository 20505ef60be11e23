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
    /// How many trainers the world of the training has.
    pub trainers: u32,
    /// How many of them are present.
    pub trainers_present: u32,
    /// Of two jobs, the newer one has the higher number. While trainings are beside the jobs, those with a training
    /// have higher ones than the others.
    pub order: u64,
}

impl Ledger {
    /// All of the job of that name, if there is one.
    pub fn job_overview(&self, name: &JobName) -> Option<JobOverview<'_>> {
        let (participants, training) = (self.job(name), self.training(name));
        let of_trainers = training.map(|training| training.name());
        let no = self.jobs.training_no(name);
        let order = match no.filter(|_| self.jobs.table.is_separate()) {
            Some(no) => (1u64 << u32::BITS) | u64::from(no.0),
            None => self.jobs.no(name).map_or(0, |no| u64::from(no.0)),
        };
        let counted = no.and_then(|no| self.jobs.table.training(no)).map_or((0, 0), |training| {
            let trainers = training.trainers.values();
            let present = trainers.filter(|trainer| trainer.incarnation.is_some());
            (training.head.world.len() as u32, present.count() as u32)
        });
        let (trainers, trainers_present) = counted;
        let name = participants.map(|job| job.name()).or(of_trainers)?;
        Some(JobOverview { name, participants, training, trainers, trainers_present, order })
    }

    /// The names of all jobs after this one, by namespace and name, each once.
    pub fn job_names_after(&self, after: JobName) -> impl Iterator<Item = &JobName> {
        let separate = self.jobs.table.is_separate().then(|| self.jobs.trainings_by_name());
        let behind = after.clone();
        let trainings = separate.into_iter().flatten().map(|training| &training.head.name);
        let mut trainings = trainings.filter(move |name| **name > behind).peekable();
        let jobs = self.jobs.names_after(after);
        let mut jobs = jobs.map(|(name, _)| name).peekable();
        std::iter::from_fn(move || {
            let next = [jobs.peek().copied(), trainings.peek().copied()];
            let next = next.into_iter().flatten().min()?;
            jobs.next_if(|name| *name == next);
            trainings.next_if(|name| *name == next);
            Some(next)
        })
    }

    /// All jobs, the newest first. While trainings are beside the jobs, those with a training come before the others.
    pub fn job_overviews(&self) -> impl Iterator<Item = JobOverview<'_>> {
        let of_trainers = self.trainings_newest_first().map(|training| training.name());
        let separate = self.jobs.table.is_separate();
        let jobs = self.jobs.all().rev();
        let jobs = jobs.filter(move |job| !separate || self.training(&job.head.name).is_none());
        let of_jobs = jobs.map(|job| &job.head.name);
        let all = of_trainers.filter(move |_| separate).chain(of_jobs);
        all.filter_map(move |name| self.job_overview(name))
    }
}
