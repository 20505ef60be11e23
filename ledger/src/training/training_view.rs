//! Training jobs as their readers see them.
//!
//! *Invariant:* a view shows one moment, and gives no access that could change the state.

use crate::kernel::id::{DatasetNo, SessionId};
use crate::kernel::reply::Rejection;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SILENT_TRAINERS_VERSION;
use crate::training::checkpoint::{Checkpoint, CheckpointState, RankReport};
use crate::training::dataset::Datasets;
use crate::training::dataset_epoch::{DatasetEpoch, DatasetEpochCounts, ShardState};
use crate::training::job::JobName;
use crate::training::state::{LossPolicy, TrainerRef, Training};
use std::collections::{BTreeMap, BTreeSet};

/// A job.
#[derive(Clone, Copy, Debug)]
pub struct TrainingView<'a> {
    datasets: &'a Datasets,
    training: &'a Training,
}

/// The state of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingGenerationView<'a> {
    /// Counts from 1.
    pub number: u32,
    /// The number of the recovery that began it; 0: none did.
    pub round: u64,
    /// The last complete checkpoint; 0: none.
    pub checkpoint: u32,
    /// The training step whose state that checkpoint holds.
    pub step: u64,
    /// Trainers by rank.
    pub world: &'a [String],
    /// The lost trainer, and its host.
    pub needs_recovery: Option<(&'a str, &'a str)>,
}

/// A trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainerView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its host.
    pub host: &'a str,
    /// Whether it has joined.
    pub present: bool,
    /// Shards that it holds.
    pub shards: u32,
}

/// One epoch of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetEpochView<'a> {
    /// The dataset's name.
    pub dataset: &'a str,
    /// The epoch.
    pub epoch: u64,
    /// Counts of shards by state.
    pub counts: DatasetEpochCounts,
}

/// One shard of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView<'a> {
    /// Its number.
    pub number: u32,
    /// Its position in the epoch's order.
    pub position: u32,
    /// The trainer for which it is preferred; empty: none.
    pub preferred: &'a str,
    /// The trainer that has it; empty if none has.
    pub holder: &'a str,
    /// Whether all of it is in the job's state.
    pub finished: bool,
    /// How many of its samples are in the job's state.
    pub done: u32,
    /// How many a complete checkpoint holds.
    pub sealed: u32,
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointView<'a> {
    /// Its job.
    pub job: &'a JobName,
    /// Its number.
    pub number: u32,
    checkpoint: &'a Checkpoint,
}

impl<'a> CheckpointView<'a> {
    /// The generation that made it.
    pub fn generation(&self) -> u32 {
        self.checkpoint.generation
    }

    /// The one before it; 0: none.
    pub fn parent(&self) -> u32 {
        self.checkpoint.parent
    }

    /// Its step.
    pub fn step(&self) -> u64 {
        self.checkpoint.step
    }

    /// Its human-readable label.
    pub fn label(&self) -> &'a str {
        &self.checkpoint.label
    }

    /// Whether it counts.
    pub fn state(&self) -> CheckpointState {
        self.checkpoint.state
    }

    /// Each trainer by rank, with its report.
    pub fn ranks(&self) -> impl Iterator<Item = (&'a str, Option<&'a RankReport>)> + use<'a> {
        let checkpoint = self.checkpoint;
        (0..)
            .zip(&checkpoint.world)
            .map(|(rank, name)| (name.as_str(), checkpoint.reports.get(&rank)))
    }

    /// When it was begun, and when it was completed (0: it is not complete), informational only.
    pub fn wall_ms(&self) -> (u64, u64) {
        (self.checkpoint.begun_wall_ms, self.checkpoint.completed_wall_ms)
    }
}

