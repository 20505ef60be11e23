//! Trainers in the test's own process, which leave and join between checkpoints.

use crate::ranks_and_rounds::setup::{
    PATIENCE, SEED, client, create_dataset, each_is_in_once, folded, ids_in, latest_checkpoint,
};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, eventually_or_show, sample_id, sample_ids};
use rollout_training::mock::MockModel;
use rollout_training::{
    CheckpointWriter, Recovery, ShardReader, TrainError, Trainer, TrainerOptions, restore_rank,
};
use std::sync::Arc;
use std::time::Duration;

/// The job of the trainers in the test's own process.
const OWN: &str = "leaves";
/// Silence after which such a trainer is lost: longer than any test, or short.
const NEVER: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(10);

/// A trainer in the test's own process, with its rank's state.
struct Rank {
    trainer: Arc<Trainer>,
    reader: ShardReader,
    model: MockModel,
    ids: Vec<u64>,
}

impl Rank {
    fn options(name: &str, keep_alive: Duration) -> TrainerOptions {
        let (job, name) = (OWN.into(), name.into());
        TrainerOptions { job, name, keep_alive, ..TrainerOptions::default() }
    }

    fn new(trainer: Trainer, model: MockModel, ids: Vec<u64>) -> Self {
        let trainer = Arc::new(trainer);
        let reader = ShardReader::new(trainer.clone(), "pile", 0);
        Self { trainer, reader, model, ids }
    }

    /// Starts a trainer that begins the job with others.
    async fn first(fleet: &Fleet, name: &str, world: &[&str], lost: Duration) -> Result<Self> {
        let world = world.iter().map(|name| (*name).to_owned()).collect();
        let recovery = Recovery { round: 1, world, ..Recovery::default() };
        let (trainer, _) =
            Trainer::recover(client(fleet)?, &Self::options(name, lost), &recovery).await?;
        Ok(Self::new(trainer, MockModel::new(SEED), Vec::new()))
    }

    /// Starts a trainer that recovers the job alone, and takes over the state of all ranks in the last complete
    /// checkpoint.
    async fn recovers(fleet: &Fleet, name: &str, round: u64) -> Result<Self> {
        let recovery = Recovery { round, world: vec![name.to_owned()], ..Recovery::default() };
        let options = Self::options(name, NEVER);
        let (trainer, _) = Trainer::recover(client(fleet)?, &options, &recovery).await?;
        Ok(Self::new(trainer, folded(fleet, OWN).await?, ids_in(fleet, OWN).await?))
    }

    /// Starts a trainer that joins the lineage, and takes over the state of `left` in the last complete checkpoint.
    async fn joins(fleet: &Fleet, name: &str, left: &str) -> Result<Self> {
        let trainer = Trainer::join(client(fleet)?, &Self::options(name, NEVER)).await?;
        let checkpoint = latest_checkpoint(fleet, OWN).await?;
        let rank = checkpoint.ranks.iter().position(|rank| rank.trainer == left);
        let restored = restore_rank(&checkpoint, rank.context("a rank of it")?).await?;
        let model = MockModel::load_weights(&restored.files[0].1).context("weights")?;
        Ok(Self::new(trainer, model, sample_ids(&restored.files[1].1)))
    }

    /// Takes a step with this many samples, or with a few more so that its shard is partly read afterward.
    async fn step(&mut self, batch: usize, in_part: bool) -> Result<()> {
        let mut samples = self.reader.take(batch).await?;
        while in_part && self.reader.progress().is_empty() {
            samples.extend(self.reader.take(1).await?);
        }
        let samples: Vec<u64> = samples.into_iter().map(|sample| sample_id(0, sample)).collect();
        let (_, grad) = self.model.forward_with_loss(&samples);
        self.model.optimizer_step(grad);
        self.ids.extend(samples);
        Ok(self.reader.stepped(self.model.steps()).await?)
    }

    async fn reads_on(&mut self) -> Result<()> {
        while !self.reader.is_finished() {
            self.step(4, false).await?;
        }
        Ok(())
    }

    /// Takes steps without samples, up to this one.
    fn until_step(&mut self, step: u64) {
        while self.model.steps() < step {
            let (_, grad) = self.model.forward_with_loss(&[]);
            self.model.optimizer_step(grad);
        }
    }

