//! Owns: the Raft log's bytes: one RocksDB with the families `logs` (index, big endian) and `meta`.
//!
//! Invariant: the indexes on disk are contiguous from the one after the purge mark to the last, and a callback given to
//! [`RaftLog::sync`] runs with `Ok` only after everything written before the call is fsynced.
//! Absent: what an entry or a vote means, and any retry: after an error from a method that writes, close the log and
//! open it again. A failed fsync ends the process, because the kernel may have dropped the pages.

mod disk;
mod fsync;
mod janitor;
mod ring;
mod stats;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use parking_lot::{Mutex, RwLock};

use self::disk::Disk;
use self::fsync::FsyncThread;
use self::janitor::Janitor;
use self::ring::Ring;
use self::stats::Counters;
pub use self::stats::{FsyncTimes, LogStats};
use crate::error::StorageError;

/// Runs once, on the fsync thread, in the order of the calls. It must not block.
pub type SyncCallback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The options of a log. `Default` is what a member uses.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Payload bytes of the newest entries kept in memory; reads of these never touch RocksDB.
    pub ring_bytes: usize,
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
        Self {
            ring_bytes: 64 << 20,
            write_buffer_bytes: 128 << 20,
            sync_queue: 8192,
            unsafe_no_fsync: false,
        }
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
    ring: Ring,
}

impl View {
    fn first(&self) -> u64 {
        self.purged.as_ref().map_or(self.origin, |(index, _)| index + 1)
    }

    fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// The index after the last entry.
    fn end(&self) -> u64 {
        if self.is_empty() { self.first() } else { self.ring.end() }
    }
}

impl RaftLog {
    /// Opens the log in `dir`, and creates an empty one if there is none.
    ///
    /// Refuses a log that lost acknowledged writes, that does not begin right after its purge mark, or whose newest
    /// `ring_bytes` contain a hole or a damaged entry. Older damage is found when it is read.
    pub fn open(dir: &Path, options: LogOptions) -> Result<Self, StorageError> {
        let disk = Arc::new(Disk::open(dir, &options)?);
        let purged = disk.purged()?;
        let origin = disk.origin()?;
        let mut view = View { purged, origin, ring: Ring::new(options.ring_bytes, 0) };
        let first = view.first();
        view.ring = Ring::new(options.ring_bytes, first);
        if let Some(last) = disk.bounds(first)? {
            disk.load_tail(first, last, &mut view.ring)?;
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
            let anywhere = view.purged.is_none() && view.is_empty();
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
        let mut bytes = 0;
        let mut view = inner.view.write();
        if let Some(origin) = origin {
            view.origin = origin;
            view.ring.restart(origin);
        }
        for payload in payloads {
            bytes += payload.len() as u64;
            view.ring.push(payload);
        }
        drop(view);
        inner.counters.appended(payloads.len() as u64, bytes);
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
            let (seen, recent, from) = {
                let view = self.inner.view.read();
                let seen = (view.first(), view.end());
                let (from, end) = (from.max(seen.0), end.min(seen.1));
                if from >= end {
                    return Ok(Vec::new());
                }
                // Clone shared handles under the lock, and copy the bytes after it.
                (seen, view.ring.read(from, end, max_bytes), from)
            };
            let old_end = recent.first().map_or(end.min(seen.1), |(index, _)| *index);
            match self.inner.disk.read(from, old_end, max_bytes) {
                Ok(mut entries) => {
                    append_recent(&mut entries, old_end, recent, max_bytes);
                    return Ok(entries);
                }
                // A purge or a truncation ran meanwhile, so the missing entries were removed on purpose.
                Err(error) => {
                    let view = self.inner.view.read();
                    if (view.first(), view.end()) == seen {
                        return Err(error);
                    }
                }
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
        // The ring must always hold the last entry; read it before anything changes.
        let last = match cut.checked_sub(1) {
            Some(last) if cut > first => Some((last, inner.disk.read_one(last)?)),
            _ => None,
        };
        inner.view.write().ring.truncate(cut, last);
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
            view.ring.purge(up_to_inclusive + 1);
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
        LogBounds { purged: view.purged.clone(), last: view.ring.last() }
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

/// Appends entries from memory to those from disk, if those reach up to `boundary` and leave room.
fn append_recent(
    entries: &mut Vec<(u64, Vec<u8>)>,
    boundary: u64,
    recent: Vec<(u64, Arc<[u8]>)>,
    max_bytes: usize,
) {
    let mut bytes = 0usize;
    if let Some((last, _)) = entries.last() {
        if last + 1 != boundary {
            return;
        }
        bytes = entries.iter().map(|(_, payload)| payload.len()).sum();
    }
    for (index, payload) in recent {
        bytes = bytes.saturating_add(payload.len());
        if bytes > max_bytes && !entries.is_empty() {
            return;
        }
        entries.push((index, payload.to_vec()));
    }
}
