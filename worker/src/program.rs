//! Owns: the program `rollout-worker`: flags, logs, signals, exit status.
//!
//! Invariant: no other process of its user can read this process's environment or memory once its engines start.
//! Absent: the executable's entry point and its version (`main.rs`).
//!
//! Exit status: 0 drained and every row answered for, 1 failed, 2 wrong usage or configuration, 5 another cluster, 74
//! the local disk failed or is full, 77 registration permanently refused (its name is taken, its certificate does not
//! allow it, or its join token admits no worker), 75 restart needed: drained but results stay in the spool, or the
//! cluster was restored and the worker must register again.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};
use rollout_proto::Supervisor;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::agent::{self, Drained};
use crate::agent_error::AgentError;
use crate::compute::Cloud;
use crate::config::{self, Config, Flags};
use crate::drain::{DrainOrder, Drains};
use crate::engine::mock_engine;
use crate::{metrics, telemetry};

/// The time left after a second signal.
const HURRY: Duration = Duration::from_secs(5);

/// Runs the command line of this process. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    // An agent starts this same program as the process of a mock engine; users do not.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "mock-engine") {
        return mock_engine();
    }
    let matches = Flags::command().version(version).get_matches();
    let flags = Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Err(error) = log() {
        eprintln!("rollout-worker: {error}");
        return ExitCode::from(2);
    }
    let mut config = match config::load(&flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("rollout-worker: {error}");
            return ExitCode::from(2);
        }
    };
    if flags.check_config {
        let slots: u32 = config.engine.iter().map(|engine| engine.slots).sum();
        println!(
            "worker {} with {slots} slots, data in {}",
            config.name,
            config.data_dir.display()
        );
        return ExitCode::SUCCESS;
    }
    if config.address.is_empty() {
        config.address = format!("{}:pid-{}", host_name(), std::process::id());
    }
    hide_from_engines();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(work(config)),
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            ExitCode::FAILURE
        }
    }
}

/// Hides this process's environment and memory from other processes of its user, including engines, which could read
/// both in /proc. Their own environment has only what engines need (`pass_env`).
fn hide_from_engines() {
    // SAFETY: a plain system call on numbers.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "engines can read the environment of this process");
    }
}

async fn work(config: Config) -> ExitCode {
    if let Some(address) = config.metrics_listen {
        match metrics::serve(address).await {
            Ok(address) => tracing::info!(%address, "serving metrics"),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "cannot serve metrics");
                return ExitCode::FAILURE;
            }
        }
    }
    let spans = match telemetry::export_spans(&config) {
        Ok(spans) => spans,
        Err(error) => {
            tracing::error!(%error, "cannot export spans");
            return ExitCode::from(2);
        }
    };
    let code = work_until_drained(config).await;
    if let Some(spans) = spans {
        spans.finish().await;
    }
    code
}

async fn work_until_drained(mut config: Config) -> ExitCode {
    let drains = Drains::default();
    let drain = Duration::from_millis(config.timing.drain_ms);
    let supervisor = Supervisor::from_env();
    if let Err(error) = drain_on_signals(drains.clone(), drain, supervisor.clone()) {
        tracing::error!(%error, "cannot listen for signals");
        return ExitCode::FAILURE;
    }
    match Cloud::find(&config.compute).await {
        Ok(None) => {}
        Ok(Some(cloud)) => {
            cloud.label(&mut config);
            tokio::spawn(cloud.watch(drains.clone()));
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "cannot listen to the cloud");
            return ExitCode::FAILURE;
        }
    }
    // It has started whether or not a cluster answers: the supervisor must not restart it because a cluster is away.
    supervisor.ready();
    tokio::spawn(supervisor.clone().keep_alive(String::new));
    let ended = agent::run(config, drains).await;
    supervisor.stopping();
    match ended {
        Ok(Drained { everything_answered: true }) => ExitCode::SUCCESS,
        Ok(Drained { everything_answered: false }) => {
            tracing::warn!("results stay in the spool; start again in the same directory");
            ExitCode::from(75)
        }
        Err(error) => {
            tracing::error!(%error, "the agent failed");
            match error {
                AgentError::Start(_) => ExitCode::from(2),
                AgentError::Cluster(_) => ExitCode::from(5),
                AgentError::Restored(_) => ExitCode::from(75),
                AgentError::Disk(_) => ExitCode::from(74),
                AgentError::Refused { .. } => ExitCode::from(77),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// The first SIGTERM or SIGINT drains, the second leaves [`HURRY`], the third ends the process at once. SIGHUP is
/// ignored: changed certificates are used at the next connection without it.
fn drain_on_signals(
    drains: Drains,
    drain: Duration,
    supervisor: Supervisor,
) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!(
                "SIGHUP: changed certificates load by themselves; all other settings need a restart"
            );
        }
    });
    tokio::spawn(async move {
        for count in 1.. {
            let (number, name) = tokio::select! {
                _ = terminate.recv() => (15, "SIGTERM"),
                _ = interrupt.recv() => (2, "SIGINT"),
            };
            supervisor.stopping();
            match count {
                1 => drop(drains.request(DrainOrder::rows_for(drain, name))),
                2 => drop(drains.request(DrainOrder::gone_within(HURRY, format!("{name} again")))),
                _ => std::process::exit(128 + number),
            }
        }
    });
    Ok(())
}

/// Starts the log. An empty filter, as from an empty variable, logs nothing.
fn log() -> Result<(), String> {
    let configured = std::env::var("ROLLOUT_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = configured.as_deref().unwrap_or("info");
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("ROLLOUT_LOG = {filter:?} is not a filter: {error}"))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        logs.init();
    } else {
        logs.json().with_span_list(false).init();
    }
    Ok(())
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
