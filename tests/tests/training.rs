//! A training job on a fleet: trainers are processes that share nothing but the cluster and the object store, and
//! trainers and members are killed between checkpoints and in the middle of them.

use anyhow::{Context, Result, ensure};
use rollout_proto::{
    ChannelOptions, Client, ClientConfig, ClientTls, DialMap, Endpoint, RpcError, Stamp, channel,
    services, v1,
};
use rollout_tests::{
    Fleet, FleetOptions, Process, eventually_or_show, not_once, sample_id, sample_ids,
};
use rollout_training::mock::MockModel;
use rollout_training::{
    CheckpointWriter, Recovery, ShardReader, TrainError, Trainer, TrainerOptions, restore_rank,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::service::interceptor::InterceptedService;

const PATIENCE: Duration = Duration::from_secs(180);
/// The status of a trainer that has to recover.
const HAS_TO_RECOVER: i32 = 17;
const SEED: u64 = 42;
/// The job of those trainers that are of the test's own process.
const OWN: &str = "leaves";
/// Silence after which such a trainer is lost: longer than any test, or soon.
const NEVER: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(15);

/// The trainers of one round.
struct Round<'a> {
    fleet: &'a Fleet,
    job: &'a str,
    trainers: BTreeMap<String, Process>,
}

/// What a job of trainers does.
#[derive(Clone, Copy)]
struct Plan {
    batch: u64,
    steps: u64,
    every: u64,
    step_ms: u64,
    epochs: u64,
}

impl<'a> Round<'a> {
    fn start(
        fleet: &'a Fleet,
        job: &'a str,
        round: u64,
        world: &[&str],
        plan: Plan,
    ) -> Result<Self> {
        let mut trainers = BTreeMap::new();
        for name in world {
            let endpoints: Vec<String> =
                fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
            let mut command = fleet.program("mock-trainer");
            command
                .arg(format!("endpoints={}", endpoints.join(",")))
                .arg(format!("tls={}", fleet.path("tls").display()))
                .args(["cert=client-user", "dataset=pile", "keep_ms=20000"])
                .arg(format!("job={job}"))
                .arg(format!("name={name}"))
                .arg(format!("world={}", world.join(",")))
                .arg(format!("round={round}"))
                .arg(format!("batch={}", plan.batch))
                .arg(format!("steps={}", plan.steps))
                .arg(format!("every={}", plan.every))
                .arg(format!("epochs={}", plan.epochs))
                .arg(format!("seed={SEED}"))
                .arg(format!("step_ms={}", plan.step_ms))
                .arg(format!("out={}", fleet.path(&format!("{job}-{name}.weights")).display()));
            let log = fleet.path(&format!("{job}-{name}-{round}.log"));
            trainers.insert((*name).to_owned(), Process::start(command, &log)?);
        }
        Ok(Self { fleet, job, trainers })
    }

    /// Waits for a complete checkpoint of that step or a later one, and answers its step.
    fn until_step(&self, at_least: u64) -> u64 {
        let what = format!("a checkpoint of step {at_least}");
        eventually_or_show(&what, PATIENCE, |seen| {
            let tails = self.trainers.iter().map(|(name, p)| format!("{name}: {}\n", p.log_tail()));
            *seen = tails.collect();
            latest(self.fleet, self.job).filter(|step| *step >= at_least)
        })
    }

    /// The last step that a trainer has said.
    fn at_step(&self, name: &str) -> Option<u64> {
        last_step(self.trainers.get(name)?)
    }

    /// Kills a trainer in the middle between two checkpoints, after a complete one, and answers the step that it died at.
    fn kill_between(&mut self, name: &str, every: u64) -> Result<u64> {
        eventually_or_show(&format!("{name} is between checkpoints"), PATIENCE, |seen| {
            let at = self.at_step(name)?;
            *seen = format!("at step {at}");
            (at % every == 2 && latest(self.fleet, self.job)? < at).then_some(())
        });
        let mut trainer = self.trainers.remove(name).context("a trainer")?;
        trainer.kill();
        let died_at = last_step(&trainer).context("a step")?;
        ensure!(!died_at.is_multiple_of(every), "{name} died at step {died_at}, at a checkpoint");
        Ok(died_at)
    }

