//! Trainers that read a dataset epoch after epoch, in worlds that change: they fall silent, die and leave between
//! checkpoints, and recover; and those of a second job, which goes on without whoever it loses.
//!
//! *Invariant:* a trainer is honest: what it says of a shard is so, by the step that it names, and whoever lost count
//! comes back as another process. What each was given, and what it said, is recorded with the lineage that it is in.

use super::shard_trainer::{Place, ShardTrainer};
use super::trainers::{Sent, Shared, Tasks, Trainer};
use crate::events::What;
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

/// Who trains.
pub(super) const CLIENTS: &[&str] = &["t1", "t2", "t3", "t4"];
/// Who of them trains in the second job too.
const ONWARD: usize = 3;
/// What they read.
pub(super) const DATASET: &str = "pile";
/// Before every key of the second job.
pub(crate) const ONWARD_PREFIX: &str = "on/";

/// A job.
#[derive(Clone, Copy)]
pub(super) struct Career {
    pub(super) job: &'static str,
    /// Before every key of it in the history.
    pub(super) prefix: &'static str,
    /// What becomes of it when it loses a trainer with what the others may not have.
    pub(super) on_loss: v1::LossPolicy,
}

const RECOVERS: Career = Career { job: "train", prefix: "", on_loss: v1::LossPolicy::Recover };
const GOES_ON: Career =
    Career { job: "onward", prefix: ONWARD_PREFIX, on_loss: v1::LossPolicy::Continue };

/// Samples of the dataset: the last shard has fewer.
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

/// What the trainers of a job agree on beside the cluster, as whoever starts them would see to it.
pub(super) struct Launch {
    pub(super) career: Career,
    plan: Mutex<(u64, Vec<&'static str>, StdRng)>,
    /// The step at which the fastest of them is.
    steps: AtomicU64,
    /// The latest epoch that was asked for.
    epochs: AtomicU64,
}

impl Launch {
    fn new(career: Career, seed: u64) -> Arc<Self> {
        let rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        let (steps, epochs) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { career, plan: Mutex::new((0, Vec::new(), rng)), steps, epochs })
    }

    /// The round that follows on `torn`, and its world: two to four trainers, the one that asks first among them.
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

    /// A round that nobody else is in.
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

/// A running workload.
pub struct Running {
    tasks: Tasks,
    jobs: Vec<(Arc<Launch>, ShardTrainer)>,
}

/// Lets every client loose.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let (shared, mut set, mut jobs) = (Shared::new(recorder), JoinSet::new(), Vec::new());
    for (career, count) in [(RECOVERS, CLIENTS.len()), (GOES_ON, ONWARD)] {
        let launch = Launch::new(career, seed);
        let trainer = |name: &'static str, seed: u64| -> Result<ShardTrainer> {
            let called = format!("{}-{name}", career.job);
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

/// There is a dataset before anybody reads it.
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
        let told = |answer: &v1::CreateDatasetResponse| format!("{:?}", answer.dataset);
        if let Sent::Answered(..) =
            trainer.trainer.change(request, "create a dataset", send, told).await
        {
            break;
        }
    }
    trainer.run().await
}

impl Running {
    /// See [`super::Running::finish`]. The last trainer of each job, alone, recovers, and reads what is left of every
    /// epoch that anybody began.
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        self.tasks.end(recovery).await?;
        let (mut wanted, mut answered) = (0, 0);
        for (launch, mut last) in self.jobs {
            let epochs = launch.epoch() + 1;
            wanted += epochs;
            answered += read_on(&launch, &mut last, epochs, recovery * 2).await;
        }
        self.tasks.shared.recorder.event(What::FinalReads { wanted, answered });
        Ok(())
    }
}

/// Reads so many epochs to their ends; how many of them it has.
async fn read_on(launch: &Launch, last: &mut ShardTrainer, epochs: u64, limit: Duration) -> u64 {
    let (begun, mut epoch, mut place): (_, u64, Option<Place>) = (Instant::now(), 0, None);
    while epoch < epochs && begun.elapsed() < limit {
        let Some(there) = &mut place else {
            launch.alone(CLIENTS[0]);
            place = last.enter().await;
            // What this lineage has not sealed has to be read in it.
            epoch = 0;
            continue;
        };
        match last.read_all(there, epoch).await {
            Some(true) => epoch += 1,
            Some(false) => {}
            None => place = None,
        }
    }
    epoch
}