impl<'a> TrainingView<'a> {
    /// Its name.
    pub fn name(&self) -> &'a JobName {
        &self.training.head.name
    }

    /// Its generation.
    pub fn generation(&self) -> TrainingGenerationView<'a> {
        let head = &self.training.head;
        TrainingGenerationView {
            number: head.generation,
            round: head.round,
            checkpoint: head.base,
            step: head.step,
            world: &head.world,
            needs_recovery: head
                .needs_recovery
                .as_ref()
                .map(|(name, host)| (name.as_str(), host.as_str())),
        }
    }

    /// The policy for losing a trainer.
    pub fn on_loss(&self) -> LossPolicy {
        self.training.head.on_loss
    }

    /// How many complete checkpoints are kept; 0: all.
    pub fn keep_last(&self) -> u32 {
        self.training.head.keep_last
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.training.head.deleting
    }

    /// How many checkpoints it has begun, which is also the number of the last one.
    pub fn checkpoints_made(&self) -> u32 {
        self.training.head.checkpoints_made
    }

    /// Its trainers by rank.
    pub fn trainers(&self) -> impl Iterator<Item = TrainerView<'a>> + use<'a> {
        let training = self.training;
        training.head.world.iter().map(move |name| {
            let trainer = training.trainers.get(name);
            TrainerView {
                name,
                host: trainer.map_or("", |trainer| &trainer.host),
                present: trainer.is_some_and(|trainer| trainer.incarnation.is_some()),
                shards: training.held_by(name).count() as u32,
            }
        })
    }

    fn dataset_epoch(&self, dataset: &str, epoch: u64) -> Option<(DatasetNo, &'a DatasetEpoch)> {
        let no = self.datasets.view(&self.name().namespace, dataset)?.no;
        Some((no, self.training.dataset_epochs.get(&(no, epoch))?))
    }

    /// The open epochs.
    pub fn dataset_epochs(&self) -> impl Iterator<Item = DatasetEpochView<'a>> + use<'a> {
        let datasets = self.datasets;
        self.training.dataset_epochs.iter().filter_map(move |(&(no, epoch), dataset_epoch)| {
            let dataset = datasets.get(no)?;
            Some(DatasetEpochView {
                dataset: &dataset.name,
                epoch,
                counts: dataset_epoch.counts(dataset),
            })
        })
    }

    /// Counts of an epoch's shards by state; `None` if no trainer has begun the epoch.
    pub fn counts(&self, dataset: &str, epoch: u64) -> Option<DatasetEpochCounts> {
        let view = self.datasets.view(&self.name().namespace, dataset)?;
        if let Some((no, dataset_epoch)) = self.dataset_epoch(dataset, epoch) {
            return self.datasets.get(no).map(|dataset| dataset_epoch.counts(dataset));
        }
        let done = self.training.head.done.get(&view.no)?.contains(epoch);
        let shards = view.spec.shards();
        let counts =
            DatasetEpochCounts { shards, finished: shards, sealed: shards, ..Default::default() };
        done.then_some(counts)
    }

    /// The shards of an open epoch, from a number on.
    pub fn shards(&self, dataset: &str, epoch: u64, from: u32, limit: usize) -> Vec<ShardView<'a>> {
        let Some((_, dataset_epoch)) = self.dataset_epoch(dataset, epoch) else {
            return Vec::new();
        };
        let shards = (0u32..).zip(&dataset_epoch.shards).skip(from as usize).take(limit);
        shards
            .map(|(number, shard)| ShardView {
                number,
                position: dataset_epoch.positions[number as usize],
                preferred: dataset_epoch.preferred(number, &self.training.ring),
                holder: match &shard.state {
                    ShardState::Claimed(claim) => &claim.trainer,
                    _ => "",
                },
                finished: matches!(shard.state, ShardState::Finished { .. }),
                done: shard.done(),
                sealed: shard.sealed,
            })
            .collect()
    }

    /// The free shards that a trainer is preferred for, in the epoch's order.
    pub fn preferred(&self, dataset: &str, epoch: u64, trainer: &str) -> Vec<u32> {
        self.dataset_epoch(dataset, epoch)
            .map_or_else(Vec::new, |(_, dataset_epoch)| dataset_epoch.free_of(trainer))
    }

    /// Its checkpoints by number.
    pub fn checkpoints(&self) -> impl Iterator<Item = CheckpointView<'a>> + use<'a> {
        let job = self.name();
        let all = self.training.checkpoints.iter();
        all.map(move |(&number, checkpoint)| CheckpointView { job, number, checkpoint })
    }

    /// One of its checkpoints.
    pub fn checkpoint(&self, number: u32) -> Option<CheckpointView<'a>> {
        let checkpoint = self.training.checkpoints.get(&number)?;
        Some(CheckpointView { job: self.name(), number, checkpoint })
    }

    /// The complete checkpoints to delete if `keep_last` were kept.
    pub fn prunable(&self, keep_last: u32) -> Vec<u32> {
        self.training.prunable(keep_last)
    }
}

