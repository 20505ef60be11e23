//! Owns: objects as files below one directory, on a file system that all hosts share.
//!
//! Invariant: an object appears under its name only when its bytes are fsynced, and a put returns only when the name is
//! durable too. The `object_store` crate's own file system does neither, hence this one. A writer holds a lock on its
//! temporary file until it is renamed, so that the leftovers of a killed writer can be recognized.
//! Absent: locks on objects; they are immutable, and different contents have different names.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{BLOB_BYTES_MAX, BlobError};

const TEMPORARY: &str = ".tmp-";
/// A temporary file that was changed within this time is left alone, because its writer may not have locked it yet.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);
/// Directories remembered as durable.
const KNOWN_MAX: usize = 4096;

#[derive(Debug, Clone)]
pub(super) struct FileStore {
    root: PathBuf,
    /// Directories whose names this process has made durable.
    synced_dirs: Arc<Mutex<HashSet<PathBuf>>>,
}

impl FileStore {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, synced_dirs: Arc::default() }
    }

    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<(), BlobError> {
        self.blocking(key, move |store, path| store.write(path, &bytes)).await
    }

    pub(super) async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let name = key.to_owned();
        let read = self.blocking(key, |_, path| {
            let len = fs::metadata(path)?.len();
            if len > BLOB_BYTES_MAX {
                return Ok(Err(len));
            }
            fs::read(path).map(Bytes::from).map(Ok)
        });
        read.await?.map_err(|len| BlobError::TooLarge { key: name, len, max: BLOB_BYTES_MAX })
    }

    pub(super) async fn size(&self, key: &str) -> Result<u64, BlobError> {
        self.blocking(key, |_, path| fs::metadata(path).map(|metadata| metadata.len())).await
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), BlobError> {
        let removed = self.blocking(key, |_, path| fs::remove_file(path)).await;
        match removed {
            Err(BlobError::Missing { .. }) => Ok(()),
            other => other,
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let listed = self.blocking(prefix, |store, path| {
            let mut keys = Vec::new();
            collect(&store.root, path, &mut keys)?;
            Ok(keys)
        });
        match listed.await {
            Err(BlobError::Missing { .. }) => Ok(Vec::new()),
            other => other,
        }
    }

    pub(super) async fn folders(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let listed = self.blocking(prefix, |_, path| {
            let mut names = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                if let Ok(name) = entry.file_name().into_string()
                    && !name.starts_with('.')
                    && entry.file_type()?.is_dir()
                {
                    names.push(name);
                }
            }
            Ok(names)
        });
        match listed.await {
            Err(BlobError::Missing { .. }) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Removes temporary files below a folder that no writer holds any more. Returns how many there were.
    pub(super) async fn remove_abandoned(&self, prefix: &str) -> Result<u64, BlobError> {
        let before = SystemTime::now() - ABANDONED_AFTER;
        match self.blocking(prefix, move |_, path| remove_abandoned(path, before)).await {
            Err(BlobError::Missing { .. }) => Ok(0),
            other => other,
        }
    }

    pub(super) async fn prune(&self, prefix: &str) -> Result<(), BlobError> {
        let pruned = self.blocking(prefix, |_, path| {
            prune(path);
            Ok(())
        });
        pruned.await
    }

    pub(super) async fn was_written(&self, prefix: &str) -> Result<bool, BlobError> {
        self.blocking(prefix, |_, path| path.parent().map_or(Ok(false), Path::try_exists)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Self, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, BlobError> {
        let store = self.clone();
        let path = self.root.join(key);
        match tokio::task::spawn_blocking(move || work(&store, &path)).await {
            Ok(outcome) => outcome.map_err(|error| BlobError::from_io(key, &error)),
            Err(error) => {
                Err(BlobError::Unavailable { key: key.to_owned(), reason: error.to_string() })
            }
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let dir = path.parent().unwrap_or(&self.root);
        self.ensure_dir(dir)?;
        if holds(path, bytes)? {
            // Its writer may have died before it was durable.
            File::open(path)?.sync_all()?;
            return File::open(dir)?.sync_all();
        }
        let temporary =
            dir.join(format!("{TEMPORARY}{}", blake3::Hash::from_bytes(unique_bytes())));
        let written = OpenOptions::new().write(true).create_new(true).open(&temporary).and_then(
            |mut file| {
                // If the file system has no locks, no process considers the file abandoned.
                let _ = file.try_lock();
                file.write_all(bytes)?;
                file.sync_all()?;
                fs::rename(&temporary, path)
            },
        );
        if let Err(error) = written {
            // Best effort: a name that starts with a dot is not an object, so a leftover does no harm.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        File::open(dir)?.sync_all()
    }

    /// Creates a directory below the root and makes its whole path durable, once per process.
    fn ensure_dir(&self, dir: &Path) -> io::Result<()> {
        if self.synced_dirs.lock().contains(dir) && dir.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(dir)?;
        for ancestor in dir.ancestors().skip(1) {
            match File::open(ancestor).and_then(|handle| handle.sync_all()) {
                // Above the root is the operator's own mount, which not every host may open.
                Err(error) if ancestor.starts_with(&self.root) => return Err(error),
                _ => {}
            }
        }
        let mut synced_dirs = self.synced_dirs.lock();
        if synced_dirs.len() >= KNOWN_MAX {
            synced_dirs.clear();
        }
        synced_dirs.insert(dir.to_owned());
        Ok(())
    }
}

/// Removes empty directories, the innermost first. One that has files, or gets one meanwhile, stays.
fn prune(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir {
            prune(&entry.path());
        } else if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let _ = fs::remove_file(entry.path()); // left by a writer that died
        }
    }
    let _ = fs::remove_dir(dir);
}

/// Whether the file exists with exactly these bytes.
fn holds(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() == bytes.len() as u64 => Ok(fs::read(path)? == bytes),
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn collect(root: &Path, dir: &Path, keys: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(root, &path, keys)?;
        } else if !entry.file_name().to_string_lossy().starts_with(TEMPORARY)
            && let Ok(relative) = path.strip_prefix(root)
        {
            keys.push(relative.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn remove_abandoned(dir: &Path, before: SystemTime) -> io::Result<u64> {
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let outcome = if entry.file_type()?.is_dir() {
            remove_abandoned(&path, before)
        } else if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            remove_if_abandoned(&path, before)
        } else {
            Ok(0)
        };
        match outcome {
            // The file has its final name by now, or another process removes it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => removed += outcome?,
        }
    }
    Ok(removed)
}

fn remove_if_abandoned(path: &Path, before: SystemTime) -> io::Result<u64> {
    if fs::metadata(path)?.modified()? > before {
        return Ok(0);
    }
    let file = match OpenOptions::new().write(true).open(path) {
        // It belongs to another user; the next writer of that user removes it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(0),
        opened => opened?,
    };
    // A live writer holds it. Without locks in the file system this fails too, and the file stays.
    if file.try_lock().is_err() {
        return Ok(0);
    }
    fs::remove_file(path)?;
    Ok(1)
}

/// Bytes that differ for every call, on every host.
fn unique_bytes() -> [u8; 32] {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = blake3::Hasher::new();
    // The standard library seeds each of these from the system's randomness.
    for _ in 0..2 {
        hasher.update(&RandomState::new().hash_one(0).to_le_bytes());
    }
    let nanos = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    hasher.update(&nanos.to_le_bytes());
    hasher.update(&std::process::id().to_le_bytes());
    hasher.update(&CALLS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    *hasher.finalize().as_bytes()
}
