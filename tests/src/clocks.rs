//! The wall clock of each process of a fleet, which a test may set.
//!
//! *Invariant:* a process has the clock of its own name, from its start and after its restart; all begin right.
//! Absent: monotonic clocks, which nobody can set.

use crate::preload;
use anyhow::Result;
use rollout_powerloss::{CLOCK_ENV, Clock};
use std::path::PathBuf;
use std::process::Command;

/// The clocks of a fleet: one file a process, which the preloaded library reads at every look at the clock.
pub(crate) struct Clocks {
    dir: PathBuf,
}

impl Clocks {
    /// Clocks whose files are in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Gives the command, and all that it starts, the clock of this name.
    pub(crate) fn give(&self, command: &mut Command, name: &str) -> Result<()> {
        let file = self.dir.join(name);
        if !file.exists() {
            self.set(name, 0)?;
        }
        preload::give(command, CLOCK_ENV, &file)
    }

    /// The clock of this name is so many seconds ahead from now on; negative: behind.
    pub(crate) fn set(&self, name: &str, ahead_s: i64) -> Result<()> {
        let path = self.dir.join(name);
        if !path.exists() {
            Clock::create(&path)?;
        }
        Clock::open(&path)?.set_ahead_s(ahead_s);
        Ok(())
    }
}
