//! Real workers with mock engines, which are killed, stopped, lose power, and get clock jumps and disk faults.
//!
//! *Invariant:* at the end every worker runs with a correct clock and a working disk. Faults on workers are proven
//! like those on members.

use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::preload::Preload;
use crate::process::Process;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rollout_powerloss::{DiskFault, Loss};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Faults on workers count from here; those of the nemesis count from 1.
const FIRST_ID: u64 = 1 << 32;
const HOUR_S: i64 = 3600;
/// A worker reads its clock, and writes, at least this often.
const PROOF_LIMIT: Duration = Duration::from_secs(2);

/// A fault on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerFault {
    Kill,
    Pause,
    Power,
    Clock,
    Disk,
}

impl WorkerFault {
    /// The faults of these families, each as often as its weight.
    fn selected(families: &[Family]) -> Vec<Self> {
        let each = [
            (Family::Kill, Self::Kill, 3),
            (Family::Pause, Self::Pause, 1),
            (Family::Power, Self::Power, 2),
            (Family::Clock, Self::Clock, 1),
            (Family::Disk, Self::Disk, 1),
        ];
        let selected = each.into_iter().filter(|(family, ..)| families.contains(family));
        selected.flat_map(|(_, fault, times)| vec![fault; times]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "worker-kill",
            Self::Pause => "worker-pause",
            Self::Power => "worker-power",
            Self::Clock => "worker-clock",
            Self::Disk => "worker-disk",
        }
    }
}

struct Agent {
    name: &'static str,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    /// Its data directory.
    data: PathBuf,
    process: Option<Process>,
}

impl Agent {
    fn start(&mut self, preload: &Preload) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.config);
        preload.give(&mut command, self.name, &self.data)?;
        self.process = Some(Process::start(command, &self.log)?);
        Ok(())
    }

    /// SIGKILL. True if it was alive until then.
    fn kill(&mut self) -> bool {
        self.process.take().is_some_and(|mut process| process.kill())
    }
}

pub(super) struct Workers {
    agents: Vec<Agent>,
    preload: Arc<Preload>,
    rng: StdRng,
    recorder: Arc<Recorder>,
    selected: Vec<WorkerFault>,
    next: Vec<WorkerFault>,
    next_id: u64,
}

impl Workers {
    /// Starts them all.
    pub(super) fn start(
        fleet: &Fleet,
        recorder: &Arc<Recorder>,
        nemesis: &[Family],
        names: &[&'static str],
        seed: u64,
    ) -> Result<Self> {
        let once = fleet.dir().join("once");
        std::fs::create_dir_all(&once)?;
        let engine = format!(
            "kind = \"mock\"\nprocess = true\nslots = 2\nconcurrency = 6\nlatency_ms_min = 5\n\
             latency_ms_max = 50\nseed = 3\nonce_dir = {once:?}\n"
        );
        let mut agents = Vec::new();
        for &name in names {
            let config = fleet.worker_config(name, "[part]\nlinger_ms = 200\n", &engine)?;
            let program = fleet.program("rollout-worker").get_program().into();
            let log = fleet.dir().join(format!("worker-{name}.log"));
            let data = fleet.worker_dir(name);
            let mut agent = Agent { name, program, config, log, data, process: None };
            agent.start(&fleet.preload)?;
            agents.push(agent);
        }
        Ok(Self {
            agents,
            preload: fleet.preload.clone(),
            rng: StdRng::seed_from_u64(seed),
            recorder: recorder.clone(),
            selected: WorkerFault::selected(nemesis),
            next: Vec::new(),
            next_id: FIRST_ID,
        })
    }

    /// Injects a fault into one of them for a while, if requested.
    pub(super) async fn strike(&mut self) -> Result<()> {
        let rest = Duration::from_millis(self.rng.random_range(1000..4000));
        tokio::time::sleep(rest).await;
        if self.next.is_empty() {
            self.next = self.selected.clone();
            self.next.shuffle(&mut self.rng);
        }
        // Record and restart a worker that exited by itself before injecting a fault.
        self.revive()?;
        let Some(fault) = self.next.pop() else { return Ok(()) };
        let which = self.rng.random_range(0..self.agents.len());
        let away = Duration::from_millis(self.rng.random_range(100..3000));
        self.next_id += 1;
        let (id, on) = (self.next_id, self.agents[which].name.to_owned());
        let proven = self.begin(fault, which).await?;
        let kind = fault.name();
        println!("{:>6.1} s  {kind} on {on}", self.recorder.now_ns() as f64 / 1e9);
        self.recorder.event(EventKind::Fault { id, kind: kind.into(), on, proven });
        tokio::time::sleep(away).await;
        self.end(which)?;
        self.recorder.event(EventKind::Healed { id });
        Ok(())
    }

    /// Starts a fault. True if it was seen to take effect.
    async fn begin(&mut self, fault: WorkerFault, which: usize) -> Result<bool> {
        let agent = &mut self.agents[which];
        let name = agent.name;
        Ok(match (fault, &agent.process) {
            (WorkerFault::Kill, _) => agent.kill(),
            (WorkerFault::Pause, Some(process)) => process.pause().unwrap_or(false),
            (WorkerFault::Power, Some(_)) => {
                let killed = agent.kill();
                let lost = self.preload.lose_power(name, Loss::Torn { seed: self.rng.random() })?;
                lost.is_some() && killed
            }
            (WorkerFault::Clock, Some(_)) => {
                let ahead_s = if self.rng.random() { HOUR_S } else { -HOUR_S };
                self.preload.set_clock(name, ahead_s)?;
                self.seen(|preload| Ok(preload.clock_ahead_s(name)?.abs_diff(ahead_s) < 60)).await?
            }
            (WorkerFault::Disk, Some(_)) => {
                let slow = DiskFault::SlowSync(self.rng.random_range(200..2000));
                let all = [slow, DiskFault::SyncFails, DiskFault::WriteFails, DiskFault::Full];
                self.preload.disk(name)?.set(all[self.rng.random_range(0..all.len())]);
                self.seen(|preload| Ok(preload.disk(name)?.met() > 0)).await?
            }
            (_, None) => false,
        })
    }

    async fn seen(&self, effect: impl Fn(&Preload) -> Result<bool>) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < PROOF_LIMIT {
            if effect(&self.preload)? {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(false)
    }

    /// Ends the fault, whatever it was.
    fn end(&mut self, which: usize) -> Result<()> {
        let name = self.agents[which].name;
        self.preload.set_clock(name, 0)?;
        self.preload.disk(name)?.set(DiskFault::None);
        if let Some(process) = &self.agents[which].process {
            // A process that ended meanwhile is started below.
            let _ = process.resume();
        }
        self.revive()
    }

    /// Starts every worker that does not run, and records those that the suite did not kill.
    pub(super) fn revive(&mut self) -> Result<()> {
        for agent in &mut self.agents {
            if let Some(process) = &mut agent.process
                && let Some(ended) = process.ended()
            {
                let (member, status) = (agent.name.to_owned(), ended.to_string());
                let panicked = process.panicked();
                self.recorder.event(EventKind::Died { member, status, panicked });
                agent.process = None;
            }
            if agent.process.is_none() {
                agent.start(&self.preload)?;
            }
        }
        Ok(())
    }
}
