//! The wall clock of each process of a fleet, which a test may set.
//!
//! *Invariant:* a clock belongs to a process name and survives a restart of the process; every clock starts correct.
//! Absent: monotonic clocks, which no process can set.

use crate::preload;
use anyhow::Result;
use rollout_powerloss::{CLOCK_ENV, Clock};
use std::path::PathBuf;
use std::process::Command;

/// The clocks of a fleet: one file per process, which the preloaded library reads at every clock read.
pub(crate) struct Clocks {
    dir: PathBuf,
}

impl Clocks {
    /// Clocks whose files are in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Gives the clock of this name to the command and all processes that it starts.
    pub(crate) fn give(&self, command: &mut Command, name: &str) -> Result<()> {
        let file = self.dir.join(name);
        if !file.exists() {
            self.set(name, 0)?;
        }
        preload::give(command, CLOCK_ENV, &file)
    }

    /// Sets the clock of this name this many seconds ahead from now on; negative: behind.
    pub(crate) fn set(&self, name: &str, ahead_s: i64) -> Result<()> {
        let path = self.dir.join(name);
        if !path.exists() {
            Clock::create(&path)?;
        }
        Clock::open(&path)?.set_ahead_s(ahead_s);
        Ok(())
    }
}
