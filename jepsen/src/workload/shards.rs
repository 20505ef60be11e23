//! Trainers that read a dataset epoch after epoch in changing worlds: they fall silent, die and leave between
//! checkpoints, and recover. A second job continues after it loses a trainer.
//!
//! *Invariant:* a trainer is honest: what it says of a shard is true at the step that it names, and a trainer that
//! lost count comes back as another process. Every grant and every report is recorded with the lineage it belongs to.

use super::shard_trainer::{Membership, ShardTrainer};
use super::trainers::{SendResult, Shared, Tasks, Trainer};
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rollout_proto::{services, v1};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The trainers.
pub(super) const CLIENTS: &[&str] = &["t1", "t2", "t3", "t4"];
/// How many of them also train in the second job.
const CONTINUE_ON_LOSS_TRAINERS: usize = 3;
/// The dataset that they read.
pub(super) const DATASET: &str = "pile";
/// Prefix of every key of the second job.
pub(crate) const CONTINUE_ON_LOSS_PREFIX: &str = "on/";

#[derive(Clone, Copy)]
pub(super) struct TrainingJob {
    pub(super) job: &'static str,
    /// Prefix of every key of it in the history.
    pub(super) prefix: &'static str,
    /// Its policy after losing a trainer whose work the others may not have.
    pub(super) on_loss: v1::LossPolicy,
}

const RECOVERS: TrainingJob =
    TrainingJob { job: "train", prefix: "", on_loss: v1::LossPolicy::Recover };
const CONTINUES: TrainingJob = TrainingJob {
    job: "onward",
    prefix: CONTINUE_ON_LOSS_PREFIX,
    on_loss: v1::LossPolicy::Continue,
};

/// Samples of the dataset; the last shard has fewer than the others.
const SAMPLES: u64 = 117;
/// Samples of a shard.
const SHARD_SAMPLES: u32 = 6;
/// Shards of the dataset.
pub(crate) const SHARDS: u64 = SAMPLES.div_ceil(SHARD_SAMPLES as u64);

/// How many samples a shard has.
pub(crate) fn shard_len(shard: u64) -> i64 {
    let first = shard * u64::from(SHARD_SAMPLES);
    SAMPLES.saturating_sub(first).min(u64::from(SHARD_SAMPLES)) as i64
}

/// What the trainers of a job agree on outside the cluster, as their launcher would arrange.
pub(super) struct Launch {
    pub(super) training_job: TrainingJob,
    plan: Mutex<(u64, Vec<&'static str>, StdRng)>,
    /// The step of the fastest trainer.
    steps: AtomicU64,
    /// The latest requested epoch.
    epochs: AtomicU64,
}

impl Launch {
    fn new(training_job: TrainingJob, seed: u64) -> Arc<Self> {
        let rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        let (steps, epochs) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { training_job, plan: Mutex::new((0, Vec::new(), rng)), steps, epochs })
    }

    /// The round after `torn`, and its world: two to four trainers, including the one that asks first.
    pub(super) fn after(&self, torn: u64, name: &'static str) -> (u64, Vec<&'static str>) {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let (round, world, rng) = &mut *plan;
        if *round <= torn {
            *round = torn + 1;
            let mut others: Vec<_> = CLIENTS.iter().copied().filter(|n| *n != name).collect();
            others.shuffle(rng);
            others.truncate(rng.random_range(1..CLIENTS.len()));
            others.push(name);
            others.shuffle(rng);
            *world = others;
        }
        (*round, world.clone())
    }

    /// A round with no other trainer.
    fn alone(&self, name: &'static str) {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.0 += 1;
        plan.1 = vec![name];
    }

    pub(super) fn step(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn step_on(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn step_is(&self, step: u64) {
        self.steps.fetch_max(step, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epochs.load(Ordering::Relaxed)
    }

    pub(super) fn epoch_is(&self, epoch: u64) {
        self.epochs.fetch_max(epoch, Ordering::Relaxed);
    }
}

pub struct Running {
    tasks: Tasks,
    jobs: Vec<(Arc<Launch>, ShardTrainer)>,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let (shared, mut set, mut jobs) = (Shared::new(recorder), JoinSet::new(), Vec::new());
    for (training_job, count) in [(RECOVERS, CLIENTS.len()), (CONTINUES, CONTINUE_ON_LOSS_TRAINERS)]
    {
        let launch = Launch::new(training_job, seed);
        let trainer = |name: &'static str, seed: u64| -> Result<ShardTrainer> {
            let called = format!("{}-{name}", training_job.job);
            let trainer = Trainer::new(fleet, name, &called, &shared, seed)?;
            Ok(ShardTrainer::new(trainer, name, launch.clone()))
        };
        let seed = seed.wrapping_mul(47).wrapping_add(count as u64);
        for (number, name) in (0..).zip(&CLIENTS[..count]) {
            set.spawn(begin(trainer(name, seed.wrapping_add(number << 8))?));
        }
        let last = trainer(CLIENTS[0], !seed)?;
        jobs.push((launch, last));
    }
    Ok(Running { tasks: Tasks { shared, set }, jobs })
}

/// Creates the dataset before any trainer reads it.
async fn begin(mut trainer: ShardTrainer) -> Result<()> {
    while !trainer.trainer.shared.stopping() {
        let Some(request) = trainer.trainer.request().await else { continue };
        let spec = v1::DatasetSpec {
            uri: "file:///pile/{shard:4}".into(),
            samples: SAMPLES,
            shard_samples: SHARD_SAMPLES,
            seed: 11,
            ..v1::DatasetSpec::default()
        };
        let send = |channel, id| {
            let request = v1::CreateDatasetRequest {
                request: Some(id),
                namespace: String::new(),
                name: DATASET.into(),
                spec: Some(spec.clone()),
            };
            async move { services::datasets(channel).create_dataset(request).await }
        };
        let summary = |answer: &v1::CreateDatasetResponse| format!("{:?}", answer.dataset);
        if let SendResult::Answered(..) =
            trainer.trainer.change(request, "create a dataset", send, summary).await
        {
            break;
        }
    }
    trainer.run().await
}

impl Running {
    /// See [`super::Running::finish`]. The last trainer of each job recovers alone, and reads the rest of every epoch
    /// that was begun.
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        self.tasks.end(recovery).await?;
        let (mut wanted, mut answered) = (0, 0);
        for (launch, mut last) in self.jobs {
            let epochs = launch.epoch() + 1;
            wanted += epochs;
            answered += read_on(&launch, &mut last, epochs, recovery * 2).await;
        }
        self.tasks.shared.recorder.event(EventKind::FinalReads { wanted, answered });
        Ok(())
    }
}

/// Reads this many epochs to their ends; returns how many it finished.
async fn read_on(launch: &Launch, last: &mut ShardTrainer, epochs: u64, limit: Duration) -> u64 {
    let (begun, mut epoch, mut membership): (_, u64, Option<Membership>) =
        (Instant::now(), 0, None);
    while epoch < epochs && begun.elapsed() < limit {
        let Some(there) = &mut membership else {
            launch.alone(CLIENTS[0]);
            membership = last.enter().await;
            // Samples that this lineage has not sealed must be read in it.
            epoch = 0;
            continue;
        };
        match last.read_all(there, epoch).await {
            Some(true) => epoch += 1,
            Some(false) => {}
            None => membership = None,
        }
    }
    epoch
}
