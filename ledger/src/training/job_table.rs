//! Where jobs and their trainings are: one record per job, or, below [`ONE_RECORD_VERSION`], trainings beside the jobs.
//!
//! *Invariant:* below that version no job has a training, and trainings have numbers of their own. From it on a training
//! has the number of its job. Only this file and its users in `job_image` and `training_image` know the difference:
//! everything else finds a training by its [`TrainingNo`].

use crate::kernel::counts::Counts;
use crate::kernel::id::{JobNo, LedgerMs, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::ONE_RECORD_VERSION;
use crate::training::job::{Job, JobName, Jobs};
use crate::training::state::Training;
use std::collections::BTreeMap;

/// All jobs by number, with their trainings.
#[derive(Clone, Debug)]
pub(crate) struct JobTable {
    pub(super) jobs: BTreeMap<JobNo, Job>,
    /// `None` from [`ONE_RECORD_VERSION`] on.
    separate: Option<SeparateTrainings>,
}

impl Default for JobTable {
    /// As in a new cluster, whose version is the first.
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), separate: Some(SeparateTrainings::default()) }
    }
}

/// The trainings of a cluster below [`ONE_RECORD_VERSION`].
#[derive(Clone, Debug, Default)]
struct SeparateTrainings {
    by_no: BTreeMap<TrainingNo, Training>,
    // Derived.
    names: BTreeMap<JobName, TrainingNo>,
    of_namespace: Counts,
}

/// The number of the training of a job, where both are one record.
fn training_no(no: JobNo) -> TrainingNo {
    TrainingNo(no.0)
}

/// The job of a training, where both are one record.
fn job_no(no: TrainingNo) -> JobNo {
    JobNo(no.0)
}

impl JobTable {
    /// Whether trainings are beside the jobs.
    pub(super) fn is_separate(&self) -> bool {
        self.separate.is_some()
    }

    /// The training with that number.
    pub(super) fn training(&self, no: TrainingNo) -> Option<&Training> {
        match &self.separate {
            Some(separate) => separate.by_no.get(&no),
            None => self.jobs.get(&job_no(no))?.training.as_ref(),
        }
    }

    /// The same, to be changed.
    pub(super) fn training_mut(&mut self, no: TrainingNo) -> Option<&mut Training> {
        match &mut self.separate {
            Some(separate) => separate.by_no.get_mut(&no),
            None => self.jobs.get_mut(&job_no(no))?.training.as_mut(),
        }
    }

    /// All trainings, by number.
    pub(super) fn trainings(&self) -> impl DoubleEndedIterator<Item = (TrainingNo, &Training)> {
        let separate = self.separate.iter().flat_map(|separate| &separate.by_no);
        let of_jobs = self.jobs.iter();
        let of_jobs =
            of_jobs.filter_map(|(no, job)| Some((training_no(*no), job.training.as_ref()?)));
        separate.map(|(no, training)| (*no, training)).chain(of_jobs)
    }

    /// The same, to be changed.
    pub(super) fn trainings_mut(&mut self) -> impl Iterator<Item = (TrainingNo, &mut Training)> {
        let separate = self.separate.iter_mut().flat_map(|separate| &mut separate.by_no);
        let of_jobs = self.jobs.iter_mut();
        let of_jobs =
            of_jobs.filter_map(|(no, job)| Some((training_no(*no), job.training.as_mut()?)));
        separate.map(|(no, training)| (*no, training)).chain(of_jobs)
    }

    /// The training that is being loaded. Which job it belongs to is known once all records are.
    pub(super) fn loading_training(&mut self, no: TrainingNo) -> &mut Training {
        let separate = self.separate.get_or_insert_default();
        separate.by_no.entry(no).or_default()
    }

    /// Puts the loaded trainings where the cluster's version has them; false if one has no such place.
    pub(super) fn place_loaded(&mut self, version: u32) -> bool {
        if version >= ONE_RECORD_VERSION {
            let loaded = self.separate.take().unwrap_or_default();
            for (no, training) in loaded.by_no {
                let job = self.jobs.get_mut(&job_no(no));
                match job.filter(|job| job.head.name == training.head.name) {
                    Some(job) => job.training = Some(training),
                    None => return false,
                }
            }
        }
        let Some(separate) = &mut self.separate else { return true };
        for (no, training) in &separate.by_no {
            separate.names.insert(training.head.name.clone(), *no);
            separate.of_namespace.add(&training.head.name.namespace);
        }
        true
    }

