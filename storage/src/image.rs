//! Owns: the ledger's image, a second RocksDB of small records, and its snapshots.
//!
//! Invariant: a batch is applied as a whole or not at all, also after a power loss; the file `CURRENT` names one
//! complete image at every moment, so an interrupted installation leaves the old image or the new one.
//! Absent: what records mean, and when to write or to take a snapshot.

mod layout;
mod manifest;
mod reclaim;
mod records;
mod snapshot;
mod staging;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{DB, WriteBatch, WriteOptions};

use self::layout::Layout;
pub use self::manifest::{Manifest, ManifestFile};
pub use self::reclaim::Reclaim;
use self::reclaim::Removed;
pub use self::records::ImageReader;
pub use self::snapshot::Snapshot;
pub use self::staging::{Staged, Staging};
use crate::error::StorageError;
use crate::sync_mark::SyncMark;
use crate::{durable, record, rocks};

/// Changes that take effect together: first `delete_prefixes`, then `deletes`, then `puts`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageBatch {
    /// Records to write: key, value.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys to remove.
    pub deletes: Vec<Vec<u8>>,
    /// Prefixes of keys to remove; the empty prefix removes everything.
    pub delete_prefixes: Vec<Vec<u8>>,
}

/// The live image and its latest snapshot. Clones share both, and see an installed image at the same moment.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    /// Held for writing only while an image is being installed.
    live: RwLock<Live>,
    /// Held while a snapshot is taken.
    taking: Mutex<()>,
    /// The latest snapshot. Locked only for a moment, because consensus reads it.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    /// Ranges that were removed by prefix and may still take space in tables.
    removed: Mutex<Removed>,
}

struct Live {
    /// Shared with a running reclaim, so that an installation need not wait for it.
    db: Arc<DB>,
    mark: SyncMark,
    dir: PathBuf,
}

