//! Owns: the file `SYNCED` beside a RocksDB: the highest sequence number of that database known to be fsynced.
//!
//! Invariant: the number in the file never exceeds what is durable, so a database that recovers less than the number
//! has lost acknowledged writes and must not be used. RocksDB cannot tell a damaged length near the end of its
//! write-ahead log from a torn tail, and would silently drop the rest; this number reveals the loss.
//! Absent: how to react to a loss; see `rocks`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::StorageError;
use crate::{durable, record};

const CONTEXT: &[u8] = b"synced";

/// An open `SYNCED` file. Its content is a few bytes within one sector, overwritten in place.
#[derive(Debug)]
pub(crate) struct SyncMark {
    file: File,
    path: PathBuf,
}

impl SyncMark {
    /// Opens the mark in `dir` and reads its number; `None` if there is no such file.
    pub(crate) fn load(dir: &Path) -> Result<Option<(Self, u64)>, StorageError> {
        let path = dir.join("SYNCED");
        let Some(bytes) = durable::read_optional(&path)? else { return Ok(None) };
        let sequence = record::open(CONTEXT, &bytes)
            .ok()
            .and_then(|payload| payload.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or_else(|| {
                StorageError::corrupt(&path, "the mark of the last fsync is unreadable")
            })?;
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(StorageError::io(&path, "open for writing"))?;
        Ok(Some((Self { file, path }, sequence)))
    }

    /// Creates the mark in `dir`, with number 0, durably.
    pub(crate) fn create(dir: &Path) -> Result<Self, StorageError> {
        let path = dir.join("SYNCED");
        durable::write_atomic(&path, &encode(0))?;
        match Self::load(dir)? {
            Some((mark, _)) => Ok(mark),
            None => Err(StorageError::corrupt(&path, "the file vanished while it was created")),
        }
    }

    /// Records that everything up to `sequence` is durable. This survives the death of the process at once, but a
    /// power loss only after [`sync`](Self::sync) or the kernel's own write-back. Until then the number on disk is
    /// merely lower.
    pub(crate) fn store(&self, sequence: u64) -> Result<(), StorageError> {
        self.file.write_all_at(&encode(sequence), 0).map_err(StorageError::io(&self.path, "write"))
    }

    /// Fsyncs the mark itself.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        self.file.sync_data().map_err(StorageError::io(&self.path, "sync"))
    }
}

fn encode(sequence: u64) -> Vec<u8> {
    record::seal(CONTEXT, &sequence.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_mark_are_locked() {
        let mark = [0x01, 0x1e, 0xf1, 0xfc, 0xa8, 0x70, 0x11, 0x01, 0, 0, 0, 0, 0];
        assert_eq!(encode(70_000), mark);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("SYNCED"), mark).unwrap();
        let (_, sequence) = SyncMark::load(dir.path()).unwrap().unwrap();
        assert_eq!(sequence, 70_000);
    }
}
