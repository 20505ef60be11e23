//! A job's training: its generation, its trainers, and the epochs and checkpoints of both.
//!
//! *Invariant:* requests are accepted only for the present generation and with a valid incarnation: recovering makes
//! the next generation and voids every incarnation. A generation needs recovery if it lost a trainer whose work may be
//! missing from the others' state, or lost all trainers with work that no checkpoint holds. Then it accepts only a
//! recovery. A rank is a trainer's position in the world.
//!
//! Absent: how trainers find each other (rendezvous), and their bytes.

use crate::kernel::id::{Attempt, DatasetNo, LedgerMs, SessionId, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::Rejection;
use crate::kernel::rows::Rows;
use crate::machine::event::{Emitter, EventKind};
use crate::machine::image_load::{LoadError, bad};
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::{ONE_RECORD_VERSION, came_with};
use crate::training::checkpoint::Checkpoint;
use crate::training::dataset::{Dataset, Datasets};
use crate::training::dataset_epoch::DatasetEpoch;
use crate::training::job::{JobName, Jobs};
use crate::training::shard_ring::Ring;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The trainer that sends a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerRef {
    /// The job.
    pub job: JobName,
    /// The trainer's name.
    pub trainer: String,
    /// The incarnation that it was given.
    pub incarnation: SessionId,
}

/// What happens to a generation that loses a trainer with a part in its state, or with work that no checkpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossPolicy {
    /// It needs recovery.
    #[default]
    Recover,
    /// The trainer's shards are free from its last known position: samples are read at least once, not exactly once.
    Continue,
}

/// The training of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Training {
    pub(crate) head: TrainingHead,
    pub(crate) trainers: BTreeMap<String, Trainer>,
    pub(crate) dataset_epochs: BTreeMap<(DatasetNo, u64), DatasetEpoch>,
    pub(crate) checkpoints: BTreeMap<u32, Checkpoint>,
    /// Derived of the world.
    pub(crate) ring: Ring,
}

/// The part that is one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrainingHead {
    pub(crate) name: JobName,
    /// Counts from 1.
    pub(crate) generation: u32,
    /// The number of the recovery that made the generation; 0 for the first generation, which no recovery made.
    pub(crate) round: u64,
    /// The request of that recovery, so that a repeat is recognized.
    pub(crate) asked: [u8; 32],
    pub(crate) on_loss: LossPolicy,
    /// The trainers by rank.
    pub(crate) world: Vec<String>,
    /// The last complete checkpoint of the generation; 0: none.
    pub(crate) base: u32,
    pub(crate) step: u64,
    /// The lost trainer, and its host.
    pub(crate) needs_recovery: Option<(String, String)>,
    pub(crate) checkpoints_made: u32,
    /// How many complete checkpoints are kept; 0 for all.
    pub(crate) keep_last: u32,
    /// Epochs that the last complete checkpoint contains completely.
    pub(crate) done: BTreeMap<DatasetNo, Rows>,
    /// It is removed once its checkpoints' objects are gone.
    pub(crate) deleting: bool,
}

/// One trainer of the present generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trainer {
    pub(crate) host: String,
    /// `None`: expected, but not there yet.
    pub(crate) incarnation: Option<SessionId>,
    pub(crate) instance: u64,
    pub(crate) keep_alive_ms: u64,
    /// When it is lost, once it has an incarnation. From [`SILENT_TRAINERS_VERSION`] on it decides nothing, and a new
    /// leader does not renew it.
    ///
    /// [`SILENT_TRAINERS_VERSION`]: crate::machine::version_gate::SILENT_TRAINERS_VERSION
    pub(crate) ends: LedgerMs,
    /// The latest step that it contributed to.
    pub(crate) contributed: Option<u64>,
    /// The latest step with a checkpoint that depends on its work up to there: one that it reported to, or that was
    /// begun without it. Its later work goes into later checkpoints.
    pub(crate) after: Option<u64>,
}

impl Training {
    /// The training of a new job of that name.
    pub(super) fn new(name: &JobName) -> Self {
        let head = TrainingHead {
            name: name.clone(),
            generation: 1,
            keep_last: limits::KEEP_LAST_DEFAULT,
            ..TrainingHead::default()
        };
        Self { head, ..Self::default() }
    }

    /// When each trainer is lost, as the index has it under this number.
    pub(super) fn ends(
        &self,
        no: TrainingNo,
    ) -> impl Iterator<Item = (LedgerMs, TrainingNo, String)> {
        let there = self.trainers.iter().filter(|(_, trainer)| trainer.incarnation.is_some());
        there.map(move |(name, trainer)| (trainer.ends, no, name.clone()))
    }

