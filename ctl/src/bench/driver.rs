//! Workers and feed together: the load, started, kept fed, and stopped.
//!
//! Invariant: everything runs on the calling thread; an error of any worker or of the feed ends the benchmark.
//! Absent: the measurements meanwhile.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rollout_storage::BlobStore;
use tokio::task::{JoinSet, LocalSet};

use super::feed::Feed;
use super::load::Load;
use super::objects::Objects;
use super::target::Target;
use super::worker::Worker;
use crate::stdio::print_note;

/// How long workers may take to finish the rows that they hold.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// How far ahead rows are made, in seconds of the present rate.
const AHEAD_SECONDS: f64 = 2.0;

/// What the load looks like.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    /// Rows of each run; further runs follow as long as the measurement lasts
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(super) items: u64,
    /// Workers, each with one stream
    #[arg(long, value_name = "W", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) workers: u32,
    /// Slots of each worker, each with one exchange in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) slots: u32,
    /// Write segments and parts to the store, instead of naming them only
    #[arg(long)]
    pub(super) with_blobs: bool,
}

/// A running load.
pub(super) struct Driver {
    load: Load,
    feed: Feed,
    objects: Rc<Objects>,
    workers: JoinSet<anyhow::Result<()>>,
    local: LocalSet,
    items: u64,
    last: (Instant, u64),
    rate: f64,
}

impl Driver {
    /// Makes the first run and starts the workers.
    async fn start(target: &Target, args: &LoadArgs, batch: u32) -> anyhow::Result<Self> {
        let load = Load::new(target.label());
        let mut feed = Feed::open(target.admin(), args.items).await?;
        let store = BlobStore::open(feed.session().store_url())?;
        let objects = Rc::new(match args.with_blobs {
            false => Objects::Named(store),
            true => Objects::Written(store),
        });
        print_note(format_args!("declaring a run of {} rows", args.items));
        Box::pin(feed.add_run(&load, &objects)).await?;
        let local = LocalSet::new();
        let mut workers = JoinSet::new();
        for number in 1..=args.workers {
            let name = format!("bench-w{number}");
            let client = target.worker(&name)?;
            let worker = Worker::new(
                name.clone(),
                u64::from(number),
                client,
                load.clone(),
                objects.clone(),
                args.slots,
                batch,
            );
            let work = async move { worker.run().await.with_context(|| format!("worker {name}")) };
            workers.spawn_local_on(work, &local);
        }
        let last = (Instant::now(), 0);
        Ok(Self { load, feed, objects, workers, local, items: args.items, last, rate: 0.0 })
    }

    /// The record of requests and answers so far.
    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    /// The session that made the runs.
    pub(super) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Continues until `until` returns true; it is called every 20 ms.
    pub(super) async fn go_on(
        &mut self,
        mut until: impl AsyncFnMut(&Load) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let Self { load, feed, objects, workers, local, items, last, rate } = self;
        local
            .run_until(async {
                loop {
                    if until(load).await? {
                        return Ok(());
                    }
                    tokio::select! {
                        Some(ended) = workers.join_next() => {
                            ended.context("a worker panicked")??;
                            bail!("a worker ended before the load did");
                        }
                        () = tokio::time::sleep(PAUSE) => {}
                    }
                    let (granted, pending) = load.with(|b| (b.granted_rows, b.pending_rows()));
                    let seconds = last.0.elapsed().as_secs_f64();
                    if seconds > 0.5 {
                        *rate = (granted - last.1) as f64 / seconds;
                        *last = (Instant::now(), granted);
                    }
                    let ahead = (*items / 2).max((*rate * AHEAD_SECONDS) as u64);
                    if pending < ahead {
                        // On the heap: it is rare, and large compared with the rest of the future.
                        Box::pin(feed.add_run(load, objects)).await?;
                    }
                }
            })
            .await
    }

    /// Continues for a time.
    pub(super) async fn go_on_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        self.go_on(async |_| Ok(Instant::now() >= end)).await
    }

    /// Starts the load, and runs it for `warmup` without measuring.
    pub(super) async fn warmed_up(
        target: &Target,
        args: &LoadArgs,
        batch: u32,
        warmup: Duration,
    ) -> anyhow::Result<Self> {
        let mut driver = Self::start(target, args, batch).await?;
        print_note(format_args!("warming up for {warmup:?}"));
        driver.go_on_for(warmup).await?;
        Ok(driver)
    }

    /// Lets the workers finish the rows that they hold, and waits for them.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        self.load.stop();
        let Self { workers, local, .. } = self;
        let all = local.run_until(async {
            while let Some(ended) = workers.join_next().await {
                ended.context("a worker panicked")??;
            }
            Ok(())
        });
        match tokio::time::timeout(STOP_PATIENCE, all).await {
            Ok(result) => result,
            Err(_) => bail!("the workers did not finish within {STOP_PATIENCE:?}"),
        }
    }
}
