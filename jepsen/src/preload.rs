//! Starts every process of a run under the preloaded library, which tracks what the process made durable so that its
//! power can fail, sets its wall clock, and injects disk faults.
//!
//! *Invariant:* clock and disk belong to a process name and outlive its processes. Writes that were pending when a
//! process ended are still pending in its next life, until they are fsynced or lost: a kill makes nothing durable.

use anyhow::{Context, Result, ensure};
use rollout_powerloss::{
    CLOCK_ENV, Clock, DISK_ENV, Disk, JOURNAL_ENV, Journal, Loss, Report, lose_power,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const LIBRARY: &str = "librollout_preload.so";

/// The files through which faults reach one name.
#[derive(Clone, Copy)]
struct FaultFiles {
    clock: &'static Clock,
    disk: &'static Disk,
}

pub struct Preload {
    library: PathBuf,
    dir: PathBuf,
    by_name: Mutex<BTreeMap<String, FaultFiles>>,
}

impl Preload {
    /// The library beside the programs in `bin`, with its control files in `dir`. Under `cargo run` it is built
    /// first.
    ///
    /// # Errors
    /// When it is not there or cannot be built.
    pub fn new(bin: &Path, dir: &Path) -> Result<Self> {
        let library = bin.join(LIBRARY);
        if let Some(cargo) = std::env::var_os("CARGO") {
            build(&cargo, bin)?;
        }
        ensure!(
            library.is_file(),
            "no {LIBRARY} in {}: cargo build -p rollout-preload",
            bin.display()
        );
        std::fs::create_dir_all(dir)?;
        Ok(Self { library, dir: dir.to_owned(), by_name: Mutex::default() })
    }

    fn journal(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.journal"))
    }

    fn files(&self, name: &str) -> Result<FaultFiles> {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.get(name).copied().with_context(|| format!("{name} was never started"))
    }

    /// Makes the next life of the process of this name, with its data in `data_dir`, load the library.
    ///
    /// # Errors
    /// When its files cannot be made.
    pub fn give(&self, command: &mut Command, name: &str, data_dir: &Path) -> Result<()> {
        let journal = self.journal(name);
        if journal.exists() {
            Journal::resume(&journal)?;
        } else {
            std::fs::create_dir_all(data_dir)?;
            Journal::create(&journal, data_dir)?;
        }
        let file = |of: &str| self.dir.join(format!("{name}.{of}"));
        let (clock, disk) = (file("clock"), file("disk"));
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_name.contains_key(name) {
            Clock::create(&clock)?;
            Disk::create(&disk, data_dir)?;
            let files = FaultFiles { clock: Clock::open(&clock)?, disk: Disk::open(&disk)? };
            by_name.insert(name.to_owned(), files);
        }
        command.env("LD_PRELOAD", &self.library).env(JOURNAL_ENV, &journal);
        command.env(CLOCK_ENV, &clock).env(DISK_ENV, &disk);
        Ok(())
    }

    /// Removes what the killed process of this name had not made durable. `None` if it was killed before it had
    /// loaded the library: then it has written nothing since its start.
    ///
    /// # Errors
    /// When the journal missed something or the loss cannot be carried out.
    pub fn lose_power(&self, name: &str, loss: Loss) -> Result<Option<Report>> {
        let journal = self.journal(name);
        if !Journal::claimed(&journal)? {
            return Ok(None);
        }
        let lost = lose_power(&journal, loss)?;
        // The rest is durable: the next life starts with an empty journal.
        std::fs::remove_file(&journal)?;
        Ok(Some(lost))
    }

    /// The files of the stopped process of this name were replaced: everything present counts as durable.
    ///
    /// # Errors
    /// When the journal cannot be removed.
    pub fn clear_journal(&self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.journal(name))?)
    }

    /// Sets the wall clock of the process of this name this many seconds ahead; negative: behind.
    ///
    /// # Errors
    /// When it was never given one.
    pub fn set_clock(&self, name: &str, ahead_s: i64) -> Result<()> {
        self.files(name)?.clock.set_ahead_s(ahead_s);
        Ok(())
    }

    /// By how many seconds the time that the process read last is ahead of the current time.
    ///
    /// # Errors
    /// When it was never given a clock.
    pub fn clock_ahead_s(&self, name: &str) -> Result<i64> {
        let read_s = self.files(name)?.clock.read_ns() / 1_000_000_000;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(read_s - i64::try_from(now.as_secs())?)
    }

    /// The disk with the data of the process of this name.
    ///
    /// # Errors
    /// When it was never given one.
    pub fn disk(&self, name: &str) -> Result<&'static Disk> {
        Ok(self.files(name)?.disk)
    }
}

fn build(cargo: &std::ffi::OsStr, bin: &Path) -> Result<()> {
    let target = bin.parent().context("the programs are in no target directory")?;
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "-p", "rollout-preload", "--target-dir"]).arg(target);
    if bin.ends_with("release") {
        command.arg("--release");
    }
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status()?;
    ensure!(status.success(), "{LIBRARY} was not built");
    Ok(())
}