    /// Whether a job uses a dataset.
    pub(crate) fn reads(&self, no: DatasetNo) -> bool {
        self.head.done.contains_key(&no)
            || self.dataset_epochs.keys().any(|key| key.0 == no)
            || self.checkpoints.values().any(|checkpoint| checkpoint.holds(no))
    }

    /// Whether a step is in the last complete checkpoint.
    pub(crate) fn is_sealed(&self, step: u64) -> bool {
        self.head.base != 0 && step <= self.head.step
    }

    /// Shards that a trainer has claimed.
    pub(crate) fn held_by<'a>(
        &'a self,
        trainer: &'a str,
    ) -> impl Iterator<Item = (DatasetNo, u64, u32)> + use<'a> {
        self.dataset_epochs.iter().flat_map(move |(&(dataset, epoch), dataset_epoch)| {
            let held = dataset_epoch.held.get(trainer).into_iter().flatten();
            held.map(move |&shard| (dataset, epoch, shard))
        })
    }

    /// Whether a trainer did, or may have done, work that no complete checkpoint holds.
    pub(crate) fn has_unsealed(&self, name: &str) -> bool {
        let contributed = self.trainers.get(name).and_then(|trainer| trainer.contributed);
        contributed.is_some_and(|step| !self.is_sealed(step)) || self.held_by(name).next().is_some()
    }

    /// Whether the other trainers' state may lack something without this one: its own work, or its part of the last
    /// complete checkpoint, own or taken over. The next checkpoint would miss that part, and no state would hold the
    /// sealed samples.
    pub(crate) fn needs(&self, name: &str) -> bool {
        self.head.base != 0 || self.has_unsealed(name)
    }

    /// Whether no trainer is left, although some work is in no complete checkpoint.
    pub(crate) fn is_deserted(&self) -> bool {
        let shards =
            || self.dataset_epochs.values().flat_map(|dataset_epoch| &dataset_epoch.shards);
        self.trainers.values().all(|trainer| trainer.incarnation.is_none())
            && shards().any(|shard| !shard.marks.is_empty())
    }

    /// The number of shards in open epochs.
    pub(crate) fn shards_open(&self) -> u64 {
        self.dataset_epochs.values().map(|dataset_epoch| dataset_epoch.shards.len() as u64).sum()
    }
}

impl Jobs {
    /// The training of the job of that name, if it exists and is not being deleted.
    pub(super) fn open_training(&self, name: &JobName) -> Result<TrainingNo, Rejection> {
        let no = self.training_no(name).ok_or(JobRefusal::JobUnknown)?;
        match self.table.training(no).is_some_and(|t| t.head.deleting) {
            true => Err(JobRefusal::JobDeleting.into()),
            false => Ok(no),
        }
    }

    /// The job of a trainer with a valid incarnation, in a generation that needs no recovery.
    pub(super) fn heard(&mut self, by: &TrainerRef) -> Result<TrainingNo, Rejection> {
        let no = self.open_training(&by.job)?;
        let Some(training) = self.table.training_mut(no) else {
            return Err(JobRefusal::JobUnknown.into());
        };
        let theirs = training.trainers.get(&by.trainer).and_then(|trainer| trainer.incarnation);
        if theirs != Some(by.incarnation) {
            return Err(JobRefusal::IncarnationVoid.into());
        }
        needs_no_recovery(&training.head)?;
        self.training_changes += 1;
        Ok(no)
    }

    /// Whether a job reads a dataset.
    pub(crate) fn any_reads(&self, no: DatasetNo) -> bool {
        self.table.trainings().any(|(_, training)| training.reads(no))
    }

