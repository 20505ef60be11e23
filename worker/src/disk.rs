//! Owns: the agent's directory: its lock, and `worker.json` with session, cluster and the highest epoch seen.
//!
//! Invariant: one process uses a directory at a time. What [`DataDir::save`] returned for survives a power loss,
//! and replaces the old file as a whole.
//! Absent: the spool's files, which `spool` keeps below the same directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("{}: {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{}: another rollout-worker is using this directory", path.display())]
    Locked { path: PathBuf },
    #[error("{}: unreadable: {reason}; move it away to begin as a new worker", path.display())]
    Corrupt { path: PathBuf, reason: String },
}

/// What outlives the process. u64 values are strings, so that no reader rounds them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerState {
    /// 0: none yet.
    #[serde(with = "decimal")]
    pub(crate) session: u64,
    /// Empty: never met a cluster.
    pub(crate) cluster_id: String,
    #[serde(with = "decimal")]
    pub(crate) coord_epoch: u64,
}

#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory where it is missing, and locks it for this process.
    pub(crate) fn open(root: &Path) -> Result<Self, DiskError> {
        fs::create_dir_all(root).map_err(io_error(root, "cannot create the directory"))?;
        let path = root.join("LOCK");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(&path, "cannot open"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DiskError::Locked { path: root.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io_error(&path, "cannot lock")(source)),
        }
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }

    pub(crate) fn members(&self) -> PathBuf {
        self.root.join("members.json")
    }

    pub(crate) fn load(&self) -> Result<WorkerState, DiskError> {
        let path = self.root.join("worker.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| DiskError::Corrupt { path, reason: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(WorkerState::default()),
            Err(source) => Err(io_error(&path, "cannot read")(source)),
        }
    }

    pub(crate) fn save(&self, state: &WorkerState) -> Result<(), DiskError> {
        let (path, temporary) = (self.root.join("worker.json"), self.root.join("worker.json.tmp"));
        let bytes = serde_json::to_vec_pretty(state)
            .map_err(|error| io_error(&path, "cannot encode")(error.into()))?;
        File::create(&temporary)
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
            .map_err(io_error(&temporary, "cannot write"))?;
        fs::rename(&temporary, &path).map_err(io_error(&path, "cannot replace"))?;
        File::open(&self.root)
            .and_then(|dir| dir.sync_all())
            .map_err(io_error(&self.root, "cannot sync"))
    }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError::Io { path, action, source }
}

mod decimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_and_the_highest_epoch_survive() {
        let root = tempfile::tempdir().unwrap();
        let state = WorkerState { session: u64::MAX, cluster_id: "ab".into(), coord_epoch: 7 };
        {
            let dir = DataDir::open(root.path()).unwrap();
            assert_eq!(dir.load().unwrap(), WorkerState::default());
            dir.save(&state).unwrap();
        }
        assert_eq!(DataDir::open(root.path()).unwrap().load().unwrap(), state);
    }

    #[test]
    fn a_second_process_cannot_use_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let _first = DataDir::open(root.path()).unwrap();
        assert!(matches!(DataDir::open(root.path()), Err(DiskError::Locked { .. })));
    }
}
