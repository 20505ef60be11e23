//! Owns: the Raft log's bytes: one RocksDB with the families `logs` (index, big endian) and `meta`.
//!
//! Invariant: the indexes on disk are contiguous from the one after the purge mark to the last, and a callback given to
//! [`RaftLog::sync`] runs with `Ok` only after everything written before the call is fsynced.
//! Absent: what an entry or a vote means, and any retry: after an error from a method that writes, close the log and
//! open it again. A failed fsync ends the process, because the kernel may have dropped the pages.

mod disk;
mod fsync;
mod janitor;
mod stats;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use parking_lot::{Mutex, RwLock};

use self::disk::Disk;
use self::fsync::FsyncThread;
use self::janitor::Janitor;
use self::stats::Counters;
pub use self::stats::{FsyncTimes, LogStats};
use crate::error::StorageError;

/// Runs once, on the fsync thread, in the order of the calls. It must not block.
pub type SyncCallback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The options of a log. `Default` is what a member uses.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Bytes of one memtable. There may be three, so that most entries are purged before they are flushed.
    pub write_buffer_bytes: usize,
    /// Calls that may wait for the fsync thread; further calls block.
    pub sync_queue: usize,
    /// Acknowledge without fsync, which loses acknowledged entries at a power loss. It exists only as the negative
    /// control of the crash test, which must detect the loss; nothing else may set it.
    pub unsafe_no_fsync: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { write_buffer_bytes: 128 << 20, sync_queue: 8192, unsafe_no_fsync: false }
    }
}

/// The bounds of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogBounds {
    /// The last purged index, with the mark that was given to [`RaftLog::purge`].
    pub purged: Option<(u64, Vec<u8>)>,
    /// The last entry with its payload; `None` if everything was purged or nothing was written.
    pub last: Option<(u64, Vec<u8>)>,
}

/// The Raft log. Clones share one log; it closes with [`close`](Self::close) or with the last clone.
#[derive(Clone)]
pub struct RaftLog {
    inner: Arc<Inner>,
}

struct Inner {
    // The threads come first, so that they are joined before the database closes.
    fsync: FsyncThread,
    janitor: Arc<Janitor>,
    disk: Arc<Disk>,
    /// Serializes writers. Readers lock only `view`, and only briefly.
    writer: Mutex<()>,
    view: RwLock<View>,
    counters: Arc<Counters>,
}

/// The state that readers see. It changes before a removal reaches the disk, and after an append has reached it.
struct View {
    purged: Option<(u64, Vec<u8>)>,
    /// The index of the first entry if nothing was ever purged.
    origin: u64,
    last: Option<(u64, Vec<u8>)>,
    /// How often entries were removed: a read during a removal may miss entries that it expects.
    removals: u64,
}

impl View {
    fn first(&self) -> u64 {
        self.purged.as_ref().map_or(self.origin, |(index, _)| index + 1)
    }

    /// The index after the last entry.
    fn end(&self) -> u64 {
        self.last.as_ref().map_or(self.first(), |(index, _)| index + 1)
    }
}