    /// All of them end with this status.
    fn end(self, status: i32) -> Result<()> {
        for (name, mut trainer) in self.trainers {
            let ended = trainer.wait(PATIENCE)?;
            ensure!(
                ended.code() == Some(status),
                "{name} ended with {ended}: {}",
                trainer.log_tail()
            );
        }
        Ok(())
    }
}

/// The last step that a trainer said it was at: not where it begins or ends.
fn last_step(trainer: &Process) -> Option<u64> {
    let said = std::fs::read_to_string(&trainer.log).ok()?;
    let steps = said.lines().filter(|line| !line.contains("begins") && !line.contains("ends"));
    steps.filter_map(|line| line.split_once(" at step ")?.1.parse().ok()).next_back()
}

/// The step of the last complete checkpoint.
fn latest(fleet: &Fleet, job: &str) -> Option<u64> {
    let all = fleet.ctl_json(&["--timeout", "5s", "checkpoint", "list", job]).ok()?;
    let complete = all["checkpoints"].as_array()?.iter().filter(|c| c["state"] == "complete");
    complete.filter_map(|c| c["step"].as_str()?.parse().ok()).max()
}

fn client(fleet: &Fleet) -> Result<Client> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    Ok(Client::new(ClientConfig::new(endpoints, fleet.security("client", "user")))?)
}

/// A dataset of so many samples, in shards of ten.
async fn create_dataset(fleet: &Fleet, samples: u64) -> Result<()> {
    let session = client(fleet)?.open_session("test").await?;
    let spec = v1::DatasetSpec {
        uri: "file:///data/{shard:4}.tar".into(),
        format: "webdataset".into(),
        samples,
        shard_samples: 10,
        seed: 7,
        ..v1::DatasetSpec::default()
    };
    let pending = session.request();
    let request = v1::CreateDatasetRequest {
        request: Some(pending.id()),
        namespace: String::new(),
        name: "pile".into(),
        spec: Some(spec),
    };
    let created = session
        .client()
        .with_leader("create a dataset", |channel| {
            let request = request.clone();
            async move { services::datasets(channel).create_dataset(request).await }
        })
        .await?;
    ensure!(created.dataset.is_some_and(|d| u64::from(d.shards) == samples / 10), "its shards");
    Ok(())
}

async fn latest_checkpoint(fleet: &Fleet, job: &str) -> Result<v1::Checkpoint> {
    let name = v1::JobName { namespace: String::new(), job: job.into() };
    let request = v1::LatestCheckpointRequest { job: Some(name) };
    let answer = client(fleet)?
        .with_leader("look for a checkpoint", |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).latest_checkpoint(request).await }
        })
        .await?;
    answer.checkpoint.context("a complete checkpoint")
}

/// What all ranks of a job's last checkpoint have folded in together.
async fn folded(fleet: &Fleet, job: &str) -> Result<MockModel> {
    let checkpoint = latest_checkpoint(fleet, job).await?;
    let mut all: Option<MockModel> = None;
    for rank in 0..checkpoint.ranks.len() {
        let restored = restore_rank(&checkpoint, rank).await?;
        let model = MockModel::load_weights(&restored.files[0].1).context("weights")?;
        match &mut all {
            Some(all) => all.absorb(&model),
            None => all = Some(model),
        }
    }
    all.context("a rank")
}

/// The model after so many steps, with these samples folded in.
fn expected(ids: &[u64], steps: u64) -> MockModel {
    let mut model = MockModel::new(SEED);
    for step in 0..steps {
        let (_, grad) = model.forward_with_loss(if step == 0 { ids } else { &[] });
        model.optimizer_step(grad);
    }
    model
}

