//! Owns: the training jobs during an upgrade: a trainer that reads a dataset and writes checkpoints, and participants
//! of a barrier and of a rendezvous.
//!
//! Invariant: each sample is in the last checkpoint once, and no participant is lost.
//! Absent: trainers that die (`tests/tests/training`).

use crate::rolling_upgrade::PATIENCE;
use anyhow::{Result, ensure};
use rollout_proto::Client;
use rollout_tests::{Fleet, Participant, latest_checkpoint, not_once, sample_id, sample_ids};
use rollout_training::{
    CheckpointWriter, Recovery, ShardReader, Trainer, TrainerOptions, restore_rank,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(crate) const JOB: &str = "sft";
/// The job of the participants that meet.
pub(crate) const ROUNDS: &str = "rounds";
/// The job of the participants that pass a barrier.
const BARRIERS: &str = "barriers";

const TRAINER: &str = "t0";
const DATASET: &str = "pile";
const SAMPLES: u64 = 400;
const SHARD_SAMPLES: u64 = 10;
/// Samples of one step. Shards have ten: a step ends within a shard, which is then held during the next upgrade of a
/// member.
const STEP_SAMPLES: usize = 25;
/// Longer than any stage: this test loses no trainer.
const SILENCE: Duration = Duration::from_secs(600);

const PROGRAM: &str = env!("CARGO_BIN_EXE_participant");
/// The time between two keep-alives; three may be missed.
const ALIVE: &str = "alive=30000";

/// A trainer, with the samples that it has read.
pub(crate) struct Training {
    client: Client,
    trainer: Arc<Trainer>,
    reader: ShardReader,
    ids: Vec<u64>,
    step: u64,
    /// The last field: the trainer's tasks end before their runtime.
    runtime: Runtime,
}

impl Training {
    pub(crate) fn start(fleet: &Fleet) -> Result<Self> {
        let (samples, shard) = (SAMPLES.to_string(), SHARD_SAMPLES.to_string());
        let uri = "file:///data/{shard:4}.tar";
        let create = ["dataset", "create", DATASET, "--uri", uri, "--samples", &samples];
        let created = fleet.ctl(&[&create[..], &["--shard-samples", &shard]].concat())?;
        ensure!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = fleet.client("client", "user")?;
        let options = TrainerOptions {
            job: JOB.into(),
            name: TRAINER.into(),
            keep_alive: SILENCE,
            ..TrainerOptions::default()
        };
        let recovery =
            Recovery { round: 1, world: vec![TRAINER.to_owned()], ..Recovery::default() };
        let recovered = Trainer::recover(client.clone(), &options, &recovery);
        let trainer = Arc::new(runtime.block_on(recovered)?.0);
        let reader = ShardReader::new(trainer.clone(), DATASET, 0);
        Ok(Self { client, trainer, reader, ids: Vec::new(), step: 0, runtime })
    }

    /// One step, and its checkpoint.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Self { trainer, reader, ids, step, runtime, .. } = self;
        runtime.block_on(async {
            let samples = reader.take(STEP_SAMPLES).await?;
            ids.extend(samples.into_iter().map(|sample| sample_id(0, sample)));
            *step += 1;
            reader.stepped(*step).await?;
            let checkpoint = trainer.begin_checkpoint(*step, "", PATIENCE).await?;
            let writer = CheckpointWriter::open(trainer.store_url())?;
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let files = vec![("ids".to_owned(), bytes.into())];
            let written = writer.begin(&checkpoint, trainer.name(), files).wait().await?;
            let (number, progress) = (checkpoint.number, reader.progress());
            let complete = trainer.report_checkpoint(number, &written, progress).await?;
            ensure!(complete, "the checkpoint of step {step} is not complete");
            anyhow::Ok(())
        })
    }

    /// Reads the rest of the dataset. Each sample is in the last checkpoint once.
    pub(crate) fn finish(mut self) -> Result<()> {
        while !self.reader.is_finished() {
            self.step()?;
        }
        let ids = self.runtime.block_on(async {
            let checkpoint = latest_checkpoint(&self.client, JOB).await?;
            let restored = restore_rank(&checkpoint, 0).await?;
            anyhow::Ok(sample_ids(&restored.files[0].1))
        })?;
        let wrong = not_once(&ids, 1, SAMPLES);
        ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
        self.runtime.block_on(self.trainer.leave())?;
        Ok(())
    }
}

/// Processes that pass one generation of a barrier at each stage, and two that stay in a round for the whole upgrade.
pub(crate) struct Participants {
    passing: Vec<Participant>,
    generation: u64,
    meeting: Vec<Participant>,
}

impl Participants {
    pub(crate) fn start(fleet: &Fleet) -> Result<Self> {
        let gate = format!("gate={}", fleet.path("gate").display());
        let args = ["members=p0,p1,p2", &gate, ALIVE];
        let passing = ["p0", "p1", "p2"]
            .map(|name| Participant::start(fleet, PROGRAM, ("pass", BARRIERS, name), &args));
        let passing = passing.into_iter().collect::<Result<Vec<_>>>()?;
        passing.iter().for_each(|one| drop(one.until_it_says("joined", "")));
        let meeting = ["n0", "n1"].map(|name| meet(fleet, name)).into_iter();
        let meeting = meeting.collect::<Result<Vec<_>>>()?;
        meeting.iter().for_each(|one| drop(one.until_it_says("round ", " of 2: n0 n1")));
        Ok(Self { passing, generation: 0, meeting })
    }

    /// All pass the next generation.
    pub(crate) fn pass(&mut self, fleet: &Fleet) -> Result<()> {
        self.generation += 1;
        let generation = self.generation;
        std::fs::write(fleet.path(&format!("gate.{generation}")), "")?;
        for one in &self.passing {
            one.until_it_says(&format!("passed {generation}: "), "p0 p1 p2");
        }
        Ok(())
    }

    /// A third one joins those that met before the upgrade, and an operator closes the rendezvous.
    pub(crate) fn finish(mut self, fleet: &Fleet) -> Result<()> {
        let seen = fleet.ctl_json(&["rendezvous", "describe", ROUNDS])?;
        let gone = seen["gone"].as_array().cloned().unwrap_or_default();
        ensure!(gone.iter().all(|one| one["why"] != "lost"), "{seen}");
        self.meeting.push(meet(fleet, "n2")?);
        for one in &self.meeting {
            one.until_it_says("round ", " of 3: n0 n1 n2");
        }
        ensure!(
            fleet.ctl(&["rendezvous", "close", ROUNDS, "--yes"])?.status.success(),
            "it is closed"
        );
        for mut one in self.meeting {
            one.until_it_says("closed", "");
            ensure!(one.process.wait(PATIENCE)?.success(), "{}", one.process.log_tail());
        }
        Ok(())
    }
}

/// A participant that joins rounds of two or three.
fn meet(fleet: &Fleet, name: &str) -> Result<Participant> {
    let args = ["min=2", "max=3", "call=2000", ALIVE];
    Participant::start(fleet, PROGRAM, ("meet", ROUNDS, name), &args)
}
