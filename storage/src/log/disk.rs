//! Owns: the log's layout in RocksDB: keys, envelopes, batches.
//!
//! Invariant: the purge mark and the removal that it describes are one batch, and so are the first entry and the
//! index that a log begins with; no crash separates them.
//! Absent: caching, the order of callers, threads.

use std::path::{Path, PathBuf};

use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DBRawIterator, Options, ReadOptions, WriteBatch,
};

use super::LogOptions;
use crate::error::StorageError;
use crate::sync_mark::SyncMark;
use crate::{record, rocks};

/// Payload bytes of the newest entries that are checked when a log is opened.
const CHECKED_BYTES: usize = 1 << 20;
const LOGS: &str = "logs";
const META: &str = "meta";
/// The log's own records in `meta`; callers' keys have the prefix [`USER`].
const PURGED: &[u8] = b"log/purged";
const ORIGIN: &[u8] = b"log/origin";
const USER: &str = "user/";

pub(super) struct Disk {
    db: DB,
    mark: SyncMark,
    dir: PathBuf,
}

impl Disk {
    pub(super) fn open(dir: &Path, options: &LogOptions) -> Result<Self, StorageError> {
        let mut logs = Options::default();
        logs.set_write_buffer_size(options.write_buffer_bytes);
        logs.set_max_write_buffer_number(3);
        logs.set_level_zero_slowdown_writes_trigger(64);
        logs.set_level_zero_stop_writes_trigger(128);
        logs.set_target_file_size_base(64 << 20);
        let mut meta = Options::default();
        meta.set_write_buffer_size(1 << 20);
        let families = vec![
            ColumnFamilyDescriptor::new("default", Options::default()),
            ColumnFamilyDescriptor::new(LOGS, logs),
            ColumnFamilyDescriptor::new(META, meta),
        ];
        let mut base = rocks::base_options();
        // `meta` is hardly ever flushed by itself, and would keep every old write-ahead log from being deleted.
        base.set_max_total_wal_size(options.write_buffer_bytes as u64 * 4);
        let (db, mark) = rocks::open(dir, &mut base, families)?;
        let disk = Self { db, mark, dir: dir.to_owned() };
        for name in [LOGS, META] {
            disk.family(name)?;
        }
        Ok(disk)
    }

    pub(super) fn write_buffer_bytes(&self) -> u64 {
        rocks::write_buffer_bytes(&self.db)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes everything written so far durable.
    pub(super) fn sync(&self) -> Result<(), StorageError> {
        let sequence = self.db.latest_sequence_number();
        self.db.flush_wal(true).map_err(StorageError::rocks(&self.dir))?;
        self.mark.store(sequence)
    }

    pub(super) fn sync_mark(&self) -> Result<(), StorageError> {
        self.mark.sync()
    }

    pub(super) fn append(
        &self,
        first_index: u64,
        payloads: &[Vec<u8>],
        origin: Option<u64>,
    ) -> Result<(), StorageError> {
        let logs = self.family(LOGS)?;
        let mut batch = WriteBatch::default();
        if let Some(origin) = origin {
            batch.put_cf(self.family(META)?, ORIGIN, record::seal(ORIGIN, &origin.to_le_bytes()));
        }
        for (index, payload) in (first_index..).zip(payloads) {
            batch.put_cf(logs, index.to_be_bytes(), record::seal(&index.to_be_bytes(), payload));
        }
        self.write(batch)
    }

    /// Removes the entries of `[cut, end)`.
    pub(super) fn truncate(&self, cut: u64, end: u64) -> Result<(), StorageError> {
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(LOGS)?, cut.to_be_bytes(), end.to_be_bytes());
        self.write(batch)
    }

