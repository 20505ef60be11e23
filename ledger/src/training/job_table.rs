//! Where jobs and their trainings are: one record per job, or, below [`ONE_RECORD_VERSION`], trainings beside the jobs.
//!
//! *Invariant:* below that version no job has a training, and trainings have numbers of their own. From it on a training
//! has the number of its job. Only this file, `job/image.rs` and `training_image.rs` know the difference: everything
//! else finds a training by its [`TrainingNo`].

use crate::kernel::counts::Counts;
use crate::kernel::id::{JobNo, LedgerMs, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::kernel::visits::count_visit;
use crate::machine::image_load::{LoadError, bad};
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::ONE_RECORD_VERSION;
use crate::training::job::{Job, JobName, Jobs};
use crate::training::state::Training;
use std::collections::{BTreeMap, BTreeSet};

/// All jobs by number, with their trainings.
#[derive(Clone, Debug)]
pub(crate) struct JobTable {
    pub(super) jobs: BTreeMap<JobNo, Job>,
    /// `None` from [`ONE_RECORD_VERSION`] on.
    separate: Option<SeparateTrainings>,
    /// Derived: the jobs that have a training. Most may have none, and a namespace has a thousand.
    trained: BTreeSet<JobNo>,
}

impl Default for JobTable {
    /// As in a new cluster, whose version is the first.
    fn default() -> Self {
        let separate = Some(SeparateTrainings::default());
        Self { jobs: BTreeMap::new(), separate, trained: BTreeSet::new() }
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
        let jobs = &self.jobs;
        let of_jobs = self.trained.iter().filter_map(move |no| {
            count_visit();
            Some((training_no(*no), jobs.get(no)?.training.as_ref()?))
        });
        let separate = separate.map(|(no, training)| {
            count_visit();
            (*no, training)
        });
        separate.chain(of_jobs)
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

    /// Puts the loaded trainings where the cluster's version has them.
    ///
    /// # Errors
    /// One has no such place. Builds that became version 4 step by step had trainings beside the jobs in that version.
    pub(super) fn place_loaded(&mut self, version: u32) -> Result<(), LoadError> {
        if version >= ONE_RECORD_VERSION {
            let loaded = self.separate.take().unwrap_or_default();
            for (no, training) in loaded.by_no {
                let job = self.jobs.get_mut(&job_no(no));
                match job.filter(|job| job.head.name == training.head.name) {
                    Some(job) => job.training = Some(training),
                    // Without its own record it has no name.
                    None if training.head.generation == 0 => return Err(bad(b"L")),
                    None => return Err(LoadError::Unreleased { version }),
                }
                self.trained.insert(job_no(no));
            }
        }
        let Some(separate) = &mut self.separate else { return Ok(()) };
        for (no, training) in &separate.by_no {
            separate.names.insert(training.head.name.clone(), *no);
            separate.of_namespace.add(&training.head.name.namespace);
        }
        Ok(())
    }

    /// Checks where the trainings are.
    pub(super) fn check_places(&self) -> Result<(), String> {
        let trained = self.jobs.iter().filter(|(_, job)| job.training.is_some());
        if !trained.map(|(no, _)| no).eq(&self.trained) {
            return Err("the index of jobs with a training differs".into());
        }
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
        let of_jobs = self.numbers_by_name().filter(move |_| !self.table.is_separate());
        let of_jobs = of_jobs.map(training_no);
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
        self.dirty_trainings.mark_head(no);
        Ok(no)
    }

    /// Makes the training of a job that has none.
    pub(super) fn begin_training(&mut self, no: JobNo) -> TrainingNo {
        if let Some(job) = self.table.jobs.get_mut(&no) {
            job.training = Some(Training::new(&job.head.name));
            self.table.trained.insert(no);
        }
        self.refresh_due(no);
        self.dirty_trainings.mark_head(training_no(no));
        training_no(no)
    }

    /// Removes a training without trainers and checkpoints. Its job stays as long as without a training, unless no
    /// participant has ever used it.
    pub(super) fn remove_training(&mut self, no: TrainingNo) {
        self.dirty_trainings.mark_head(no);
        if let Some(separate) = &mut self.table.separate {
            if let Some(training) = separate.by_no.remove(&no) {
                separate.names.remove(&training.head.name);
                separate.of_namespace.remove(&training.head.name.namespace);
            }
            return;
        }
        let Some(job) = self.table.jobs.get_mut(&job_no(no)) else { return };
        job.training = None;
        self.table.trained.remove(&job_no(no));
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
                self.table.trained.insert(no);
            }
            self.refresh_due(no);
        }
        self.dirty_trainings.mark_all();
    }
}

