//! Writes keys and certificates so that no reader sees half of one and no other user sees a key.
//!
//! *Invariant:* a file appears under its name complete, synced and with its mode, or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::PkiError;

const FILE_BYTES_MAX: u64 = 1 << 20;

fn at(path: &Path) -> impl FnOnce(io::Error) -> PkiError {
    let path = path.to_owned();
    move |cause| PkiError::Io { path, cause }
}

pub(super) fn exists(path: &Path) -> Result<bool, PkiError> {
    path.try_exists().map_err(at(path))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(at(path))?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(at(path))?;
    Ok(bytes)
}

/// Creates missing directories for their owner alone; existing ones keep their mode.
pub(super) fn create_private_dir(dir: &Path) -> Result<(), PkiError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))
}

/// Writes the file unless there is one already, which then stays: of two writers one wins.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiError> {
    let temporary = write_temporary(path, bytes, mode)?;
    let linked = match std::fs::hard_link(&temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    std::fs::remove_file(&temporary).map_err(at(&temporary))?;
    linked.and_then(|()| sync_parent(path)).map_err(at(path))
}

/// Writes the file, and replaces an existing one.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiError> {
    let temporary = write_temporary(path, bytes, mode)?;
    let renamed = std::fs::rename(&temporary, path).and_then(|()| sync_parent(path));
    if renamed.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    renamed.map_err(at(path))
}

fn write_temporary(path: &Path, bytes: &[u8], mode: u32) -> Result<PathBuf, PkiError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.tmp", rand::random::<u64>()));
    let temporary = path.with_file_name(name);
    // The mode is set at creation, so that another user can open the file at no moment.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(at(&temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at(&temporary))?;
    Ok(temporary)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
