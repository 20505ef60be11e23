//! Owns: the one thread that makes the log durable, and the order of its callbacks.
//!
//! Invariant: a callback runs with `Ok` after an fsync that began after its `push` had queued it; callbacks run in the
//! order of their pushes. A failed fsync first runs the callbacks with the error and then ends the process: by an abort
//! or, if the disk is full, with an exit status that says so.
//! Absent: lingering. Pushes that arrive during an fsync form the next batch, which is enough grouping.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::disk::Disk;
use super::janitor::Janitor;
use super::stats::Counters;
use super::{LogOptions, SyncCallback};
use crate::error::StorageError;
use crate::space::end_without_space;

/// How far the durable copy of the `SYNCED` mark may lag behind after a power loss.
const MARK_SYNC_EVERY: Duration = Duration::from_secs(1);

pub(super) struct FsyncThread {
    queue: Mutex<Option<SyncSender<SyncCallback>>>,
    queued: Arc<AtomicUsize>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl FsyncThread {
    pub(super) fn start(
        disk: &Arc<Disk>,
        janitor: &Arc<Janitor>,
        counters: &Arc<Counters>,
        options: &LogOptions,
    ) -> Result<Self, StorageError> {
        let (sender, receiver) = sync_channel(options.sync_queue.max(1));
        let queued = Arc::new(AtomicUsize::new(0));
        let syncer = Syncer {
            disk: disk.clone(),
            janitor: janitor.clone(),
            counters: counters.clone(),
            queued: queued.clone(),
            batch_max: options.sync_queue.max(1),
            unsafe_no_fsync: options.unsafe_no_fsync,
        };
        let thread = thread::Builder::new()
            .name("raft-log-fsync".to_owned())
            .spawn(move || syncer.run(&receiver))
            .map_err(StorageError::io(disk.dir(), "start the fsync thread"))?;
        Ok(Self { queue: Mutex::new(Some(sender)), queued, thread: Mutex::new(Some(thread)) })
    }

    /// Queues a callback. After [`stop`](Self::stop), calls it at once with an error.
    pub(super) fn push(&self, done: SyncCallback) {
        let queue = self.queue.lock();
        let Some(sender) = queue.as_ref() else {
            drop(queue);
            return done(Err(io::Error::new(io::ErrorKind::BrokenPipe, "the log is closed")));
        };
        self.queued.fetch_add(1, Ordering::Relaxed);
        if let Err(refused) = sender.send(done) {
            drop(queue);
            (refused.0)(Err(io::Error::other("the fsync thread has ended")));
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Lets the thread finish queued callbacks, and waits for it.
    pub(super) fn stop(&self) {
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A callback may drop the last clone of a log, on this very thread.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the fsync thread of the raft log panicked");
            }
        }
    }
}

impl Drop for FsyncThread {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Syncer {
    disk: Arc<Disk>,
    janitor: Arc<Janitor>,
    counters: Arc<Counters>,
    queued: Arc<AtomicUsize>,
    batch_max: usize,
    unsafe_no_fsync: bool,
}

impl Syncer {
    fn run(self, receiver: &Receiver<SyncCallback>) {
        let mut mark_synced = Instant::now();
        while let Ok(first) = receiver.recv() {
            let mut batch = vec![first];
            while batch.len() < self.batch_max {
                match receiver.try_recv() {
                    Ok(next) => batch.push(next),
                    Err(_) => break,
                }
            }
            let outcome = self.sync();
            self.queued.fetch_sub(batch.len(), Ordering::Relaxed);
            if let Err(error) = outcome {
                fail(batch, &error);
            }
            for done in batch {
                call(done, Ok(()));
            }
            if mark_synced.elapsed() >= MARK_SYNC_EVERY {
                mark_synced = Instant::now();
                self.janitor.sync_mark();
            }
        }
        // After a clean end, a later power loss cannot lower the mark.
        if let Err(error) = self.disk.sync_mark() {
            tracing::warn!(%error, "cannot sync the raft log's mark while closing");
        }
    }

    fn sync(&self) -> Result<(), StorageError> {
        if self.unsafe_no_fsync {
            return Ok(());
        }
        let began = self.counters.sync_began();
        let outcome = self.disk.sync();
        self.counters.sync_ended(began.elapsed());
        outcome
    }
}

/// Runs the callbacks with the error, then ends the process: after a failed fsync the kernel may report the lost pages
/// as clean, so that a retry would succeed without having written anything.
fn fail(batch: Vec<SyncCallback>, error: &StorageError) -> ! {
    tracing::error!(%error, "fsync of the raft log failed, ending the process");
    for done in batch {
        call(done, Err(io::Error::other(error.to_string())));
    }
    if error.is_no_space() {
        end_without_space(error);
    }
    std::process::abort();
}

/// Runs one callback. A panic would silently stop every later acknowledgment, so it ends the process instead.
fn call(done: SyncCallback, result: io::Result<()>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("a callback of the raft log's fsync panicked, ending the process");
        std::process::abort();
    }
}
