//! Training jobs, sample by sample: for each sample the step after which it is in, and whether a complete checkpoint
//! has it. A checkpoint keeps a copy of everything. No rings, no bitmaps, no marks, no indexes.
//!
//! Each sample is checked when it comes in: a sample that is in already must not come in again along the generation
//! that survives.

#[path = "trainings_checkpoints.rs"]
mod checkpoints;
#[path = "trainings_compare.rs"]
mod compare;
#[path = "trainings_shards.rs"]
mod shards;
#[path = "trainings_trainers.rs"]
mod trainers;

use crate::naive::{Model, Outcome};
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    CheckpointState, DatasetOp, DatasetSpec, JobName, JobRefusal, LossPolicy, RankReport,
    Rejection, Reply, ShardProgress, TrainerRef, limits,
};
use std::collections::BTreeMap;

pub(crate) const DATASETS: [&str; 2] = ["pile", "tiny"];

#[derive(Default, Debug)]
pub(crate) struct Trainings {
    pub(crate) datasets: BTreeMap<String, DatasetSpec>,
    /// The order of creation, in which reports about several are checked.
    made: Vec<String>,
    pub(crate) jobs: BTreeMap<JobName, Job>,
}

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// After which step it is in.
    step: Option<u64>,
    /// How many samples of the shard were in with the report that brought it in.
    in_then: u32,
    sealed: bool,
}

impl Cell {
    fn is_in(&self) -> bool {
        self.sealed || self.step.is_some()
    }

    fn is_in_at(&self, step: u64) -> bool {
        self.sealed || self.step.is_some_and(|s| s <= step)
    }
}

/// The samples of each shard, by dataset and epoch.
type Cells = BTreeMap<(String, u64), Vec<Vec<Cell>>>;

#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) generation: u32,
    pub(crate) round: u64,
    pub(crate) asked: (Vec<String>, u32, LossPolicy),
    on_loss: LossPolicy,
    world: Vec<String>,
    pub(crate) trainers: BTreeMap<String, Trainer>,
    needs_recovery: Option<(String, String)>,
    base: usize,
    cells: Cells,
    pub(crate) claims: BTreeMap<(String, u64, u32), (String, Attempt)>,
    /// The claim under which a shard was finished.
    by_token: BTreeMap<(String, u64, u32), Attempt>,
    /// Tokens of claims that have ended.
    pub(crate) ended: Vec<Attempt>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    keep_last: u32,
    deleting: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Trainer {
    pub(crate) incarnation: Option<SessionId>,
    instance: u64,
    ends: u64,
    keep_ms: u64,
    /// The latest step it contributed to; the latest one that a checkpoint depends on.
    contributed: Option<u64>,
    after: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    generation: u32,
    step: u64,
    label: String,
    world: Vec<String>,
    reports: BTreeMap<usize, RankReport>,
    progress: Vec<ShardProgress>,
    state: Option<CheckpointState>,
    /// Once complete.
    cells: Cells,
}

impl Checkpoint {
    pub(crate) fn is_open(&self) -> bool {
        self.state == Some(CheckpointState::Open)
    }

    fn is_complete(&self) -> bool {
        self.state == Some(CheckpointState::Complete)
    }

    fn goes(&mut self) {
        if self.state.is_some() {
            self.state = Some(CheckpointState::Going);
            self.progress.clear();
            self.cells.clear();
        }
    }
}

fn refuse<T>(why: JobRefusal) -> Result<T, Rejection> {
    Err(Rejection::Job(why))
}

impl Job {
    /// The step of the last complete checkpoint.
    pub(crate) fn step(&self) -> u64 {
        self.base().map_or(0, |base| base.step)
    }

    fn base(&self) -> Option<&Checkpoint> {
        self.checkpoints.get(self.base.checked_sub(1)?)
    }

