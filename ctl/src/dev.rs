//! `rollout dev`: a local cluster in one command, on data that survives a restart.
//!
//! Invariant: however `rollout dev` ends, no process of its cluster is left: it stops them in order on Ctrl-C or
//! SIGTERM, and the kernel kills them if it is killed. A second Ctrl-C kills at once. Absent: anything
//! that a shipped cluster would not do; the same binaries run with their defaults, mutual TLS included.

mod args;
mod certs;
pub mod cluster;
mod config;
mod detach;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod kill;
pub mod layout;
mod logs;
mod openai_env;
pub mod pids;
mod ports;
pub mod process;
pub mod ready;
mod registry;
mod saved_settings;
mod status;
mod stop;
mod supervise;
#[cfg(test)]
mod tests;
mod usage;

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use self::args::{DevAction, DevArgs, EngineKind, KillArgs, LatencyRange, LogsArgs, MockTail};
pub use self::certs::identity;
use self::cluster::DevCluster;
use self::supervise::Supervisor;
use crate::output::counted;
use crate::stdio::to_stderr;

const TICK: Duration = Duration::from_millis(100);

/// Runs `rollout dev` until a signal stops it.
///
/// # Errors
/// The cluster cannot be started, with its processes' logs, or cannot be supervised.
pub async fn run(args: DevArgs) -> anyhow::Result<()> {
    match &args.action {
        Some(DevAction::Stop) => return stop::run(&args.dir).await,
        Some(DevAction::Status) => return status::run(&args.dir),
        Some(DevAction::List) => return registry::run(&args.dir),
        Some(DevAction::Kill(which)) => return kill::run(&args.dir, which).await,
        Some(DevAction::Logs(which)) => return logs::run(&args.dir, which).await,
        None => {}
    }
    if args.detach {
        return detach::run(&args).await;
    }
    let mut signals = Signals::new()?;
    let mut cluster = DevCluster::prepare(&args)?;
    registry::remember(cluster.layout());
    let started = tokio::select! {
        started = start(&mut cluster) => Some(started),
        () = signals.next() => None,
    };
    let result = match started {
        Some(Ok(())) => {
            to_stderr(&ready_text(&cluster, &args));
            supervise(&mut cluster, !args.no_restart, &mut signals).await
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    to_stderr("stopping\n");
    tokio::select! {
        stopped = cluster.stop() => {
            for name in stopped? {
                to_stderr(&format!("{name} did not stop in time and was killed\n"));
            }
        }
        () = signals.next() => to_stderr("killed\n"),
    }
    result
}

async fn start(cluster: &mut DevCluster) -> anyhow::Result<()> {
    to_stderr(&format!("starting a cluster in {}\n", cluster.layout().root().display()));
    ready::start_members(cluster).await?;
    openai_env::write(cluster).await?;
    ready::start_workers(cluster).await?;
    cluster.set_ready()
}

async fn supervise(
    cluster: &mut DevCluster,
    restart: bool,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new(restart);
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = signals.next() => return Ok(()),
        }
        for line in supervisor.tick(cluster)? {
            to_stderr(&format!("{line}\n"));
        }
    }
}

/// How to use the cluster, human-readable.
fn ready_text(cluster: &DevCluster, args: &DevArgs) -> String {
    let layout = cluster.layout();
    let members: Vec<String> = cluster
        .saved()
        .members
        .iter()
        .map(|member| format!("{} {}", member.name, member.client_addr()))
        .collect();
    format!(
        "ready: members {}; {} of {}\n\n{commands}{python}\n\
         store {store}\nlogs  {logs}\nCtrl-C stops it; the data stays for the next start\n",
        members.join(", "),
        counted(args.workers.into(), "worker"),
        counted(args.slots.into(), "slot"),
        commands = usage::commands(layout),
        python = usage::python(layout),
        store = layout.store_url(),
        logs = layout.logs().display(),
    )
}

/// Ctrl-C, SIGTERM and a closed terminal.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