    /// When the next trainer is lost.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.ends.first().map(|end| end.0)
    }

    /// Emits an event about a change of a job.
    pub(super) fn emit_training(
        &self,
        out: &mut Emitter,
        no: TrainingNo,
        to: &'static str,
        detail: String,
    ) {
        let Some(training) = self.table.training(no) else { return };
        let job = training.head.name.clone();
        out.emit(EventKind::TrainingChanged { job, to, detail });
    }

    /// Rebuilds what is derived of trainings.
    ///
    /// # Errors
    /// A record is missing, or a training has no place.
    pub(crate) fn derive_trainings(
        &mut self,
        version: u32,
        datasets: &Datasets,
    ) -> Result<(), LoadError> {
        self.table.place_loaded(version)?;
        for (no, training) in self.table.trainings_mut() {
            if training.head.generation == 0 {
                return Err(bad(b"L"));
            }
            training.ring = Ring::of(&training.head.world);
            for ((dataset, epoch), dataset_epoch) in &mut training.dataset_epochs {
                let Some(dataset) = datasets.get(*dataset) else { return Err(bad(b"L")) };
                if dataset_epoch.shards.len() != dataset.spec.shards() as usize {
                    return Err(bad(b"L"));
                }
                dataset_epoch.derive(dataset, *epoch, &training.ring);
            }
            self.ends.extend(training.ends(no));
            self.shards_open += training.shards_open();
        }
        Ok(())
    }

    /// Checks the invariants of trainings.
    pub(crate) fn check_trainings(&self, version: u32, datasets: &Datasets) -> Result<(), String> {
        if self.table.is_separate() != (version < ONE_RECORD_VERSION) {
            return Err(format!("trainings are not where version {version} has them"));
        }
        self.table.check_places()?;
        let mut ends = BTreeSet::new();
        let mut tokens = BTreeSet::new();
        let mut shards_open = 0;
        for (no, training) in self.table.trainings() {
            shards_open += training.shards_open();
            let job = format!("training job {no}");
            let world: BTreeSet<&String> = training.head.world.iter().collect();
            if world.len() != training.head.world.len()
                || !world.into_iter().eq(training.trainers.keys())
            {
                return Err(format!("{job}: its world and its trainers differ"));
            }
            ends.extend(training.ends(no));
            for (&(dataset, epoch), dataset_epoch) in &training.dataset_epochs {
                let Some(found) = datasets.get(dataset) else {
                    return Err(format!("{job}, {dataset}/{epoch}: no dataset"));
                };
                check_dataset_epoch(training, (found, epoch), dataset_epoch, &mut tokens)
                    .map_err(|why| format!("{job}, {dataset}/{epoch}: {why}"))?;
            }
            training.check_checkpoints().map_err(|why| format!("{job}: {why}"))?;
        }
        if shards_open != self.shards_open {
            return Err(format!("{shards_open} shards are open, not {}", self.shards_open));
        }
        match ends == self.ends {
            true => Ok(()),
            false => Err("the index of trainers' ends differs".into()),
        }
    }
}

fn check_dataset_epoch(
    training: &Training,
    (dataset, epoch): (&Dataset, u64),
    dataset_epoch: &DatasetEpoch,
    tokens: &mut BTreeSet<Attempt>,
) -> Result<(), String> {
    if *dataset_epoch
        != DatasetEpoch::with(dataset_epoch.shards.clone(), dataset, epoch, &training.ring)
    {
        return Err("what is derived differs".into());
    }
    for (number, shard) in (0..).zip(&dataset_epoch.shards) {
        shard
            .check(dataset.spec.shard_len(number), training, tokens)
            .map_err(|why| format!("shard {number}: {why}"))?;
    }
    Ok(())
}

impl Ledger {
    /// The training of the job of that name, both created if needed.
    pub(super) fn training_for(&mut self, name: &JobName) -> Result<TrainingNo, Rejection> {
        check_name("job's", &name.job)?;
        if self.jobs.training_no(name).is_some() {
            return self.jobs.open_training(name);
        }
        if self.meta.version() >= ONE_RECORD_VERSION {
            self.job_or_room(name)?;
            let no = self.make_job(name.clone());
            return Ok(self.jobs.begin_training(no));
        }
        if !self.namespaces.contains_key(&name.namespace) {
            return Err(Rejection::NamespaceUnknown(name.namespace.clone()));
        }
        self.jobs.make_separate_training(name, &mut self.meta.trainings_made)
    }

    /// Changes whenever a job changes. Not part of the state: it only tells readers to check again.
    pub fn training_changes(&self) -> u64 {
        self.jobs.training_changes
    }
}

/// Refuses an operation on a generation that needs recovery.
pub(crate) fn needs_no_recovery(head: &TrainingHead) -> Result<(), Rejection> {
    match &head.needs_recovery {
        Some((trainer, host)) => {
            Err(JobRefusal::NeedsRecovery { trainer: trainer.clone(), host: host.clone() }.into())
        }
        None => Ok(()),
    }
}

came_with!(LossPolicy, LOSSES, {
    1: LossPolicy::Recover | LossPolicy::Continue,
});