    fn check_step(&self, trainer: &str, step: u64, mark: u64) -> Result<(), Rejection> {
        let after = self.trainers.get(trainer).and_then(|t| t.after);
        if let Some(last) = self.base().map(|b| b.step).max(after).filter(|last| step <= *last) {
            return refuse(JobRefusal::StepStale { step, last });
        }
        if step < mark {
            return refuse(JobRefusal::StepStale { step, last: mark });
        }
        Ok(())
    }

    fn needs_no_recovery(&self) -> Result<(), Rejection> {
        match self.needs_recovery.clone() {
            Some((trainer, host)) => refuse(JobRefusal::NeedsRecovery { trainer, host }),
            None => Ok(()),
        }
    }

    /// A trainer is gone from the world.
    fn remove(&mut self, name: &str) {
        self.trainers.remove(name);
        self.world.retain(|other| other != name);
        for checkpoint in self.checkpoints.iter_mut().filter(|c| c.is_open()) {
            let rank = checkpoint.world.iter().position(|other| other == name);
            if rank.is_some_and(|rank| !checkpoint.reports.contains_key(&rank)) {
                checkpoint.goes();
            }
        }
    }

    fn add(&mut self, name: &str) {
        if !self.trainers.contains_key(name) {
            let after = self.checkpoints.iter().filter(|c| c.is_open()).map(|c| c.step).max();
            self.world.push(name.to_owned());
            self.trainers.insert(name.to_owned(), Trainer { after, ..Trainer::default() });
        }
    }
}

impl Model {
    pub(crate) fn dataset(&mut self, op: DatasetOp) -> Outcome {
        match op {
            DatasetOp::Create { name, spec, .. } => match self.trainings.datasets.get(&name) {
                Some(there) if *there != *spec => {
                    self.note("dataset refused");
                    refuse(JobRefusal::DatasetConflict)
                }
                Some(_) => Ok(Reply::Ok),
                None => {
                    self.trainings.made.retain(|other| *other != name);
                    self.trainings.made.push(name.clone());
                    self.trainings.datasets.insert(name, *spec);
                    Ok(Reply::Ok)
                }
            },
            DatasetOp::Delete { name, .. } => {
                let reads = |cells: &Cells| cells.keys().any(|key| key.0 == name);
                let job_reads = |job: &Job| {
                    reads(&job.cells) || job.checkpoints.iter().any(|c| reads(&c.cells))
                };
                let there = self.trainings.datasets.contains_key(&name);
                if there && self.trainings.jobs.values().any(job_reads) {
                    self.note("dataset refused");
                    return refuse(JobRefusal::DatasetInUse);
                }
                self.trainings.datasets.remove(&name);
                Ok(Reply::Ok)
            }
        }
    }

    fn job_for(&mut self, name: &JobName) -> Result<(), Rejection> {
        let new = || Job { generation: 1, keep_last: limits::KEEP_LAST_DEFAULT, ..Job::default() };
        self.trainings.jobs.entry(name.clone()).or_insert_with(new);
        self.job_mut(name).map(drop)
    }

    fn job_mut(&mut self, name: &JobName) -> Result<&mut Job, Rejection> {
        match self.trainings.jobs.get_mut(name) {
            None => refuse(JobRefusal::JobUnknown),
            Some(job) if job.deleting => refuse(JobRefusal::JobDeleting),
            Some(job) => Ok(job),
        }
    }

    fn heard(&mut self, by: &TrainerRef) -> Result<&mut Job, Rejection> {
        let job = self.job_mut(&by.job)?;
        if job.trainers.get(&by.trainer).and_then(|t| t.incarnation) != Some(by.incarnation) {
            return refuse(JobRefusal::IncarnationVoid);
        }
        job.needs_no_recovery()?;
        Ok(job)
    }

    fn forget_job(&mut self, name: &JobName) {
        let gone = |job: &Job| job.deleting && job.checkpoints.iter().all(|c| c.state.is_none());
        if self.trainings.jobs.get(name).is_some_and(gone) {
            self.trainings.jobs.remove(name);
        }
    }
}
