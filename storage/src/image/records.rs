//! Owns: reading an image's records, each checked against its key.
//!
//! Invariant: no record with a wrong checksum reaches a caller; a damaged record ends the reading.
//! Absent: writing.

use std::path::{Path, PathBuf};

use rocksdb::{DB, Options, ReadOptions};

use crate::error::StorageError;
use crate::record;

/// An image opened only for reading: a snapshot, or a received image that is not installed.
pub struct ImageReader {
    db: DB,
    dir: PathBuf,
}

impl ImageReader {
    pub(super) fn open(dir: &Path) -> Result<Self, StorageError> {
        let db = DB::open_for_read_only(&Options::default(), dir, false)
            .map_err(StorageError::rocks(dir))?;
        Ok(Self { db, dir: dir.to_owned() })
    }

    /// The value under `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        get(&self.db, &self.dir, key)
    }

    /// Calls `each` with every record in key order until it fails.
    pub fn for_each<E: From<StorageError>>(
        &self,
        each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for_each(&self.db, &self.dir, b"", each)
    }
}

impl std::fmt::Debug for ImageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageReader").field("dir", &self.dir).finish_non_exhaustive()
    }
}

pub(super) fn get(db: &DB, dir: &Path, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
    let Some(value) = db.get_pinned(key).map_err(StorageError::rocks(dir))? else {
        return Ok(None);
    };
    Ok(Some(check(dir, key, &value)?.to_vec()))
}

pub(super) fn for_each<E: From<StorageError>>(
    db: &DB,
    dir: &Path,
    prefix: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut iterator = db.raw_iterator_opt(within(prefix));
    iterator.seek_to_first();
    while let Some((key, value)) = iterator.item() {
        each(key, check(dir, key, value)?)?;
        iterator.next();
    }
    iterator.status().map_err(|error| E::from(StorageError::rocks(dir)(error)))
}

pub(super) fn for_each_key(
    db: &DB,
    dir: &Path,
    prefix: &[u8],
    mut each: impl FnMut(&[u8]),
) -> Result<(), StorageError> {
    let mut iterator = db.raw_iterator_opt(within(prefix));
    iterator.seek_to_first();
    while let Some(key) = iterator.key() {
        each(key);
        iterator.next();
    }
    iterator.status().map_err(StorageError::rocks(dir))
}

/// The smallest key that sorts after every key with this prefix; `None` if there is none.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

fn within(prefix: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(prefix);
    if let Some(end) = after_prefix(prefix) {
        options.set_iterate_upper_bound(end);
    }
    options.fill_cache(false);
    options
}

fn check<'a>(dir: &Path, key: &[u8], value: &'a [u8]) -> Result<&'a [u8], StorageError> {
    record::open(key, value).map_err(|error| {
        StorageError::corrupt(dir, format!("record {}: {error}", key.escape_ascii()))
    })
}