    /// Reports its rank of the current step's checkpoint; returns whether that completes the checkpoint.
    async fn reports(&self) -> Result<bool> {
        let checkpoint = self.trainer.begin_checkpoint(self.model.steps(), "", PATIENCE).await?;
        let writer = CheckpointWriter::open(self.trainer.store_url())?;
        let ids: Vec<u8> = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let files =
            vec![("model".to_owned(), self.model.save_weights()), ("ids".to_owned(), ids.into())];
        let written = writer.begin(&checkpoint, self.trainer.name(), files).wait().await?;
        let progress = self.reader.progress();
        Ok(self.trainer.report_checkpoint(checkpoint.number, &written, progress).await?)
    }

    /// Returns its partly read shard, and leaves.
    async fn leaves(mut self, step: u64) -> Result<String> {
        ensure!(!self.reader.progress().is_empty(), "no shard that is read in part");
        self.reader.give_back(step).await?;
        self.trainer.leave().await?;
        Ok(self.trainer.name().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_is_in_once_though_trainers_leave_between_checkpoints_and_others_join()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 200).await?;
    let world = ["t0", "t1"];
    let mut ranks = Vec::new();
    for name in world {
        ranks.push(Rank::first(&fleet, name, &world, NEVER).await?);
    }
    let lineage = ranks[0].trainer.lineage().number;
    for (number, name) in ["t2", "t3", "t4"].into_iter().enumerate() {
        for rank in &mut ranks {
            for _ in 0..3 {
                rank.step(4, true).await?;
            }
        }
        let leaving = ranks.remove(0);
        let step = leaving.model.steps();
        ensure!(!leaving.reports().await?, "the other has not reported");
        let left = if number == 1 {
            // It has reported and leaves before the other reports. Its returned shard is of a later step, because the
            // checkpoint depends on its report. The leader dies meanwhile.
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            let left = leaving.leaves(step + 1).await?;
            ensure!(ranks[0].reports().await?, "complete without it");
            fleet.start_member(&leader)?;
            left
        } else {
            ensure!(ranks[0].reports().await?, "all have reported");
            leaving.leaves(step).await?
        };
        ranks.push(Rank::joins(&fleet, name, &left).await?);
        ensure!(ranks.iter().all(|rank| rank.trainer.lineage().number == lineage), "one lineage");
    }
    let [one, other] = &mut ranks[..] else { anyhow::bail!("two of them") };
    tokio::try_join!(one.reads_on(), other.reads_on())?;
    let last = one.model.steps().max(other.model.steps());
    one.until_step(last);
    other.until_step(last);
    ensure!(!one.reports().await? && other.reports().await?, "the last checkpoint");
    each_is_in_once(&fleet, OWN, 1, 200).await?;
    // Everything is in a checkpoint: the lineage is not torn when the last trainer leaves.
    for rank in &ranks {
        rank.trainer.leave().await?;
    }
    let late = Rank::joins(&fleet, "t5", "t4").await?;
    ensure!(late.trainer.lineage().number == lineage, "the lineage continues");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_lost_with_nothing_but_its_part_of_a_checkpoint_takes_no_sample_with_it()
-> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 100).await?;
    let world = ["t0", "t1"];
    let mut t0 = Rank::first(&fleet, "t0", &world, SOON).await?;
    let mut t1 = Rank::first(&fleet, "t1", &world, SOON).await?;
    for rank in [&mut t0, &mut t1] {
        rank.step(10, false).await?; // A whole shard.
        ensure!(rank.reader.progress().is_empty(), "{} holds a shard", rank.trainer.name());
    }
    ensure!(!t0.reports().await? && t1.reports().await?, "all that was read is in a checkpoint");
    drop(t1);
    // The next checkpoint would lack what t1 had read, so there must be none.
    eventually_or_show("t0 hears that t1 is lost", PATIENCE, |seen| {
        *seen = format!("{:?}", fleet.ctl_json(&["shard", "list", OWN]).ok());
        t0.trainer.is_lost().then_some(())
    });
    let refused = t0.trainer.begin_checkpoint(2, "", PATIENCE).await.err();
    ensure!(refused.as_ref().is_some_and(TrainError::has_to_recover), "{refused:?}");
    let mut t0 = Rank::recovers(&fleet, "t0", 2).await?;
    ensure!(t0.ids.len() == 20, "what both had: {:?}", t0.ids);
    t0.reads_on().await?;
    ensure!(t0.reports().await?, "the last checkpoint");
    each_is_in_once(&fleet, OWN, 1, 100).await?;
    fleet.verify()?;
    fleet.passed()
}
