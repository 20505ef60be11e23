//! Owns: a worker's open part on its local disk, so that a restart re-runs nothing that had finished.
//!
//! Layout: frames of `[payload length u32 LE][crc32 of length and offset u32 LE][record]`, the record sealed with the
//! frame's offset.
//! Invariant: after [`Spool::sync`] returns, the rows appended before it survive a power loss. A torn tail is cut; a
//! bad frame with a good one anywhere behind it is damage and is refused. Damage to the last frame looks like a torn
//! tail. Its row then runs again, which is allowed.
//! Absent: which run the rows belong to. One file holds the open part of one run; its owner names it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StorageError;
use crate::part::{PartRow, PartRowKind};
use crate::table::u64_at;
use crate::{durable, record};

const FRAME_HEAD: usize = 8;
const ROW_HEAD: usize = 17;
/// The most bytes of a spool: a full part, and the rows that finish while it is uploaded.
pub const SPOOL_BYTES_MAX: u64 = 64 << 20;

/// A row that was recovered from a spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpooledRow {
    /// The row's number in its run.
    pub row: u64,
    /// The attempt that produced it.
    pub attempt: u64,
    /// What it reports.
    pub kind: PartRowKind,
    /// The result's JSON object.
    pub body: Vec<u8>,
}

impl SpooledRow {
    /// The row in the form that a part accepts.
    pub fn as_part_row(&self) -> PartRow<'_> {
        PartRow { row: self.row, attempt: self.attempt, kind: self.kind, body: &self.body }
    }
}

/// An open spool file.
#[derive(Debug)]
pub struct Spool {
    file: File,
    path: PathBuf,
    len: u64,
    /// The file's name is not durable yet.
    fresh: bool,
}

/// The sync that makes a spool's rows durable. It may run on another thread, so that a row that finishes meanwhile is
/// written without waiting for the disk.
#[derive(Debug)]
#[must_use = "nothing is durable before it was done"]
pub struct SpoolSync {
    file: File,
    path: PathBuf,
    fresh: bool,
}

impl SpoolSync {
    /// Syncs the rows that were appended before this was created, and the file's name.
    pub fn sync(self) -> Result<(), StorageError> {
        self.file.sync_data().map_err(StorageError::io(&self.path, "sync"))?;
        if self.fresh { durable::sync_dir(&durable::parent_of(&self.path)) } else { Ok(()) }
    }
}

impl Spool {
    /// Opens or creates the file. Returns its rows in the order in which they were appended.
    pub fn open(path: &Path) -> Result<(Self, Vec<SpooledRow>), StorageError> {
        let fresh = !path.exists();
        durable::create_dir_all(&durable::parent_of(path))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // Only this user may read results.
            .mode(0o600)
            .open(path)
            .map_err(StorageError::io(path, "open"))?;
        let found = file.metadata().map_err(StorageError::io(path, "examine"))?.len();
        if found > SPOOL_BYTES_MAX {
            return Err(StorageError::corrupt(
                path,
                format!("{found} bytes, no spool is that long"),
            ));
        }
        let bytes = std::fs::read(path).map_err(StorageError::io(path, "read"))?;
        let (rows, good) = recover(path, &bytes)?;
        if good < bytes.len() {
            tracing::info!(path = %path.display(), cut = bytes.len() - good, "cutting a torn spool");
            file.set_len(good as u64)
                .and_then(|()| file.sync_all())
                .map_err(StorageError::io(path, "cut"))?;
        }
        Ok((Self { file, path: path.to_owned(), len: good as u64, fresh }, rows))
    }

    /// Appends a row; durable after [`sync`](Self::sync). A spool over [`SPOOL_BYTES_MAX`] refuses it.
    pub fn append(&mut self, row: PartRow<'_>) -> Result<(), StorageError> {
        let mut payload = Vec::with_capacity(ROW_HEAD + row.body.len());
        payload.extend_from_slice(&row.row.to_le_bytes());
        payload.extend_from_slice(&row.attempt.to_le_bytes());
        payload.push(row.kind.to_byte());
        payload.extend_from_slice(row.body);
        let record = record::seal(&self.len.to_le_bytes(), &payload);
        let total = self.len + (FRAME_HEAD + record.len()) as u64;
        if total > SPOOL_BYTES_MAX {
            let what = format!("the spool is full at {} bytes", self.len);
            return Err(StorageError::Refused { path: self.path.clone(), what });
        }
        // The bound above keeps the length far below u32::MAX.
        let mut frame = frame_head(record.len() as u32, self.len).to_vec();
        frame.extend_from_slice(&record);
        self.file.write_all_at(&frame, self.len).map_err(StorageError::io(&self.path, "append"))?;
        self.len = total;
        Ok(())
    }

    /// Makes the appended rows durable. After an error the worker must end, because rows may already be lost.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.start_sync()?.sync()
    }

    /// Like [`sync`](Self::sync), but returns the sync for another thread to run.
    pub fn start_sync(&mut self) -> Result<SpoolSync, StorageError> {
        let file = self.file.try_clone().map_err(StorageError::io(&self.path, "share"))?;
        let fresh = std::mem::take(&mut self.fresh);
        Ok(SpoolSync { file, path: self.path.clone(), fresh })
    }

    /// Bytes in the file.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Empties the spool durably, after its rows were committed or refused.
    pub fn clear(&mut self) -> Result<(), StorageError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.sync_all())
            .map_err(StorageError::io(&self.path, "clear"))?;
        self.len = 0;
        Ok(())
    }

    /// Deletes the file, durably.
    pub fn remove(self) -> Result<(), StorageError> {
        std::fs::remove_file(&self.path).map_err(StorageError::io(&self.path, "remove"))?;
        durable::sync_dir(&durable::parent_of(&self.path))
    }
}

/// The rows in a spool's bytes, and the length of the good part.
fn recover(path: &Path, bytes: &[u8]) -> Result<(Vec<SpooledRow>, usize), StorageError> {
    let mut rows = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Some((payload, next)) = frame(bytes, at) else {
            // Only the tail may be torn. A good frame behind it means that the file was damaged.
            if (at + 1..bytes.len()).any(|later| frame(bytes, later).is_some()) {
                return Err(StorageError::corrupt(path, format!("bad frame at byte {at}")));
            }
            break;
        };
        rows.push(
            row(payload)
                .ok_or_else(|| StorageError::corrupt(path, format!("bad row at byte {at}")))?,
        );
        at = next;
    }
    Ok((rows, at))
}

/// The payload of the frame at an offset, and where it ends; `None` if there is no good frame.
fn frame(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let head = bytes.get(at..)?.first_chunk::<FRAME_HEAD>()?;
    let [l0, l1, l2, l3, ..] = *head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    if *head != frame_head(len, at as u64) {
        return None;
    }
    let start = at + FRAME_HEAD;
    let end = start.checked_add(len as usize)?;
    let payload = record::open(&(at as u64).to_le_bytes(), bytes.get(start..end)?).ok()?;
    Some((payload, end))
}

fn frame_head(len: u32, at: u64) -> [u8; FRAME_HEAD] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(b"spool");
    hasher.update(&len.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    let mut head = [0; FRAME_HEAD];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    head
}

fn row(payload: &[u8]) -> Option<SpooledRow> {
    if payload.len() < ROW_HEAD {
        return None;
    }
    Some(SpooledRow {
        row: u64_at(payload, 0),
        attempt: u64_at(payload, 8),
        kind: PartRowKind::from_byte(payload[16]).ok()?,
        body: payload[ROW_HEAD..].to_vec(),
    })
}