    /// Checks where the trainings are.
    pub(super) fn check_places(&self) -> Result<(), String> {
        let Some(separate) = &self.separate else {
            for (no, job) in &self.jobs {
                if job.training.as_ref().is_some_and(|t| t.head.name != job.head.name) {
                    return Err(format!("job {no} has the training of another"));
                }
            }
            return Ok(());
        };
        if self.jobs.values().any(|job| job.training.is_some()) {
            return Err("a job has a training before the version for it".into());
        }
        if separate.names.len() != separate.by_no.len() {
            return Err("the index of training jobs' names differs".into());
        }
        let counted = separate.names.keys().map(|name| name.namespace.as_str());
        match counted.collect::<Counts>() == separate.of_namespace {
            true => Ok(()),
            false => Err("the counts of training jobs by namespace differ".into()),
        }
    }
}

impl Jobs {
    /// The number of the training of the job of that name, also of one that is being deleted.
    pub(crate) fn training_no(&self, name: &JobName) -> Option<TrainingNo> {
        match &self.table.separate {
            Some(separate) => separate.names.get(name).copied(),
            None => {
                let no = training_no(self.no(name)?);
                self.table.training(no).map(|_| no)
            }
        }
    }

    /// All trainings, by namespace and name.
    pub(super) fn trainings_by_name(&self) -> impl Iterator<Item = &Training> {
        let separate = self.table.separate.iter().flat_map(|separate| separate.names.values());
        let of_jobs = self.names.values().filter(move |_| !self.table.is_separate());
        let of_jobs = of_jobs.map(|no| training_no(*no));
        separate.copied().chain(of_jobs).filter_map(move |no| self.table.training(no))
    }

    /// Makes a training beside the jobs. `made` counts all that were ever made there.
    pub(super) fn make_separate_training(
        &mut self,
        name: &JobName,
        made: &mut u32,
    ) -> Result<TrainingNo, Rejection> {
        let Some(separate) = &mut self.table.separate else {
            return Err(JobRefusal::JobUnknown.into());
        };
        if separate.of_namespace.get(&name.namespace) >= limits::TRAININGS_MAX {
            let what = "training jobs of one namespace".into();
            return Err(Rejection::Limit { what, max: limits::TRAININGS_MAX as u64 });
        }
        *made += 1;
        let no = TrainingNo(*made);
        separate.by_no.insert(no, Training::new(name));
        separate.names.insert(name.clone(), no);
        separate.of_namespace.add(&name.namespace);
        self.dirty_trainings.heads.insert(no);
        Ok(no)
    }

    /// Makes the training of a job that has none.
    pub(super) fn begin_training(&mut self, no: JobNo) -> TrainingNo {
        if let Some(job) = self.table.jobs.get_mut(&no) {
            job.training = Some(Training::new(&job.head.name));
        }
        self.refresh_due(no);
        self.dirty_trainings.heads.insert(training_no(no));
        training_no(no)
    }

    /// Removes a training without trainers and checkpoints. Its job stays as long as without a training, unless no
    /// participant has ever used it.
    pub(super) fn remove_training(&mut self, no: TrainingNo) {
        self.dirty_trainings.heads.insert(no);
        if let Some(separate) = &mut self.table.separate {
            if let Some(training) = separate.by_no.remove(&no) {
                separate.names.remove(&training.head.name);
                separate.of_namespace.remove(&training.head.name.namespace);
            }
            return;
        }
        let Some(job) = self.table.jobs.get_mut(&job_no(no)) else { return };
        job.training = None;
        match job.is_used_by_participants() {
            true => self.refresh_due(job_no(no)),
            false => drop(self.remove(job_no(no))),
        }
    }

    /// Gives each training the number of the job of its name, made if need be, in the order of their former numbers. All
    /// records of trainings are written again.
    fn make_one_record(&mut self, now: LedgerMs, made: &mut u32) {
        let Some(separate) = self.table.separate.take() else { return };
        self.ends.clear();
        for training in separate.by_no.into_values() {
            let name = &training.head.name;
            let no = self.no(name).unwrap_or_else(|| self.make(name.clone(), now, made));
            self.ends.extend(training.ends(training_no(no)));
            if let Some(job) = self.table.jobs.get_mut(&no) {
                job.training = Some(training);
            }
            self.refresh_due(no);
        }
        self.dirty_trainings.mark_all();
    }
}

impl Ledger {
    /// Makes one record of each job and its training when the cluster's version comes to have them.
    pub(crate) fn join_trainings(&mut self, before: u32) {
        if before < ONE_RECORD_VERSION && self.meta.version >= ONE_RECORD_VERSION {
            self.jobs.make_one_record(self.meta.clock, &mut self.meta.jobs_made);
        }
    }
}
