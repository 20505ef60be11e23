//! A fleet of one member, which starts from data that an earlier build left on disk.
//!
//! *Invariant:* the kept data is never written to: a fleet gets a copy of it. Absent: certificates and addresses,
//! which are not part of a member's data.

use super::Fleet;
use anyhow::{Context, Result};
use std::path::Path;

/// The only member.
const MEMBER: &str = "c1";

/// RocksDB's own log, its options and its lock are not part of the format.
fn is_data(name: &str) -> bool {
    name != "LOCK" && !name.starts_with("LOG") && !name.starts_with("OPTIONS")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let entries = std::fs::read_dir(from).with_context(|| from.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else if is_data(&entry.file_name().to_string_lossy()) {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

impl Fleet {
    /// Copies kept data and objects to the member's directories; returns whether there were any.
    pub(super) fn take_over(&self) -> Result<bool> {
        let Some(kept) = self.options.alone.as_ref().filter(|kept| kept.is_dir()) else {
            return Ok(false);
        };
        copy(&kept.join("data"), &self.data_dir(MEMBER))?;
        copy(&kept.join("store"), &self.path("store"))?;
        Ok(true)
    }

    /// Kills the only member and keeps what it and the store have on disk, replacing what was kept there.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn keep(&mut self, kept: &Path) -> Result<()> {
        self.kill_member(MEMBER);
        if kept.exists() {
            std::fs::remove_dir_all(kept)?;
        }
        copy(&self.data_dir(MEMBER), &kept.join("data"))?;
        copy(&self.path("store"), &kept.join("store"))
    }
}
