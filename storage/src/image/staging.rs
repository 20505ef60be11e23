//! Owns: an image that is being received, until it is installed or dropped.
//!
//! Invariant: a [`Staged`] image has exactly the files, lengths and digests of its manifest, and is durable.
//! Absent: the network, and resuming a broken transfer.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::manifest::{self, Manifest};
use super::records::ImageReader;
use crate::error::StorageError;
use crate::sync_mark::SyncMark;
use crate::{durable, rocks};

/// Files are being written. Dropping it removes them.
#[derive(Debug)]
pub struct Staging {
    dir: TemporaryDir,
}

/// A complete received image. Dropping it removes it.
#[derive(Debug)]
pub struct Staged {
    dir: TemporaryDir,
}

impl Staging {
    pub(super) fn create(dir: PathBuf) -> Result<Self, StorageError> {
        durable::create_dir_all(&rocks::database_dir(&dir))?;
        Ok(Self { dir: TemporaryDir { dir: Some(dir) } })
    }

    /// Writes a piece of a file, in any order. `name` must be one that RocksDB gives its files.
    pub fn write_file(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let dir = self.dir.database();
        if !manifest::is_database_file(name) {
            return Err(StorageError::refused(&dir, format!("{name:?} is not a file of an image")));
        }
        let path = dir.join(name);
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(bytes, offset))
            .map_err(StorageError::io(&path, "write"))
    }

    /// Checks everything against the manifest and makes it durable. Reads every file and so blocks for long.
    pub fn finish(self, expected: &Manifest) -> Result<Staged, StorageError> {
        let dir = self.dir.database();
        // A sender sends no piece of an empty file, such as the log of a database that was just flushed.
        for file in expected.files.iter().filter(|file| file.len == 0) {
            self.write_file(&file.name, 0, b"")?;
        }
        let received = Manifest::compute(&dir)?;
        if received != *expected {
            return Err(StorageError::refused(&dir, difference(&received, expected)));
        }
        for file in &received.files {
            durable::sync_file(&dir.join(&file.name))?;
        }
        durable::sync_dir(&dir)?;
        // The count of acknowledged writes starts again with this image.
        SyncMark::create(self.dir.path())?;
        durable::sync_dir(self.dir.path())?;
        Ok(Staged { dir: self.dir })
    }
}

impl Staged {
    /// The value under `key` in the received image.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.open_image()?.get(key)
    }

    /// Opens the received image for reading. Drop the reader before the image is installed.
    pub fn open_image(&self) -> Result<ImageReader, StorageError> {
        ImageReader::open(&self.dir.database())
    }

    /// Gives the image its final name, durably.
    pub(super) fn move_to(mut self, to: &Path) -> Result<(), StorageError> {
        durable::rename(self.dir.path(), to)?;
        self.dir.dir = None;
        Ok(())
    }
}

/// The difference that most helps an operator to understand a failed transfer.
fn difference(received: &Manifest, expected: &Manifest) -> String {
    for file in &expected.files {
        match received.files.iter().find(|other| other.name == file.name) {
            None => return format!("{} did not arrive", file.name),
            Some(other) if other.len != file.len => {
                return format!("{} has {} of {} bytes", file.name, other.len, file.len);
            }
            Some(other) if other.blake3 != file.blake3 => {
                return format!("{} has another digest than announced", file.name);
            }
            Some(_) => {}
        }
    }
    "files arrived that were not announced".to_owned()
}

/// A directory that is removed on drop, unless it was moved.
#[derive(Debug)]
struct TemporaryDir {
    dir: Option<PathBuf>,
}

impl TemporaryDir {
    fn path(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new(""))
    }

    fn database(&self) -> PathBuf {
        rocks::database_dir(self.path())
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take()
            && let Err(error) = durable::remove_dir_all(&dir)
        {
            tracing::warn!(%error, "cannot remove a staged image, it stays until the next start");
        }
    }
}
