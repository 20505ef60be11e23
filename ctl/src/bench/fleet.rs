//! `rolloutctl bench fleet`: thousands of workers against three members.
//!
//! Invariant: each simulated worker speaks the real protocol over its own connections, certificate and session, and
//! validates every response. At the end, no row was granted to two slots at once, none was started twice unless
//! workers were cut off, the row counts equal the ledger's, and all members hold the same state.
//! Absent: engines, prompts and parts. Rows take time and nothing else.

mod certs;
mod check;
mod figures;
pub(crate) mod part;
mod part_processes;
mod phase;
mod plan;
mod reads;
mod row_record;
mod row_time;
mod runs;
mod slot;
mod tally;
mod worker;

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use self::part_processes::PartProcesses;
use self::phase::{Phase, Reading};
use self::plan::{Plan, Shape};
use self::reads::Reads;
use self::row_time::RowTime;
use super::open_files;
use super::target::{Target, TargetArgs};
use crate::connect::parse_duration;
use crate::output::{self, Format};
use crate::rolloutctl::status;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

/// Connections of a worker: one to each member.
const CONNECTIONS: u64 = 3;
/// Other files of a process besides its workers' connections.
const OTHER_FILES: u64 = 500;
/// Above this number of workers, another process shares the work.
const WORKERS_PER_PROCESS: u32 = 5_000;
/// How long the rows that a slot holds ahead of its engine last, as in a real slot.
const AHEAD_SECONDS: f64 = 1.5;
const POLL: Duration = Duration::from_millis(250);
const CONNECT_PATIENCE: Duration = Duration::from_secs(600);
/// How long all of them may take to reconnect, as far as runs have rows for that time.
const RECONNECT: Duration = Duration::from_secs(30);
const STOP_PATIENCE: Duration = Duration::from_secs(120);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Workers, each with its own connections, certificate and session
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    workers: u32,
    /// Slots of each worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,
    /// Models that runs request; each slot offers one model
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    models: u32,
    /// Namespaces over which workers and runs are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    namespaces: u32,
    /// Open runs
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=5000))]
    runs: u32,
    /// Fraction of the slots, 0 to 1, whose model no run requests
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = parse_share)]
    idle_share: f64,
    /// Milliseconds that a row takes: fixed (200), uniform (10000-60000), or exponential by its mean (exp:1000)
    #[arg(long, value_name = "TIMES", default_value = "200")]
    pub(super) row_ms: RowTime,
    /// Rows that a slot runs at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) concurrency: u32,
    /// How long a slot collects finished rows before it reports them, as one part for each run
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    linger: Duration,
    /// Fraction of the workers, 0 to 1, that fall silent at once, after the first half of --seconds
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    lose_share: f64,
    /// With --lose-share: time after which these workers may reconnect [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    lose_for: Option<Duration>,
    /// Kill the leader after the first half of --seconds, and after the phase of --lose-share if there is one
    #[arg(long)]
    kill_leader: bool,
    /// How long to measure connected workers before there are runs
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    calm: Duration,
    /// How long the workers run rows before the measurement under load begins
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    warmup: Duration,
    /// Measured time under load. With --lose-share or --kill-leader, the fault starts halfway
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    seconds: Duration,
    /// Load-generator processes [default: one per 5,000 workers; more if the limit on open files
    /// requires it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: Option<u32>,
    /// Workers that each process connects concurrently at the start
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connecting: u32,
    #[command(flatten)]
    target: TargetArgs,
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}` is not a number from 0 to 1")),
    }
}

fn per_mille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

impl FleetArgs {
    fn shape(&self, label: Option<String>) -> anyhow::Result<Shape> {
        let least = self.models * self.namespaces;
        ensure!(
            self.runs >= least,
            "{} runs are too few: each of {} models in each of {} namespaces needs one",
            self.runs,
            self.models,
            self.namespaces
        );
        Ok(Shape {
            workers: self.workers,
            slots: self.slots,
            models: self.models,
            namespaces: self.namespaces,
            runs: self.runs,
            idle_per_mille: per_mille(self.idle_share),
            label,
        })
    }

    /// Rows that a slot ends per second.
    fn rows_per_slot_second(&self) -> f64 {
        f64::from(self.concurrency) * 1000.0 / self.row_ms.mean_ms()
    }

    /// Rows that a slot holds besides those that it runs.
    fn ahead(&self) -> u32 {
        ((self.rows_per_slot_second() * AHEAD_SECONDS).ceil() as u32).clamp(1, 4096)
    }

    /// How long the runs' rows must last.
    fn whole(&self) -> Duration {
        // A kill and a loss each have their own second half, and begin when all are connected again.
        self.warmup + self.seconds * 3 / 2 + self.lose_for.unwrap_or_default() + RECONNECT
    }

    fn process_count(&self, files: u64) -> u32 {
        let room = files.saturating_sub(OTHER_FILES).max(1);
        let by_files = (u64::from(self.workers) * CONNECTIONS).div_ceil(room) as u32;
        self.processes.unwrap_or(self.workers.div_ceil(WORKERS_PER_PROCESS)).max(by_files)
    }
}

impl Verb for Box<FleetArgs> {
    const KIND: Kind<Self> = Kind::Once;

    /// Measures and prints each phase.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        self.shape(None)?;
        let target = Target::open(&globals.connect, &self.target).await?;
        let mut fleet = Box::pin(Fleet::start(target, *self)).await?;
        let first = Reading::take(&fleet.target, &mut fleet.processes, false).await?.epoch;
        fleet.measure_calm(globals.format).await?;
        let runs = fleet.declare().await?;
        print_note(format_args!("warming up for {:?}", fleet.args.warmup));
        fleet.go_on(fleet.args.warmup).await?;
        fleet.measure_load(globals.format).await?;
        print_note(format_args!("stopping the workers"));
        fleet.stop().await?;
        print_note(format_args!(
            "comparing rows between processes, row counts with the ledger, and the members' states"
        ));
        let any = fleet.args.lose_share > 0.0;
        let permanently = any && fleet.args.lose_for.is_none();
        let cut_off = check::CutOffWorkers { any, permanently };
        let Fleet { target, processes, .. } = &mut fleet;
        let mut settled = check::check(target, processes, &runs, cut_off).await?;
        settled.epoch_changes =
            status::survey(target.admin()).await.coord_epoch.saturating_sub(first);
        output::emit_next(globals.format, &settled)?;
        for of in &runs.all {
            super::final_check::cancel(&runs.session, &of.namespace, &of.name).await?;
        }
        fleet.target.close().await
    }
}

/// Cluster and running generator.
struct Fleet {
    args: FleetArgs,
    shape: Shape,
    target: Target,
    processes: PartProcesses,
    reads: Reads,
    _certificates: tempfile::TempDir,
}

impl Fleet {
    /// Connects every worker.
    async fn start(target: Target, args: FleetArgs) -> anyhow::Result<Self> {
        let shape = args.shape(target.label())?;
        let certificates = tempfile::Builder::new()
            .prefix("fleet-")
            .tempdir_in(target.layout().root())
            .context("cannot write certificates")?;
        print_note(format_args!("issuing {} certificates", args.workers));
        certs::mint(target.layout(), certificates.path(), args.workers)?;
        let plan = Plan {
            shape: shape.clone(),
            endpoints: target.endpoints().to_vec(),
            tls: certificates.path().to_owned(),
            first: 0,
            step: 1,
            concurrency: args.concurrency,
            ahead: args.ahead(),
            row_time: args.row_ms,
            linger_ms: args.linger.as_millis() as u64,
            connecting: args.connecting,
        };
        let process_count = args.process_count(open_files::raise());
        let reads = Reads::start(target.another_admin()?, shape.worker_namespace(0));
        if shape.namespaces > 1 {
            runs::create_namespaces(target.admin(), &shape).await?;
        }
        let processes = PartProcesses::start(&plan, process_count).await?;
        let mut fleet = Self { args, shape, target, processes, reads, _certificates: certificates };
        print_note(format_args!(
            "connecting {} workers from {process_count} processes",
            fleet.args.workers
        ));
        let start = Instant::now();
        fleet.wait_connected(fleet.args.workers.into(), CONNECT_PATIENCE).await?;
        print_note(format_args!("connected after {:.1} s", start.elapsed().as_secs_f64()));
        Ok(fleet)
    }

    async fn wait_connected(&mut self, workers: u64, patience: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let connected = self.processes.report(false).await?.0.connected;
            if connected >= workers {
                return Ok(());
            }
            self.target.check_alive()?;
            if start.elapsed() > patience {
                bail!("{connected} of {workers} workers are connected after {patience:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Continues for a time; fails if a member ends that the benchmark did not kill.
    async fn go_on(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.target.check_alive()?;
            tokio::time::sleep(POLL.min(end.saturating_duration_since(Instant::now()))).await;
        }
        Ok(())
    }

    async fn begin(&mut self, name: &'static str) -> anyhow::Result<Phase> {
        print_note(format_args!("measuring: {name}"));
        Phase::begin(name, (&self.target, &mut self.processes, &self.reads)).await
    }

    async fn end(&mut self, format: Format, phase: Phase) -> anyhow::Result<()> {
        let all = (&self.target, &mut self.processes, &self.reads);
        output::emit_next(format, &phase.end(&self.args, all).await?)
    }

    async fn measure_calm(&mut self, format: Format) -> anyhow::Result<()> {
        if self.args.calm.is_zero() {
            return Ok(());
        }
        let phase = self.begin("calm").await?;
        self.go_on(self.args.calm).await?;
        self.end(format, phase).await
    }

    async fn declare(&mut self) -> anyhow::Result<runs::Runs> {
        let start = Instant::now();
        let of = (&self.args, &self.shape);
        let whole = self.args.whole();
        let runs = runs::declare(self.target.admin(), of, whole, &mut self.processes).await?;
        let rows: u64 = runs.all.iter().map(|of| of.rows).sum();
        let seconds = start.elapsed().as_secs_f64();
        print_note(format_args!(
            "declared {} runs of {rows} rows in {seconds:.1} s",
            runs.all.len()
        ));
        Ok(runs)
    }

    /// The load, and the event halfway in its own phase.
    async fn measure_load(&mut self, format: Format) -> anyhow::Result<()> {
        let disturbed = self.args.kill_leader || self.args.lose_share > 0.0;
        let half = if disturbed { self.args.seconds / 2 } else { self.args.seconds };
        let phase = self.begin("load").await?;
        self.go_on(half).await?;
        self.end(format, phase).await?;
        if self.args.lose_share > 0.0 {
            let phase = self.begin("loss").await?;
            self.lose(half).await?;
            self.end(format, phase).await?;
        }
        if self.args.kill_leader {
            let phase = self.begin("failover").await?;
            self.kill_leader(half, phase.epoch()).await?;
            self.end(format, phase).await?;
        }
        Ok(())
    }

    async fn lose(&mut self, half: Duration) -> anyhow::Result<()> {
        self.processes.lose(per_mille(self.args.lose_share)).await?;
        let Some(gone) = self.args.lose_for else { return self.go_on(half).await };
        self.go_on(gone).await?;
        let returned = Instant::now();
        self.processes.lose(0).await?;
        self.wait_connected(self.args.workers.into(), STOP_PATIENCE).await?;
        print_note(format_args!(
            "all are connected again after {:.1} s",
            returned.elapsed().as_secs_f64()
        ));
        self.go_on(half.saturating_sub(returned.elapsed())).await
    }

    async fn kill_leader(&mut self, half: Duration, epoch: u64) -> anyhow::Result<()> {
        let leader = status::survey(self.target.admin())
            .await
            .leader
            .context("the cluster has no leader")?;
        let killed = Instant::now();
        self.target.signal_member(&leader, libc::SIGKILL)?;
        while !self.target.revive_member(&leader)? {
            tokio::time::sleep(POLL / 10).await;
        }
        while status::survey(self.target.admin()).await.coord_epoch <= epoch {
            ensure!(killed.elapsed() < STOP_PATIENCE, "there is no leader after {STOP_PATIENCE:?}");
            tokio::time::sleep(POLL / 10).await;
        }
        let led = killed.elapsed().as_secs_f64();
        self.wait_connected(self.args.workers.into(), STOP_PATIENCE).await?;
        let connected = killed.elapsed().as_secs_f64();
        print_note(format_args!(
            "{leader} was killed: led again after {led:.2} s, all connected after {connected:.2} s"
        ));
        self.go_on(half.saturating_sub(killed.elapsed())).await
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let left = self.processes.stop().await?;
            if left == 0 {
                return Ok(());
            }
            self.target.check_alive()?;
            if start.elapsed() > STOP_PATIENCE {
                bail!("{left} workers have not ended after {STOP_PATIENCE:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