impl ImageStore {
    /// Opens the image below `root`, and creates an empty one if there is none. Removes leftovers of interrupted
    /// installations and snapshots.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        let layout = Layout::open(root)?;
        let dir = match layout.current()? {
            Some(dir) => dir,
            None => layout.create_first()?,
        };
        let (db, mark) = open_image(&dir)?;
        let removed = Removed::before(&db).map_err(StorageError::rocks(&dir))?;
        layout.remove_leftovers(&dir)?;
        let snapshot = layout.latest_snapshot()?.map(|dir| Arc::new(Snapshot::new(dir)));
        Ok(Self {
            inner: Arc::new(Inner {
                layout,
                live: RwLock::new(Live { db: Arc::new(db), mark, dir }),
                taking: Mutex::new(()),
                snapshot: Mutex::new(snapshot),
                removed: Mutex::new(removed),
            }),
        })
    }

    /// The directory in which the store was opened.
    pub fn root(&self) -> &Path {
        self.inner.layout.root()
    }

    /// Applies a batch, atomically; durable on return. After an error the store must be opened again.
    pub fn write(&self, batch: ImageBatch) -> Result<(), StorageError> {
        let live = self.inner.live.read();
        let mut changes = WriteBatch::default();
        for prefix in &batch.delete_prefixes {
            delete_prefix(&live, &mut changes, prefix)?;
        }
        for key in &batch.deletes {
            changes.delete(key);
        }
        for (key, value) in &batch.puts {
            changes.put(key, record::seal(key, value));
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        live.db.write_opt(changes, &options).map_err(StorageError::rocks(&live.dir))?;
        if !batch.delete_prefixes.is_empty() {
            let mut removed = self.inner.removed.lock();
            batch.delete_prefixes.iter().for_each(|prefix| removed.add(prefix));
        }
        // The number may include another writer's batch, because the sync covered everything before it.
        live.mark.store(live.db.latest_sequence_number())
    }

    /// The value under `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let live = self.inner.live.read();
        records::get(&live.db, &live.dir, key)
    }

    /// Calls `each` with every record in key order until it fails. Every record is checked; a damaged one ends the
    /// iteration with [`StorageError::Corrupt`]. An installation waits meanwhile.
    pub fn for_each<E: From<StorageError>>(
        &self,
        each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.for_each_prefix(b"", each)
    }

    /// Like [`for_each`](Self::for_each), for the keys that start with `prefix`.
    pub fn for_each_prefix<E: From<StorageError>>(
        &self,
        prefix: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let live = self.inner.live.read();
        records::for_each(&live.db, &live.dir, prefix, each)
    }

    /// Takes a snapshot of everything written so far, with hard links and without copying data. It replaces the
    /// previous snapshot, whose files are removed with its last handle.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>, StorageError> {
        let _taking = self.inner.taking.lock();
        let (temporary, finished) = self.inner.layout.next_snapshot();
        {
            let live = self.inner.live.read();
            Checkpoint::new(&*live.db)
                .and_then(|checkpoint| checkpoint.create_checkpoint(&temporary))
                .map_err(StorageError::rocks(&live.dir))?;
        }
        for name in manifest::database_files(&temporary)? {
            durable::sync_file(&temporary.join(name))?;
        }
        durable::sync_dir(&temporary)?;
        durable::rename(&temporary, &finished)?;
        let snapshot = Arc::new(Snapshot::new(finished));
        let previous = self.inner.snapshot.lock().replace(snapshot.clone());
        if let Some(previous) = previous {
            previous.retire();
        }
        Ok(snapshot)
    }

    /// A snapshot of everything written so far for one reader: hard links, which are removed with the handle. The
    /// latest snapshot stays unchanged.
    pub fn checkpoint(&self) -> Result<Snapshot, StorageError> {
        let (temporary, _) = self.inner.layout.next_snapshot();
        let live = self.inner.live.read();
        Checkpoint::new(&*live.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(&temporary))
            .map_err(StorageError::rocks(&live.dir))?;
        let checkpoint = Snapshot::new(temporary);
        checkpoint.retire();
        Ok(checkpoint)
    }

    /// The latest snapshot, possibly from before a restart.
    pub fn current_snapshot(&self) -> Option<Arc<Snapshot>> {
        self.inner.snapshot.lock().clone()
    }

    /// Written bytes in memory that are not in a table file yet: at most three times 16 MiB.
    pub fn write_buffer_bytes(&self) -> u64 {
        rocks::write_buffer_bytes(&self.inner.live.read().db)
    }

    /// Starts receiving an image from another member.
    pub fn stage(&self) -> Result<Staging, StorageError> {
        Staging::create(self.inner.layout.next_staging())
    }

    /// Makes a received image the live one. After a crash at any point, the old or the new one is live; after an
    /// error, the old one still is. Waits for running reads and writes.
    pub fn install(&self, staged: Staged) -> Result<(), StorageError> {
        let dir = self.inner.layout.next_image();
        staged.move_to(&dir)?;
        let mut live = self.inner.live.write();
        let opened = open_image(&dir).and_then(|(db, mark)| {
            let removed = Removed::before(&db).map_err(StorageError::rocks(&dir))?;
            self.inner.layout.point_to(&dir).map(|()| (db, mark, removed))
        });
        match opened {
            Ok((db, mark, removed)) => {
                let old = std::mem::replace(&mut *live, Live { db: Arc::new(db), mark, dir });
                drop(live);
                *self.inner.removed.lock() = removed;
                let old_dir = old.dir.clone();
                // A running reclaim of the old image would write files into a directory that is being removed.
                old.db.cancel_all_background_work(true);
                drop(old);
                self.inner.layout.remove_image(&old_dir);
                Ok(())
            }
            Err(error) => {
                drop(live);
                self.inner.layout.remove_image_unless_current(&dir);
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for ImageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageStore").field("root", &self.root()).finish_non_exhaustive()
    }
}

/// The rate at which flushes and merges together write tables.
const TABLE_BYTES_PER_SECOND: i64 = 64 << 20;

fn open_image(dir: &Path) -> Result<(DB, SyncMark), StorageError> {
    let mut options = rocks::base_options();
    // The ledger is in memory anyway; these buffers only hold data until its table file is written.
    options.set_write_buffer_size(16 << 20);
    options.set_max_write_buffer_number(3);
    options.set_target_file_size_base(64 << 20);
    options.set_max_total_wal_size(128 << 20);
    // Write merged tables at an even rate and sync them as they grow, so that the log's fsyncs do not wait behind
    // them.
    options.set_ratelimiter(TABLE_BYTES_PER_SECOND, 100_000, 10);
    options.set_bytes_per_sync(1 << 20);
    let family = rocksdb::ColumnFamilyDescriptor::new("default", options.clone());
    rocks::open(dir, &mut options, vec![family])
}

fn delete_prefix(live: &Live, changes: &mut WriteBatch, prefix: &[u8]) -> Result<(), StorageError> {
    if let Some(end) = records::after_prefix(prefix) {
        changes.delete_range(prefix, &end);
        return Ok(());
    }
    // No key sorts after these, so the range has no end.
    records::for_each_key(&live.db, &live.dir, prefix, |key| changes.delete(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn the_latest_snapshot_is_there_while_the_next_one_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = ImageStore::open(dir.path()).expect("an image");
        let first = image.snapshot().expect("a snapshot");
        // The next snapshot waits here for the live image.
        let live = image.inner.live.write();
        let taking = image.clone();
        let next = std::thread::spawn(move || taking.snapshot());
        let since = Instant::now();
        while !image.inner.taking.is_locked() {
            assert!(since.elapsed() < Duration::from_secs(60), "it is never taken");
            std::thread::yield_now();
        }
        let (said, latest) = mpsc::channel();
        let asks = image.clone();
        std::thread::spawn(move || said.send(asks.current_snapshot()));
        let latest = latest.recv_timeout(Duration::from_secs(10));
        drop(live);
        let next = next.join().expect("it ends").expect("a snapshot");
        let latest = latest.expect("it is there at once").expect("one was taken");
        assert_eq!(latest.dir(), first.dir());
        assert_ne!(latest.dir(), next.dir());
    }
}
