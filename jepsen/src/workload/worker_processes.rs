//! Real workers with mock engines, some of which are killed or stopped at any time.
//!
//! *Invariant:* at the end every worker runs.

use crate::events::What;
use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::process::Process;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Faults of the nemesis count from 1.
const FIRST_ID: u64 = 1 << 32;

struct Agent {
    name: &'static str,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    process: Option<Process>,
}

impl Agent {
    fn start(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.config);
        self.process = Some(Process::start(command, &self.log)?);
        Ok(())
    }
}

/// See the module.
pub(super) struct Workers {
    agents: Vec<Agent>,
    rng: StdRng,
    recorder: Arc<Recorder>,
    kills: bool,
    pauses: bool,
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
            let mut agent = Agent { name, program, config, log, process: None };
            agent.start()?;
            agents.push(agent);
        }
        Ok(Self {
            agents,
            rng: StdRng::seed_from_u64(seed),
            recorder: recorder.clone(),
            kills: nemesis.contains(&Family::Kill),
            pauses: nemesis.contains(&Family::Pause),
            next_id: FIRST_ID,
        })
    }

    /// Kills or stops one of them for a while, if that is asked for.
    pub(super) async fn strike(&mut self) -> Result<()> {
        let rest = Duration::from_millis(self.rng.random_range(2000..6000));
        tokio::time::sleep(rest).await;
        let which = self.rng.random_range(0..self.agents.len());
        let coin = self.rng.random_bool(0.7);
        let away = Duration::from_millis(self.rng.random_range(100..3000));
        let kills = match (self.kills, self.pauses) {
            (false, false) => return self.revive(),
            (kills, pauses) => kills && (coin || !pauses),
        };
        self.next_id += 1;
        let (id, name) = (self.next_id, self.agents[which].name);
        let agent = &mut self.agents[which];
        let (kind, proven) = match (kills, &mut agent.process) {
            (true, process) => ("worker-kill", process.take().is_some_and(|mut p| p.kill())),
            (false, Some(process)) => ("worker-pause", process.pause().unwrap_or(false)),
            (false, None) => ("worker-pause", false),
        };
        println!("{:>6.1} s  {kind} on {name}", self.recorder.now_ns() as f64 / 1e9);
        self.recorder.event(What::Fault { id, kind: kind.into(), on: name.into(), proven });
        tokio::time::sleep(away).await;
        if let Some(process) = &self.agents[which].process {
            // A process that ended meanwhile is started below.
            let _ = process.resume();
        }
        self.revive()?;
        self.recorder.event(What::Healed { id });
        Ok(())
    }

    /// Starts every worker that does not run, and tells of those that nobody killed.
    pub(super) fn revive(&mut self) -> Result<()> {
        for agent in &mut self.agents {
            if let Some(process) = &mut agent.process
                && let Some(ended) = process.ended()
            {
                let (member, status) = (agent.name.to_owned(), ended.to_string());
                let panicked = process.panicked();
                self.recorder.event(What::Died { member, status, panicked });
                agent.process = None;
            }
            if agent.process.is_none() {
                agent.start()?;
            }
        }
        Ok(())
    }
}
