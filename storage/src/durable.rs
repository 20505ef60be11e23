//! Owns: the few file-system steps that survive a power loss.
//!
//! Invariant: when a function here returns `Ok`, what it wrote, renamed or created survives a power loss: the file was
//! fsynced before its name appeared, and the directory after.
//! Absent: formats and checksums.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::StorageError;

/// Fsyncs a directory, so that the names in it are durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir)
        .and_then(|handle| handle.sync_all())
        .map_err(StorageError::io(dir, "sync directory"))
}

/// Fsyncs a file that was written through another handle.
#[cfg(feature = "rocksdb")]
pub(crate) fn sync_file(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StorageError::io(path, "sync"))
}

/// Creates `dir` and its missing parents, each name durable in its parent.
pub(crate) fn create_dir_all(dir: &Path) -> Result<(), StorageError> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = parent_of(dir);
    create_dir_all(&parent)?;
    match fs::create_dir(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        Err(error) => return Err(StorageError::io(dir, "create directory")(error)),
    }
    sync_dir(&parent)
}

/// Replaces `path` by `bytes`: after a crash it holds either all of the old or all of the new bytes.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(StorageError::io(&temporary, "write"))?;
    rename(&temporary, path)
}

/// Renames within one directory and makes the new name durable.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), StorageError> {
    fs::rename(from, to).map_err(StorageError::io(from, "rename"))?;
    sync_dir(&parent_of(to))
}

/// Reads a file; `None` if there is none.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io(path, "read")(error)),
    }
}

/// Removes a directory with its content. It is not an error if it is gone already.
#[cfg(feature = "rocksdb")]
pub(crate) fn remove_dir_all(dir: &Path) -> Result<(), StorageError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StorageError::io(dir, "remove directory")(error))
        }
        _ => Ok(()),
    }
}

/// The directory in which `path` is; `.` for a bare name.
pub(crate) fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}
