//! Owns: reclaiming the disk space of records that were removed from an image by prefix.
//!
//! Removing a prefix writes one small record that hides all records with that prefix in the tables. RocksDB merges both
//! when enough tables have gathered, which may never happen after the last run of the day.
//! Invariant: reads see the same records before, during and after. Only tables that may hold removed records are
//! rewritten, and only if the disk has room for a second copy of them all.
//! Absent: when it happens, and the latest snapshot, whose links keep the old tables until the next is taken.

use std::collections::BTreeSet;

use rocksdb::{BottommostLevelCompaction, CompactOptions, DB, LiveFile};

use super::{ImageStore, records};
use crate::error::StorageError;
use crate::space::space;

/// Ranges that are remembered individually; beyond them everything is merged.
const RANGES_MAX: usize = 64;
/// Free space that remains on the disk besides the second copy.
const SPARE_BYTES: u64 = 16 << 20;

/// The outcome of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// Nothing was removed by prefix.
    Nothing,
    /// The tables no longer have removed records. `before_bytes` excludes the write buffer, which had no table yet.
    Done {
        /// Bytes of all tables before.
        before_bytes: u64,
        /// Bytes of all tables after.
        after_bytes: u64,
    },
    /// The disk has no room for a second copy of all tables. The reclaim is still due.
    NoRoom {
        /// Bytes of all tables.
        table_bytes: u64,
    },
    /// RocksDB left tables unmerged; its own log says why. The reclaim is still due.
    Unmerged,
}

/// Ranges that were removed by prefix, and may still take space in tables.
#[derive(Debug, Default)]
pub(super) struct Removed {
    /// From the first key to the one after the last.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// Merge everything, because there are too many ranges, or unknown ones.
    everything: bool,
}

impl Removed {
    /// The ranges that were removed before the image was opened: unknown, unless its tables have no deletions.
    pub(super) fn before(db: &DB) -> Result<Self, rocksdb::Error> {
        let everything = db.live_files()?.iter().any(|table| table.num_deletions > 0);
        Ok(Self { ranges: Vec::new(), everything })
    }

    pub(super) fn add(&mut self, prefix: &[u8]) {
        match records::after_prefix(prefix) {
            Some(end) => {
                self.join(Self { ranges: vec![(prefix.to_vec(), end)], everything: false })
            }
            None => self.everything = true,
        }
    }

    fn join(&mut self, other: Self) {
        self.ranges.extend(other.ranges);
        self.everything |= other.everything || self.ranges.len() > RANGES_MAX;
        if self.everything {
            self.ranges.clear();
        }
    }

    fn is_nothing(&self) -> bool {
        self.ranges.is_empty() && !self.everything
    }

    /// Whether the table may have removed records, or the markers that hide them.
    fn concerns(&self, table: &LiveFile) -> bool {
        let first = table.start_key.as_deref().unwrap_or_default();
        let last = table.end_key.as_deref().unwrap_or_default();
        let meets = |(start, end): &(Vec<u8>, Vec<u8>)| first < &end[..] && &start[..] <= last;
        self.everything || self.ranges.iter().any(meets)
    }
}

impl ImageStore {
    /// Whether [`reclaim`](Self::reclaim) has anything to do.
    pub fn reclaim_due(&self) -> bool {
        !self.inner.removed.lock().is_nothing()
    }

    /// Merges the tables, and the write buffer, without removed records. Blocks while it rewrites them; reads, writes,
    /// snapshots and installations continue meanwhile.
    pub fn reclaim(&self) -> Result<Reclaim, StorageError> {
        // Take the ranges first, so that what is removed or installed from now on is due again.
        let removed = std::mem::take(&mut *self.inner.removed.lock());
        if removed.is_nothing() {
            return Ok(Reclaim::Nothing);
        }
        let outcome = self.merge(&removed);
        if !matches!(outcome, Ok(Reclaim::Done { .. })) {
            self.inner.removed.lock().join(removed);
        }
        outcome
    }

    fn merge(&self, removed: &Removed) -> Result<Reclaim, StorageError> {
        let (db, dir) = {
            let live = self.inner.live.read();
            (live.db.clone(), live.dir.clone())
        };
        let tables = || db.live_files().map_err(StorageError::rocks(&dir));
        let before = tables()?;
        let table_bytes = bytes(&before);
        let room = space(&dir).map_err(StorageError::io(&dir, "ask for the room of"))?;
        if room.free_bytes < table_bytes + SPARE_BYTES {
            return Ok(Reclaim::NoRoom { table_bytes });
        }
        let mut options = CompactOptions::default();
        // The tables of the last level are the ones with removed records.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        options.set_exclusive_manual_compaction(false);
        if removed.everything {
            db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        }
        for (start, end) in &removed.ranges {
            db.compact_range_opt(Some(start), Some(end), &options);
        }
        // RocksDB does not report whether the merge failed.
        let after = tables()?;
        let hiding =
            before.iter().filter(|table| table.num_deletions > 0 && removed.concerns(table));
        let hiding: BTreeSet<&str> = hiding.map(|table| &*table.name).collect();
        if after.iter().any(|table| hiding.contains(&*table.name)) {
            return Ok(Reclaim::Unmerged);
        }
        Ok(Reclaim::Done { before_bytes: table_bytes, after_bytes: bytes(&after) })
    }

    /// Makes a running [`reclaim`](Self::reclaim) end soon. For a store that will not be written any more.
    pub fn stop_reclaiming(&self) {
        self.inner.live.read().db.cancel_all_background_work(false);
    }
}

fn bytes(tables: &[LiveFile]) -> u64 {
    tables.iter().map(|table| table.size as u64).sum()
}
