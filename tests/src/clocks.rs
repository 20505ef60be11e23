//! The wall clock of each process of a fleet, which a test may set.
//!
//! *Invariant:* a process has the clock of its own name, from its start and after its restart; all begin right.
//! Absent: monotonic clocks, which nobody can set.

use crate::preload;
use anyhow::Result;
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
        preload::give(command, "ROLLOUT_PRELOAD_CLOCK", &file)
    }

    /// The clock of this name is so many seconds ahead from now on; negative: behind.
    pub(crate) fn set(&self, name: &str, ahead_s: i64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let path = self.dir.join(name);
        // Not emptied first: processes have it mapped.
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path)?;
        Ok(file.write_all_at(&(ahead_s * 1_000_000_000).to_le_bytes(), 0)?)
    }
}
