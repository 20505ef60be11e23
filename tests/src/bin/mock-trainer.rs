//! A trainer of a job, for tests: it reads epochs of a dataset, folds the samples into a mock model, writes
//! checkpoints while it continues, and starts from the last complete one. Several trainers form one job.
//!
//! A checkpoint holds the model, and the ids of the samples that are in it.
//!
//! Usage: `mock-trainer key=value ...`; [`Args`] documents the keys. It exits with status 17 when it has to recover:
//! its launcher then begins the next round.

use anyhow::{Context, Result};
use bytes::Bytes;
use rollout_proto::{Client, ClientConfig, Security, TlsFiles};
use rollout_tests::{sample_id, sample_ids};
use rollout_training::mock::MockModel;
use rollout_training::{
    CheckpointWriter, Recovered, Recovery, ShardReader, TrainError, Trainer, TrainerOptions,
    draw_instance, restore_rank,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The exit status if the job has recovered without this trainer, or must recover.
const HAS_TO_RECOVER: i32 = 17;
/// How long it waits for the other ranks.
const PATIENCE: Duration = Duration::from_secs(180);

struct Args {
    /// Members, separated by commas.
    endpoints: Vec<String>,
    /// The directory of the certificates, and the name whose certificate it presents.
    tls: PathBuf,
    cert: String,
    job: String,
    name: String,
    /// All trainers of the round, separated by commas.
    world: Vec<String>,
    round: u64,
    dataset: String,
    /// How many epochs it reads; default 1.
    epochs: u64,
    /// Samples per step, the total number of steps, and the steps between checkpoints.
    batch: usize,
    steps: u64,
    every: u64,
    seed: u64,
    /// How long a step takes.
    step_ms: u64,
    /// Extra MiB in each checkpoint; default 0.
    ballast_mib: usize,
    /// How long it may be silent.
    keep_ms: u64,
    /// The file for the last weights.
    out: PathBuf,
}

impl Args {
    fn read() -> Result<Self> {
        let args: BTreeMap<String, String> = std::env::args()
            .skip(1)
            .filter_map(|arg| arg.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
            .collect();
        let text = |key: &str| args.get(key).cloned().with_context(|| format!("no {key}="));
        let number = |key: &str| Ok::<u64, anyhow::Error>(text(key)?.parse()?);
        let list =
            |key: &str| Ok::<_, anyhow::Error>(text(key)?.split(',').map(str::to_owned).collect());
        Ok(Self {
            endpoints: list("endpoints")?,
            tls: text("tls")?.into(),
            cert: text("cert")?,
            job: text("job")?,
            name: text("name")?,
            world: list("world")?,
            round: number("round")?,
            dataset: text("dataset")?,
            epochs: args.get("epochs").map_or(Ok(1), |epochs| epochs.parse())?,
            batch: number("batch")? as usize,
            steps: number("steps")?,
            every: number("every")?,
            seed: number("seed")?,
            step_ms: number("step_ms")?,
            ballast_mib: args.get("ballast_mib").map_or(Ok(0), |mib| mib.parse())?,
            keep_ms: number("keep_ms")?,
            out: text("out")?.into(),
        })
    }

    fn client(&self) -> Result<Client> {
        let file = |end: &str| self.tls.join(format!("{}.{end}", self.cert));
        let (ca, cert, key) = (self.tls.join("ca.pem"), file("pem"), file("key"));
        let security = Security::Mtls(TlsFiles { ca, cert, key });
        Ok(Client::new(ClientConfig::new(self.endpoints.clone(), security))?)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::read()?;
    match train(&args).await {
        Err(error)
            if error.downcast_ref::<TrainError>().is_some_and(TrainError::has_to_recover) =>
        {
            eprintln!("{}: {error}", args.name);
            std::process::exit(HAS_TO_RECOVER);
        }
        other => other,
    }
}

async fn train(args: &Args) -> Result<()> {
    let options = TrainerOptions {
        namespace: String::new(),
        job: args.job.clone(),
        name: args.name.clone(),
        instance: draw_instance(),
        host: "here".into(),
        keep_alive: Duration::from_millis(args.keep_ms),
        patience: None,
    };
    let recovery = Recovery { round: args.round, world: args.world.clone(), ..Recovery::default() };
    let (trainer, recovered) = Trainer::recover(args.client()?, &options, &recovery).await?;
    let (mut model, mut ids) = state_of(args, &recovered).await?;
    println!("{} begins at step {}", args.name, model.steps());
    let trainer = Arc::new(trainer);
    let writer = CheckpointWriter::open(trainer.store_url())?;
    let mut epochs = Epochs::new(args, trainer.clone());
    let (mut reports, mut last) = (JoinSet::new(), 0);
    while model.steps() < args.steps {
        let samples = epochs.take(args.batch).await?;
        let (_, grad) = model.forward_with_loss(&samples);
        model.optimizer_step(grad);
        ids.extend(samples);
        epochs.reader.stepped(model.steps()).await?;
        println!("{} at step {}", args.name, model.steps());
        tokio::time::sleep(Duration::from_millis(args.step_ms)).await;
        if !model.steps().is_multiple_of(args.every) {
            continue;
        }
        let checkpoint = trainer.begin_checkpoint(model.steps(), "", PATIENCE).await?;
        last = checkpoint.number;
        let told = ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let mut files =
            vec![("model".to_owned(), model.save_weights()), ("samples".to_owned(), told.into())];
        if args.ballast_mib > 0 {
            files.push(("ballast".to_owned(), ballast(args.ballast_mib, model.steps())));
        }
        let writing = writer.begin(&checkpoint, &args.name, files);
        let (trainer, progress) = (trainer.clone(), epochs.reader.progress());
        // The training loop continues meanwhile.
        reports.spawn(async move {
            let Some(written) = trainer.durable(checkpoint.number, writing).await? else {
                return Ok(());
            };
            match trainer.report_checkpoint(checkpoint.number, &written, progress).await {
                // A later checkpoint was complete before, so this one is not needed.
                Err(error) if error.checkpoint_is_over() => Ok(()),
                other => other.map(drop),
            }
        });
    }
    while let Some(reported) = reports.join_next().await {
        reported??;
    }
    let complete = trainer.checkpoint_complete(last, PATIENCE).await?;
    anyhow::ensure!(complete == Some(true), "the last checkpoint: {complete:?}");
    std::fs::write(&args.out, model.save_weights())?;
    println!("{} ends at step {}", args.name, model.steps());
    Ok(trainer.leave().await?)
}

/// Bytes that compress badly and differ from step to step.
fn ballast(mib: usize, step: u64) -> Bytes {
    let mut state = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(mib << 17).flatten().collect::<Vec<u8>>().into()
}

/// The epochs of a dataset, one after the other.
struct Epochs {
    trainer: Arc<Trainer>,
    dataset: String,
    reader: ShardReader,
    epoch: u64,
    epochs: u64,
}

impl Epochs {
    fn new(args: &Args, trainer: Arc<Trainer>) -> Self {
        let dataset = args.dataset.clone();
        let reader = ShardReader::new(trainer.clone(), &dataset, 0);
        Self { trainer, dataset, reader, epoch: 0, epochs: args.epochs }
    }

    /// Ids of the samples of one step; none once all epochs are over.
    async fn take(&mut self, count: usize) -> Result<Vec<u64>> {
        loop {
            let samples = self.reader.take(count).await?;
            if !samples.is_empty() || !self.reader.is_finished() || self.epoch + 1 >= self.epochs {
                return Ok(samples
                    .into_iter()
                    .map(|sample| sample_id(self.epoch, sample))
                    .collect());
            }
            self.epoch += 1;
            self.reader = ShardReader::new(self.trainer.clone(), &self.dataset, self.epoch);
        }
    }
}

/// In a world of n, rank r takes over the states of ranks r, r + n, ... of the previous world: the model, and the
/// samples in it.
async fn state_of(args: &Args, recovered: &Recovered) -> Result<(MockModel, Vec<u64>)> {
    let Some(checkpoint) = &recovered.checkpoint else {
        return Ok((MockModel::new(args.seed), Vec::new()));
    };
    let mine = args.world.iter().position(|name| *name == args.name).context("of the world")?;
    let mut ranks = Vec::new();
    for rank in 0..checkpoint.ranks.len() {
        let restored = restore_rank(checkpoint, rank).await?;
        let file = |at: usize| restored.files.get(at).context("a rank has its model and samples");
        let model = MockModel::load_weights(&file(0)?.1).context("a model's weights")?;
        ranks.push((model, sample_ids(&file(1)?.1)));
    }
    let mut model = ranks.first().context("a rank")?.0.clone().without_samples();
    anyhow::ensure!(model.steps() == checkpoint.step, "weights of another step");
    let mut ids = Vec::new();
    for (other, theirs) in ranks.iter().skip(mine).step_by(args.world.len()) {
        model.absorb(other);
        ids.extend(theirs);
    }
    Ok((model, ids))
}