impl RaftLog {
    /// Opens the log in `dir`, and creates an empty one if there is none.
    ///
    /// Refuses a log that lost acknowledged writes, that does not begin right after its purge mark, or whose newest
    /// entries contain a hole or a damaged entry. Older damage is found when it is read.
    pub fn open(dir: &Path, options: LogOptions) -> Result<Self, StorageError> {
        let disk = Arc::new(Disk::open(dir, &options)?);
        let purged = disk.purged()?;
        let origin = disk.origin()?;
        let mut view = View { purged, origin, last: None, removals: 0 };
        let first = view.first();
        if let Some(last) = disk.last(first)? {
            disk.check_tail(first, last.0)?;
            view.last = Some(last);
        }
        let counters = Arc::new(Counters::default());
        let janitor = Arc::new(Janitor::start(&disk)?);
        let fsync = FsyncThread::start(&disk, &janitor, &counters, &options)?;
        let inner = Inner {
            fsync,
            janitor,
            disk,
            writer: Mutex::new(()),
            view: RwLock::new(view),
            counters,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The directory in which the log was opened.
    pub fn dir(&self) -> PathBuf {
        self.inner.disk.dir().to_owned()
    }

    /// Writes entries, readable on return, durable after a [`sync`](Self::sync).
    ///
    /// `first_index` must follow the last entry; a log that never held or purged anything may begin anywhere.
    pub fn append(&self, first_index: u64, payloads: &[Vec<u8>]) -> Result<(), StorageError> {
        if payloads.is_empty() {
            return Ok(());
        }
        let inner = &*self.inner;
        let _writer = inner.writer.lock();
        let origin = {
            let view = inner.view.read();
            let anywhere = view.purged.is_none() && view.last.is_none();
            if !anywhere && first_index != view.end() {
                return Err(StorageError::OutOfOrder {
                    path: inner.disk.dir().to_owned(),
                    expected: view.end(),
                    given: first_index,
                });
            }
            (anywhere && first_index != view.origin).then_some(first_index)
        };
        inner.disk.append(first_index, payloads, origin)?;
        let count = payloads.len() as u64;
        let last = payloads.last().map(|payload| (first_index + count - 1, payload.clone()));
        {
            let mut view = inner.view.write();
            view.origin = origin.unwrap_or(view.origin);
            view.last = last;
        }
        inner.counters.appended(count, payloads.iter().map(|payload| payload.len() as u64).sum());
        Ok(())
    }

    /// Calls `done` when everything written before this call is durable.
    ///
    /// One thread drains the queue, syncs the write-ahead log once and runs the callbacks in order. If the fsync
    /// fails, the callbacks get the error and the process aborts. Blocks while `sync_queue` is full.
    pub fn sync(&self, done: SyncCallback) {
        self.inner.fsync.push(done);
    }

    /// Returns when everything written before this call is durable. Blocks.
    ///
    /// An error means that the log is closed: a failed fsync ends the process.
    pub fn sync_now(&self) -> Result<(), StorageError> {
        let (done, synced) = mpsc::channel();
        // The receiver is alive until the callback has run.
        self.sync(Box::new(move |result| drop(done.send(result))));
        let result = synced.recv().unwrap_or_else(|_| Err(io::Error::other("the log is closed")));
        result.map_err(StorageError::io(self.inner.disk.dir(), "sync"))
    }

    /// The existing entries of `[from, end)`, in order and without gaps, up to `max_bytes` of payload.
    ///
    /// Purged indexes are skipped. If the range has any entry, at least one is returned, however large it is. A hole
    /// or a damaged entry is [`StorageError::Corrupt`].
    pub fn read(
        &self,
        from: u64,
        end: u64,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, StorageError> {
        loop {
            let (removals, from, end) = {
                let view = self.inner.view.read();
                (view.removals, from.max(view.first()), end.min(view.end()))
            };
            match self.inner.disk.read(from, end, max_bytes) {
                // A purge or a truncation ran meanwhile, so the missing entries were removed on purpose.
                Err(_) if self.inner.view.read().removals != removals => {}
                outcome => return outcome,
            }
        }
    }

    /// Removes every entry after `last_kept`; all entries for `None`. Durable with the next [`sync`](Self::sync).
    pub fn truncate_after(&self, last_kept: Option<u64>) -> Result<(), StorageError> {
        let inner = &*self.inner;
        let _writer = inner.writer.lock();
        let (first, end) = {
            let view = inner.view.read();
            (view.first(), view.end())
        };
        let cut = last_kept.map_or(first, |kept| kept.saturating_add(1));
        if cut >= end {
            return Ok(());
        }
        if cut < first {
            return Err(StorageError::OutOfOrder {
                path: inner.disk.dir().to_owned(),
                expected: first,
                given: cut,
            });
        }
        // Read the entry that becomes the last before anything changes.
        let last = match cut.checked_sub(1) {
            Some(last) if cut > first => Some((last, inner.disk.read_one(last)?)),
            _ => None,
        };
        {
            let mut view = inner.view.write();
            view.last = last;
            view.removals += 1;
        }
        inner.disk.truncate(cut, end)
    }

    /// Removes every entry up to and including the given index, which may lie beyond the last, and stores
    /// `purged_mark` as the description of the last removed entry. Durable with the next [`sync`](Self::sync).
    pub fn purge(&self, up_to_inclusive: u64, purged_mark: &[u8]) -> Result<(), StorageError> {
        let inner = &*self.inner;
        let _writer = inner.writer.lock();
        let (first, end) = {
            let view = inner.view.read();
            (view.first(), view.end())
        };
        if inner.view.read().purged.as_ref().is_some_and(|(index, _)| *index >= up_to_inclusive) {
            return Ok(());
        }
        {
            let mut view = inner.view.write();
            view.purged = Some((up_to_inclusive, purged_mark.to_vec()));
            view.last.take_if(|(index, _)| *index <= up_to_inclusive);
            view.removals += 1;
        }
        inner.disk.purge(first, end, up_to_inclusive, purged_mark)?;
        // Whole files may be deleted only when the purge mark that explains their absence is durable.
        let janitor = inner.janitor.clone();
        inner.fsync.push(Box::new(move |result| {
            if result.is_ok() {
                janitor.delete_files(first, up_to_inclusive);
            }
        }));
        Ok(())
    }

    /// The purge mark and the last entry.
    pub fn bounds(&self) -> LogBounds {
        let view = self.inner.view.read();
        LogBounds { purged: view.purged.clone(), last: view.last.clone() }
    }

    /// Writes a small value, in order with appends; readable on return, durable after a [`sync`](Self::sync).
    pub fn put_meta(&self, key: &str, value: &[u8]) -> Result<(), StorageError> {
        let _writer = self.inner.writer.lock();
        self.inner.disk.put_meta(key, value)
    }

    /// Like [`put_meta`](Self::put_meta) and [`sync`](Self::sync) together. On `Err`, `done` was not called.
    pub fn put_meta_durable(
        &self,
        key: &str,
        value: &[u8],
        done: SyncCallback,
    ) -> Result<(), StorageError> {
        self.put_meta(key, value)?;
        self.sync(done);
        Ok(())
    }

    /// The value last written under `key`.
    pub fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.disk.meta(key)
    }

    /// Counters and times since the log was opened.
    pub fn stats(&self) -> LogStats {
        self.inner.counters.snapshot(self.inner.fsync.queued())
    }

    /// Written bytes in memory that are not in a table file yet: at most three times
    /// [`LogOptions::write_buffer_bytes`], and a little for metadata.
    pub fn write_buffer_bytes(&self) -> u64 {
        self.inner.disk.write_buffer_bytes()
    }

    /// Syncs queued writes, runs the callbacks and stops the threads. Later calls of [`sync`](Self::sync) on a clone
    /// get an error; the database itself closes with the last clone.
    pub fn close(self) {
        self.inner.fsync.stop();
        self.inner.janitor.stop();
    }
}

impl std::fmt::Debug for RaftLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftLog").field("dir", &self.inner.disk.dir()).finish_non_exhaustive()
    }
}