impl Ledger {
    /// Makes one record of each job and its training when the cluster's version comes to have them.
    pub(crate) fn join_trainings(&mut self, before: u32) {
        if before < ONE_RECORD_VERSION && self.meta.version() >= ONE_RECORD_VERSION {
            self.jobs.make_one_record(self.meta.clock(), &mut self.meta.jobs_made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::CoordEpoch;
    use crate::kernel::reply::Reply;
    use crate::kernel::visits::visits_of;
    use crate::machine::command::{Body, Command, OpKind, op};
    use crate::machine::ledger::EntryId;
    use crate::training::dataset::{DatasetOp, DatasetSpec};
    use crate::training::shard::ShardOp;
    use crate::training::state::{LossPolicy, TrainerRef};
    use crate::training::trainer::{TrainerDecl, TrainerOp};

    /// A ledger, and the index of its last entry.
    struct Bench(Ledger, u64);

    impl Bench {
        /// A cluster of this version with a dataset of two shards.
        fn new(version: u32) -> Self {
            let mut bench = Self(Ledger::new([1; 16]), 0);
            bench.apply(Body::OpenEpoch);
            bench.apply(Body::SetVersion(version));
            let (samples, uri) = (2, "u".into());
            let spec = DatasetSpec { uri, samples, shard_samples: 1, ..DatasetSpec::default() };
            let (namespace, name) = ("default".into(), "d".into());
            let create = DatasetOp::Create { namespace, name, spec: Box::new(spec) };
            assert_eq!(bench.op(OpKind::Dataset(create)), Reply::Ok);
            bench
        }

        /// It checks no invariants, because that visits every training.
        fn apply(&mut self, body: Body) -> Vec<Reply> {
            self.1 += 1;
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
            let entry = EntryId { index: self.1, term: 1 };
            self.0.apply(entry, &command.encode()).expect("it is known")
        }

        fn op(&mut self, kind: OpKind) -> Reply {
            self.apply(Body::Ops(vec![kind.into()])).remove(0)
        }

        /// A trainer of this job, which is new.
        fn join(&mut self, name: &str) -> TrainerRef {
            let (job, keep_alive_ms) = (job(name), 10_000);
            let trainer = TrainerDecl { name: "t".into(), keep_alive_ms, ..TrainerDecl::default() };
            let on_loss = LossPolicy::Recover;
            let reply = self.op(OpKind::Trainer(TrainerOp::Join { job, trainer, on_loss }));
            let Reply::Joined { incarnation, .. } = reply else { panic!("{reply:?}") };
            TrainerRef { job: self::job(name), trainer: "t".into(), incarnation }
        }

        fn claim(&mut self, by: &TrainerRef) {
            let (by, dataset) = (by.clone(), "d".into());
            let reply = self.op(OpKind::Shard(ShardOp::Claim { by, dataset, epoch: 0 }));
            assert!(matches!(reply, Reply::Shard { .. }), "{reply:?}");
        }
    }

    fn job(name: &str) -> JobName {
        JobName { namespace: "default".into(), job: name.into() }
    }

    #[test]
    fn a_claim_visits_the_training_of_no_other_job() {
        for version in [ONE_RECORD_VERSION - 1, ONE_RECORD_VERSION] {
            let mut bench = Bench::new(version);
            for other in 0..20 {
                let by = bench.join(&format!("other{other}"));
                bench.claim(&by);
            }
            let by = bench.join("j");
            let visits = visits_of(|| bench.claim(&by));
            assert_eq!(visits, 0, "of version {version}: it opens the epoch");
            let visits = visits_of(|| bench.claim(&by));
            assert_eq!(visits, 0, "of version {version}: the epoch is open");
            bench.0.check_invariants().expect("they hold");
        }
    }

    #[test]
    fn trainings_are_found_without_a_visit_to_every_job() {
        let mut bench = Bench::new(ONE_RECORD_VERSION);
        for n in 0..20 {
            let close = op::CloseRendezvous { job: job(&format!("other{n}")) };
            assert_eq!(bench.op(OpKind::CloseRendezvous(close)), Reply::Ok);
        }
        bench.join("j");
        let visits = visits_of(|| assert_eq!(bench.0.trainer_keep_alives().count(), 1));
        assert_eq!(visits, 1);
        bench.0.check_invariants().expect("they hold");
    }
}
