//! Owns: one snapshot on disk and its lifetime.
//!
//! Invariant: its files do not change, and stay until the snapshot is replaced and its last handle is gone.
//! Absent: transfer to other members.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::manifest::Manifest;
use super::records::ImageReader;
use crate::durable;
use crate::error::StorageError;

/// A snapshot of the image. Handles are shared; hold one while files are being read.
#[derive(Debug)]
pub struct Snapshot {
    dir: PathBuf,
    manifest: Mutex<Option<Manifest>>,
    retired: AtomicBool,
}

impl Snapshot {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, manifest: Mutex::new(None), retired: AtomicBool::new(false) }
    }

    /// The directory that holds the snapshot's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files with their digests. The first call reads every file; call it where blocking is allowed.
    pub fn manifest(&self) -> Result<Manifest, StorageError> {
        let mut cached = self.manifest.lock();
        if let Some(manifest) = cached.as_ref() {
            return Ok(manifest.clone());
        }
        Ok(cached.insert(Manifest::compute(&self.dir)?).clone())
    }

    /// Opens the snapshot for reading its records.
    pub fn open_image(&self) -> Result<ImageReader, StorageError> {
        ImageReader::open(&self.dir)
    }

    /// Removes the files with the last handle.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if !self.retired.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = durable::remove_dir_all(&self.dir) {
            tracing::warn!(%error, "cannot remove an old snapshot, it stays until the next start");
        }
    }
}