/// The ids of the samples that all ranks of a job's last checkpoint have in: what its weights have folded in, too.
async fn ids_in(fleet: &Fleet, job: &str) -> Result<Vec<u64>> {
    let checkpoint = latest_checkpoint(fleet, job).await?;
    let mut ids = Vec::new();
    for rank in 0..checkpoint.ranks.len() {
        ids.extend(sample_ids(&restore_rank(&checkpoint, rank).await?.files[1].1));
    }
    let (model, wanted) = (folded(fleet, job).await?, expected(&ids, checkpoint.step));
    ensure!(model.folded() == wanted.folded(), "{:?} is not {:?}", model.folded(), wanted.folded());
    ensure!(model.save_weights() == wanted.save_weights(), "{model:?} is not {wanted:?}");
    Ok(ids)
}

/// Of each epoch every sample is in the surviving lineage's weights, and once.
async fn each_is_in_once(fleet: &Fleet, job: &str, epochs: u64, samples: u64) -> Result<()> {
    let ids = ids_in(fleet, job).await?;
    let wrong = not_once(&ids, epochs, samples);
    ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_steps_are_five_a_checkpoint_a_kill_and_five_more() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 100).await?;
    let plan = Plan { batch: 7, steps: 10, every: 5, step_ms: 0, epochs: 1 };
    Round::start(&fleet, "straight", 1, &["t0"], plan)?.end(0)?;
    // So slow that it is seen in the middle.
    let slow = Plan { step_ms: 2000, ..plan };
    let mut broken = Round::start(&fleet, "broken", 1, &["t0"], slow)?;
    ensure!(broken.until_step(5) == 5, "the trainer was too fast for this test");
    let died_at = broken.kill_between("t0", 5)?;
    ensure!((6..10).contains(&died_at), "it died at step {died_at}");
    Round::start(&fleet, "broken", 2, &["t0"], plan)?.end(0)?;
    let weights = |job: &str| std::fs::read(fleet.path(&format!("{job}-t0.weights")));
    ensure!(weights("straight")? == weights("broken")?, "the weights differ");
    let model = MockModel::load_weights(&weights("straight")?).context("weights")?;
    ensure!((model.steps(), model.folded().0) == (10, 70), "{model:?}");
    // Not only as many: the same samples, each of them once.
    let (mut straight, mut broken) =
        (ids_in(&fleet, "straight").await?, ids_in(&fleet, "broken").await?);
    straight.sort_unstable();
    broken.sort_unstable();
    ensure!(straight == broken, "{straight:?} are not {broken:?}");
    straight.dedup();
    ensure!(straight.len() == 70 && straight.iter().all(|id| *id < 100), "{straight:?}");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_of_each_epoch_is_in_once_though_trainers_and_members_die_between_checkpoints()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 300).await?;
    let plan = Plan { batch: 4, steps: 200, every: 5, step_ms: 150, epochs: 2 };
    let first = Round::start(&fleet, "sft", 1, &["t0", "t1", "t2"], plan)?;
    let step = first.until_step(5);
    let trainers = first.trainers;
    // The leader dies in the middle of it: nobody notices but for a pause.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let goes_on = Round { fleet: &fleet, job: "sft", trainers };
    let step = goes_on.until_step(step + 5);
    let trainers = goes_on.trainers;
    fleet.start_member(&leader)?;
    // A trainer dies with what it has read since the last checkpoint: the others begin a smaller round. Those of the round
    // before are not heard any more.
    let mut before = Round { fleet: &fleet, job: "sft", trainers };
    let died_at = before.kill_between("t1", plan.every)?;
    ensure!(died_at > step, "it died at step {died_at}, before step {step}");
    let second = Round::start(&fleet, "sft", 2, &["t0", "t2"], plan)?;
    before.end(HAS_TO_RECOVER)?;
    let step = second.until_step(step + 5);
    // Three of them again, and one more, while the two still train.
    let mut third = Round::start(&fleet, "sft", 3, &["t2", "t0", "t3", "t1"], plan)?;
    second.end(HAS_TO_RECOVER)?;
    let step = third.until_step(step + 5);
    // Two die at once, one of them rank 0, and a member that does not lead: a job of one is left, then there are three.
    third.kill_between("t2", plan.every)?;
    third.kill_between("t3", plan.every)?;
    let leader = third.fleet.leader();
    let follower = third.fleet.member_names().into_iter().find(|name| *name != leader);
    let follower = follower.context("a member that does not lead")?;
    let trainers = third.trainers;
    fleet.member_process(&follower).kill();
    let fourth = Round::start(&fleet, "sft", 4, &["t0"], plan)?;
    Round { fleet: &fleet, job: "sft", trainers }.end(HAS_TO_RECOVER)?;
    fourth.until_step(step + 5);
    let trainers = fourth.trainers;
    fleet.start_member(&follower)?;
    let fifth = Round::start(&fleet, "sft", 5, &["t1", "t0", "t4"], plan)?;
    Round { fleet: &fleet, job: "sft", trainers }.end(HAS_TO_RECOVER)?;
    fifth.end(0)?;
    each_is_in_once(&fleet, "sft", 2, 300).await?;
    told(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// What an operator sees, and that only what is kept is in the store.
fn told(fleet: &Fleet) -> Result<()> {
    let list = fleet.ctl_json(&["checkpoint", "list", "sft"])?;
    let numbers = || {
        let all = list["checkpoints"].as_array().into_iter().flatten();
        all.filter(|c| c["state"] == "complete").filter_map(|c| c["number"].as_u64())
    };
    ensure!(numbers().count() == 5, "five are kept: {list}");
    let described = fleet.ctl_json(&["checkpoint", "describe", "sft"])?;
    ensure!(described["checkpoint"]["step"] == "200", "{described}");
    ensure!(fleet.ctl(&["checkpoint", "verify", "sft"])?.status.success(), "its bytes are whole");
    for epoch in ["0", "1"] {
        let shards =
            fleet.ctl_json(&["shard", "describe", "sft", "--dataset", "pile", "--epoch", epoch])?;
        ensure!(shards["pass"]["sealed"] == 30, "{shards}");
    }
    let kept: Vec<String> = numbers().map(|number| format!("{number:08}")).collect();
    eventually_or_show("what is pruned goes from the store", PATIENCE, |seen| {
        let folders = std::fs::read_dir(fleet.path("store/training/default/sft")).ok()?;
        let full =
            |path: &std::path::Path| std::fs::read_dir(path).is_ok_and(|mut d| d.next().is_some());
        let full = folders.filter_map(|f| Some(f.ok()?.path())).filter(|path| full(path));
        let mut names: Vec<String> = full
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort();
        *seen = format!("{names:?}, kept {kept:?}");
        (names == kept).then_some(())
    });
    Ok(())
}

/// A trainer of the test's own process, with what its rank has in its state.
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

    /// One that begins the job, with others.
    async fn first(fleet: &Fleet, name: &str, world: &[&str], lost: Duration) -> Result<Self> {
        let world = world.iter().map(|name| (*name).to_owned()).collect();
        let recovery = Recovery { round: 1, world, ..Recovery::default() };
        let (trainer, _) =
            Trainer::recover(client(fleet)?, &Self::options(name, lost), &recovery).await?;
        Ok(Self::new(trainer, MockModel::new(SEED), Vec::new()))
    }

    /// One that recovers the job alone, and takes over what all ranks had in the last complete checkpoint.
    async fn recovers(fleet: &Fleet, name: &str, round: u64) -> Result<Self> {
        let recovery = Recovery { round, world: vec![name.to_owned()], ..Recovery::default() };
        let options = Self::options(name, NEVER);
        let (trainer, _) = Trainer::recover(client(fleet)?, &options, &recovery).await?;
        Ok(Self::new(trainer, folded(fleet, OWN).await?, ids_in(fleet, OWN).await?))
    }

    /// One that joins the lineage, and takes over what `left` had in the last complete checkpoint.
    async fn joins(fleet: &Fleet, name: &str, left: &str) -> Result<Self> {
        let trainer = Trainer::join(client(fleet)?, &Self::options(name, NEVER)).await?;
        let checkpoint = latest_checkpoint(fleet, OWN).await?;
        let rank = checkpoint.ranks.iter().position(|rank| rank.trainer == left);
        let restored = restore_rank(&checkpoint, rank.context("a rank of it")?).await?;
        let model = MockModel::load_weights(&restored.files[0].1).context("weights")?;
        Ok(Self::new(trainer, model, sample_ids(&restored.files[1].1)))
    }

    /// A step with so many samples, or with a few more, so that a shard in hand is read in part after it.
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

    /// Steps without samples, up to this one.
    fn until_step(&mut self, step: u64) {
        while self.model.steps() < step {
            let (_, grad) = self.model.forward_with_loss(&[]);
            self.model.optimizer_step(grad);
        }
    }

    /// Its part of its step's checkpoint, reported; whether the checkpoint is complete by that.
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

    /// Gives its shard back, of which a part is read, and leaves.
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
            // It has reported, and is gone before the other has. What it gives back is of a later step, for the
            // checkpoint counts on what it said of its own; the leader dies meanwhile.
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
    // All is in a checkpoint: nothing is torn when the last one goes.
    for rank in &ranks {
        rank.trainer.leave().await?;
    }
    let late = Rank::joins(&fleet, "t5", "t4").await?;
    ensure!(late.trainer.lineage().number == lineage, "the lineage goes on");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lineage_that_lost_a_trainer_in_silence_is_torn_until_it_recovers() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 400).await?;
    let plan = Plan { batch: 2, steps: 400, every: 10, step_ms: 50, epochs: 1 };
    let mut round = Round::start(&fleet, "torn", 1, &["t0", "t1"], plan)?;
    round.until_step(10);
    round.kill_between("t1", plan.every)?;
    // Nobody tells t0: the ledger's clock notices.
    round.end(HAS_TO_RECOVER)?;
    let jobs = fleet.ctl_json(&["shard", "list", "torn"])?;
    let torn: &Value = &jobs["jobs"][0]["lineage"]["torn"];
    ensure!(torn.as_str().is_some_and(|why| why.contains("t1")), "{jobs}");
    let plan = Plan { step_ms: 0, batch: 8, ..plan };
    let steps = latest(&fleet, "torn").context("a checkpoint")?;
    let plan = Plan { steps: steps.next_multiple_of(10) + 100, ..plan };
    Round::start(&fleet, "torn", 2, &["t0"], plan)?.end(0)?;
    each_is_in_once(&fleet, "torn", 1, 400).await?;
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
    // The next checkpoint would be complete without what t1 had read, and so there is none.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_lead_refuses_no_shard_for_what_it_does_not_know() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 100).await?;
    // It knows of no cluster, and so of no dataset.
    fleet.start_waiting("c4")?;
    let tls = ClientTls::load(&fleet.security("client", "user"))?;
    let endpoint = Endpoint::named("c4".to_owned(), fleet.client_addr("c4"))?;
    let direct = channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
    let direct = InterceptedService::new(direct, Stamp::default());
    let session = client(&fleet)?.open_session("test").await?;
    let pending = session.request();
    let job = Some(v1::JobName { namespace: String::new(), job: "sft".into() });
    let request = v1::ReleaseShardRequest {
        request: Some(pending.id()),
        by: Some(v1::TrainerRef { job, trainer: "t0".into(), ticket: 1 }),
        dataset: "pile".into(),
        shard: 1,
        token: 1,
        end_sample: 10,
        ..v1::ReleaseShardRequest::default()
    };
    let begun = std::time::Instant::now();
    let refused = loop {
        let Err(status) = services::shards(direct.clone()).release_shard(request.clone()).await
        else {
            anyhow::bail!("a waiting member took a shard back");
        };
        // Without details nobody listens yet.
        if !status.details().is_empty() {
            break RpcError::from_status(&status);
        }
        ensure!(begun.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    ensure!(refused.retryable, "whoever leads knows the dataset: {refused:?}");
    fleet.passed()
}
