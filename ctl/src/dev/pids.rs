//! Which processes a `rollout dev` runs, for scripts and for `rollout dev stop`.
//!
//! Invariant: written whenever a process starts or ends, replaced as a whole. The PIDs are valid only while the
//! directory is locked; after that the kernel may reuse them.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::saved_settings::write_atomically;
use super::usage;

/// The content of `pids.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    /// `rollout dev` itself.
    pub dev: u32,
    /// Whether the cluster was ready: a leader opened dispatch, every worker registered.
    pub ready: bool,
    /// Members by name.
    pub members: BTreeMap<String, u32>,
    /// Workers by name.
    pub workers: BTreeMap<String, u32>,
}

impl Pids {
    /// The content of the file; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.pids();
        match std::fs::read(&path) {
            Ok(text) => Self::parse(&text)
                .map(Some)
                .with_context(|| format!("{} is damaged", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(format!("cannot read {}", path.display())),
        }
    }

    /// Parses the bytes of the file.
    pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// The state of a cluster, human-readable. `runs`: its directory is locked.
    pub fn state(&self, runs: bool) -> &'static str {
        match (runs, self.ready) {
            (true, true) => "ready",
            (true, false) => "starting or stopping",
            (false, _) => "stopped",
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, layout: &Layout) -> anyhow::Result<()> {
        write_atomically(&layout.pids(), &serde_json::to_vec_pretty(self)?)
    }
}

/// Held while a `rollout dev` uses a directory; the kernel releases it with the process.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock; `None` while another process holds it.
    ///
    /// # Errors
    /// The lock file cannot be created.
    pub fn try_take(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.lock();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).context(format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Takes the lock, or reports the apparent holder.
    ///
    /// # Errors
    /// Another process holds it.
    pub fn take(layout: &Layout) -> anyhow::Result<Self> {
        let Some(lock) = Self::try_take(layout)? else {
            let by =
                Pids::load(layout)?.map_or(String::new(), |pids| format!(" (pid {})", pids.dev));
            bail!(
                "a cluster runs in {} already{by}; to use it:\n{}to stop it: {}",
                layout.root().display(),
                usage::commands(layout),
                usage::stop(layout)
            );
        };
        Ok(lock)
    }
}