impl Ledger {
    /// The job of that name.
    pub fn training(&self, name: &JobName) -> Option<TrainingView<'_>> {
        let training = self.jobs.table.training(self.jobs.training_no(name)?)?;
        Some(TrainingView { datasets: &self.datasets, training })
    }

    /// All jobs, by namespace and name.
    pub fn trainings(&self) -> impl Iterator<Item = TrainingView<'_>> {
        let all = self.jobs.trainings_by_name();
        all.map(move |training| TrainingView { datasets: &self.datasets, training })
    }

    /// All jobs, the newest first.
    pub fn trainings_newest_first(&self) -> impl Iterator<Item = TrainingView<'_>> {
        // Numbers count up.
        let all = self.jobs.table.trainings().rev();
        all.map(move |(_, training)| TrainingView { datasets: &self.datasets, training })
    }

    /// Whether a claim would get an answer: a shard is free, everything is finished, or the trainer would be refused.
    pub fn worth_claiming(&self, by: &TrainerRef, dataset: &str, epoch: u64) -> bool {
        let Some(view) = self.training(&by.job) else { return true };
        let theirs =
            view.training.trainers.get(&by.trainer).and_then(|trainer| trainer.incarnation);
        if theirs != Some(by.incarnation) || view.training.head.needs_recovery.is_some() {
            return true;
        }
        let dataset_epoch = view.dataset_epoch(dataset, epoch);
        dataset_epoch.is_none_or(|(_, dataset_epoch)| {
            dataset_epoch.has_free() || dataset_epoch.is_finished()
        })
    }

    /// The incarnations of all trainers, and for how many milliseconds each may be silent. Empty while the cluster's
    /// version is one in which the ledger loses silent trainers itself.
    pub fn trainer_keep_alives(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let by_leader = self.meta.version() >= SILENT_TRAINERS_VERSION;
        let trainings = self.jobs.table.trainings().filter(move |_| by_leader);
        let all = trainings.flat_map(|(_, training)| training.trainers.values());
        all.filter_map(|trainer| Some((trainer.incarnation?, trainer.keep_alive_ms)))
    }

    /// The trainers with these incarnations, by job.
    pub fn trainers_with(
        &self,
        incarnations: &BTreeSet<SessionId>,
    ) -> BTreeMap<JobName, Vec<(String, SessionId)>> {
        let mut found: BTreeMap<JobName, Vec<(String, SessionId)>> = BTreeMap::new();
        for (_, training) in self.jobs.table.trainings() {
            for (name, trainer) in &training.trainers {
                let Some(incarnation) = trainer.incarnation else { continue };
                if incarnations.contains(&incarnation) {
                    let of_job = found.entry(training.head.name.clone()).or_default();
                    of_job.push((name.clone(), incarnation));
                }
            }
        }
        found
    }

    /// Whether each of these trainers, by name and incarnation, is present: if not, its incarnation is void.
    ///
    /// # Errors
    /// There is no such job, or it is being deleted.
    pub fn trainers_present(
        &self,
        job: &JobName,
        trainers: &[(String, SessionId)],
    ) -> Result<Vec<bool>, Rejection> {
        let no = self.jobs.open_training(job)?;
        let training = self.jobs.table.training(no);
        let present = |(name, incarnation): &(String, SessionId)| {
            let trainer = training.and_then(|training| training.trainers.get(name));
            trainer.is_some_and(|trainer| trainer.incarnation == Some(*incarnation))
        };
        Ok(trainers.iter().map(present).collect())
    }

    /// A seed by which a reader may order the samples of a shard in an epoch.
    pub fn shard_seed(
        &self,
        namespace: &str,
        dataset: &str,
        epoch: u64,
        shard: u32,
    ) -> Option<u64> {
        let no = self.datasets.no(namespace, dataset)?;
        self.datasets.get(no).map(|dataset| dataset.epoch(epoch).shard_seed(shard))
    }
}
