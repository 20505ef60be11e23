//! Python programs with torch, in a fleet's tests.
//!
//! *Invariant:* they run in the environment that `make test-torch` made, with the package that it built.

use crate::fleet::Fleet;
use crate::process::Process;
use crate::wait::eventually;
use anyhow::{Context, Result, ensure};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Time limit for importing torch on a busy machine.
pub const SLOW: Duration = Duration::from_secs(240);

/// A command of the environment's interpreter, one thread each.
///
/// # Panics
/// If `make test-torch` did not set the paths of the environment and the package.
pub fn python() -> Command {
    let told =
        |name| std::env::var_os(name).expect("run `make test-torch`: it says where torch is");
    let mut command = Command::new(told("ROLLOUT_TORCH_PYTHON"));
    command.env("PYTHONPATH", told("ROLLOUT_PYTHON_PACKAGE"));
    command.env("OMP_NUM_THREADS", "1").env("GLOO_SOCKET_IFNAME", "lo");
    command
}

/// The path of a program in `tests/torch`.
pub fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("torch").join(name)
}

/// Reports what was not run: here, and in the final summary of `make test-torch`.
///
/// # Errors
/// When the summary cannot be written.
pub fn not_run(line: &str) -> Result<()> {
    println!("{line}");
    if let Some(summary) = std::env::var_os("ROLLOUT_TORCH_NOT_RUN") {
        let mut summary = OpenOptions::new().create(true).append(true).open(summary)?;
        writeln!(summary, "{line}")?;
    }
    Ok(())
}

/// A process and its log.
pub struct Running {
    pub process: Process,
    log: PathBuf,
}

impl Running {
    /// Starts a command that writes into a log of this name.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(fleet: &Fleet, name: &str, command: Command) -> Result<Self> {
        let log = fleet.path(&format!("{name}.log"));
        Ok(Self { process: Process::start(command, &log)?, log })
    }

    /// Runs a scenario of a program in `tests/torch`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn script(fleet: &Fleet, name: &str, program: &str, args: &[&str]) -> Result<Self> {
        let mut command = python();
        command.arg(script(program)).args(args);
        Self::start(fleet, name, command)
    }

    /// The lines so far with this prefix.
    pub fn lines(&self, begin: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }

    /// The first line with this prefix, if there is one yet.
    pub fn says(&self, begin: &str) -> Option<String> {
        self.lines(begin).into_iter().next()
    }

    /// Waits for a line with this prefix.
    ///
    /// # Panics
    /// When it does not come.
    pub fn until_it_says(&self, begin: &str) -> String {
        eventually(&format!("{begin:?} in {}", self.log.display()), SLOW, || self.says(begin))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it fails or does not end.
    pub fn finish(&mut self) -> Result<()> {
        let status = self.process.wait(SLOW)?;
        ensure!(status.success(), "{status}: {}", self.process.log_tail());
        Ok(())
    }
}

/// Starts a gateway of the store of job `train`, and returns its address too.
///
/// # Errors
/// When it cannot be started.
pub fn gateway(fleet: &Fleet, name: &str) -> Result<(Running, String)> {
    let args = ["store-gateway", "--job", "train", "--listen", "127.0.0.1:0"];
    let running = Running::start(fleet, name, fleet.rollout(&args))?;
    let line = running.until_it_says("store of train at ");
    let addr = line.rsplit(' ').next().context("an address")?.to_owned();
    Ok((running, addr))
}