    /// Removes the entries of `[first, up_to]` out of `[first, end)`, and writes the mark.
    pub(super) fn purge(
        &self,
        first: u64,
        end: u64,
        up_to: u64,
        mark: &[u8],
    ) -> Result<(), StorageError> {
        let mut payload = up_to.to_le_bytes().to_vec();
        payload.extend_from_slice(mark);
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META)?, PURGED, record::seal(PURGED, &payload));
        let until = end.min(up_to.saturating_add(1));
        if first < until {
            batch.delete_range_cf(self.family(LOGS)?, first.to_be_bytes(), until.to_be_bytes());
        }
        self.write(batch)
    }

    /// Deletes files that have only entries of `[first, last]`.
    pub(super) fn delete_files(&self, first: u64, last: u64) -> Result<(), StorageError> {
        self.db
            .delete_file_in_range_cf(self.family(LOGS)?, first.to_be_bytes(), last.to_be_bytes())
            .map_err(StorageError::rocks(&self.dir))
    }

    pub(super) fn purged(&self) -> Result<Option<(u64, Vec<u8>)>, StorageError> {
        let Some(payload) = self.meta_record(PURGED)? else { return Ok(None) };
        let Some((index, mark)) = payload.split_first_chunk() else {
            return Err(StorageError::corrupt(&self.dir, "the purge mark is too short"));
        };
        Ok(Some((u64::from_le_bytes(*index), mark.to_vec())))
    }

    /// The index with which the log begins if nothing was purged.
    pub(super) fn origin(&self) -> Result<u64, StorageError> {
        let Some(payload) = self.meta_record(ORIGIN)? else { return Ok(0) };
        let bytes = payload
            .try_into()
            .map_err(|_| StorageError::corrupt(&self.dir, "the log's first index is malformed"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn put_meta(&self, key: &str, value: &[u8]) -> Result<(), StorageError> {
        let key = user_key(key);
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META)?, &key, record::seal(&key, value));
        self.write(batch)
    }

    pub(super) fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.meta_record(&user_key(key))
    }

    /// The last entry, after checking that the log begins with `first`; `None` if it is empty.
    pub(super) fn last(&self, first: u64) -> Result<Option<(u64, Vec<u8>)>, StorageError> {
        let mut iterator = self.iterate(first, u64::MAX)?;
        iterator.seek_to_first();
        let Some((index, _)) = self.current(&iterator)? else { return Ok(None) };
        if index != first {
            return Err(self.hole(first, index));
        }
        iterator.seek_to_last();
        Ok(self.current(&iterator)?.map(|(index, payload)| (index, payload.to_vec())))
    }

    /// Checks the newest entries of `[first, last]`, and that none is missing among them.
    pub(super) fn check_tail(&self, first: u64, last: u64) -> Result<(), StorageError> {
        let mut iterator = self.iterate(first, u64::MAX)?;
        iterator.seek_to_last();
        let mut checked = 0;
        for expected in (first..=last).rev() {
            match self.current(&iterator)? {
                Some((index, _)) if index != expected => return Err(self.hole(expected, index)),
                None => return Err(self.hole(expected, expected.saturating_add(1))),
                Some((_, payload)) => checked += payload.len(),
            }
            if checked > CHECKED_BYTES {
                break;
            }
            iterator.prev();
        }
        Ok(())
    }

    /// The entries of `[from, end)`, up to `max_bytes` but at least one. All must exist.
    pub(super) fn read(
        &self,
        from: u64,
        end: u64,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, StorageError> {
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        if from >= end {
            return Ok(found);
        }
        let mut bytes = 0usize;
        let mut iterator = self.iterate(from, end)?;
        iterator.seek_to_first();
        for expected in from..end {
            let Some((index, payload)) = self.current(&iterator)? else {
                return Err(self.hole(expected, end));
            };
            if index != expected {
                return Err(self.hole(expected, index));
            }
            bytes = bytes.saturating_add(payload.len());
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push((index, payload.to_vec()));
            iterator.next();
        }
        Ok(found)
    }

    pub(super) fn read_one(&self, index: u64) -> Result<Vec<u8>, StorageError> {
        let mut found = self.read(index, index.saturating_add(1), 0)?;
        found.pop().map(|(_, payload)| payload).ok_or_else(|| self.hole(index, index + 1))
    }

    fn iterate(&self, from: u64, end: u64) -> Result<DBRawIterator<'_>, StorageError> {
        let mut options = ReadOptions::default();
        // Without the bound, a seek would walk the tombstones of everything that was ever purged.
        options.set_iterate_lower_bound(from.to_be_bytes().to_vec());
        if end != u64::MAX {
            options.set_iterate_upper_bound(end.to_be_bytes().to_vec());
        }
        options.fill_cache(false);
        Ok(self.db.raw_iterator_cf_opt(self.family(LOGS)?, options))
    }

    /// The entry at an iterator's position, checked.
    fn current<'a>(
        &self,
        iterator: &'a DBRawIterator<'_>,
    ) -> Result<Option<(u64, &'a [u8])>, StorageError> {
        let Some((key, value)) = iterator.item() else {
            return iterator.status().map(|()| None).map_err(StorageError::rocks(&self.dir));
        };
        let index = key
            .try_into()
            .map(u64::from_be_bytes)
            .map_err(|_| StorageError::corrupt(&self.dir, "a log key is malformed"))?;
        let payload = record::open(key, value)
            .map_err(|error| StorageError::corrupt(&self.dir, format!("entry {index}: {error}")))?;
        Ok(Some((index, payload)))
    }

    fn hole(&self, expected: u64, found: u64) -> StorageError {
        StorageError::corrupt(
            &self.dir,
            format!("entry {expected} is missing, the next one is {found} or none"),
        )
    }

    fn meta_record(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let value = self
            .db
            .get_pinned_cf(self.family(META)?, key)
            .map_err(StorageError::rocks(&self.dir))?;
        let Some(value) = value else { return Ok(None) };
        match record::open(key, &value) {
            Ok(payload) => Ok(Some(payload.to_vec())),
            Err(error) => {
                let key = String::from_utf8_lossy(key);
                Err(StorageError::corrupt(&self.dir, format!("meta record {key}: {error}")))
            }
        }
    }

    fn family(&self, name: &str) -> Result<&ColumnFamily, StorageError> {
        self.db
            .cf_handle(name)
            .ok_or_else(|| StorageError::corrupt(&self.dir, format!("family {name} is missing")))
    }

    /// Passes a batch to RocksDB, without a sync.
    fn write(&self, batch: WriteBatch) -> Result<(), StorageError> {
        self.db.write(batch).map_err(StorageError::rocks(&self.dir))
    }
}

fn user_key(key: &str) -> Vec<u8> {
    let mut full = USER.as_bytes().to_vec();
    full.extend_from_slice(key.as_bytes());
    full
}
