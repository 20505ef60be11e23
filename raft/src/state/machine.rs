//! Owns: the ledger in memory with its log position, and its image on disk.
//!
//! Invariant: ledger, applied position and membership change together under one lock, and one batch of the image
//! holds all three as of one moment. So a restart finds an earlier moment and replays the log from there.
//! Absent: the contents of the ledger, and when the log may be purged; see `compaction`.

mod image;
mod image_writer;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use parking_lot::{Mutex, RwLock};
use rollout_ledger::{Command, Ledger, Reply, UnknownCommand};
use rollout_storage::{ImageStore, RaftLog};
use tokio::sync::{Notify, watch};

use self::image::renew_snapshot;
pub(crate) use self::image::{APPLIED, LoadError, MEMBERSHIP, load_state, meta_of};
pub(crate) use self::image_writer::ImageGuard;
use self::state::check_supported;
pub(crate) use self::state::{State, read};
use crate::config::RaftConfig;
use crate::fatal::stop_process;
use crate::member::ClusterId;
use crate::state::digest::DigestBook;
use crate::state::event_ring::{Compacted, EventPage, EventPosition, EventRing};
use crate::state::stores::{Stores, StoresOpen};
use crate::types::{Entry, LogId};

/// The replicated state of this member. Clones share it.
#[derive(Clone)]
pub(crate) struct Machine {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: ClusterId,
    state: RwLock<State>,
    /// Fsynced before the image changes.
    log: RaftLog,
    image: ImageStore,
    /// The position of the image on disk. Held while anything reads or writes the image as a whole.
    imaged: Arc<tokio::sync::Mutex<Option<LogId>>>,
    /// The same for metrics, plus one; 0 while there is none.
    imaged_next: AtomicU64,
    /// Bytes of commands applied since the image was last written.
    pending_bytes: AtomicU64,
    /// Bytes of records written to the image since the start.
    image_written: AtomicU64,
    /// Snapshots of others installed since the start.
    installed: AtomicU64,
    image_log_bytes: u64,
    /// The cluster versions that this build can run.
    versions: (u32, u32),
    flush_due: Notify,
    digests: DigestBook,
    applied_next: watch::Sender<u64>,
    /// Taken inside `state`, never the other way round.
    events: Mutex<EventRing>,
    /// The index of the last entry that had events.
    event_watch: watch::Sender<u64>,
    // Last: dropped when both stores are closed.
    _open: Arc<StoresOpen>,
}

impl Machine {
    /// Loads the image, or starts with an empty ledger.
    pub(crate) fn load(
        cluster: ClusterId,
        stores: Stores,
        config: &RaftConfig,
    ) -> Result<Self, LoadError> {
        let Stores { log, image, open } = stores;
        let state = load_state(cluster, &image, config.versions)?;
        let imaged = state.applied;
        renew_snapshot(&image, imaged)?;
        let events =
            EventRing::new(next_index(imaged), config.events_bytes_max, config.events_count_max);
        Ok(Self {
            shared: Arc::new(Shared {
                cluster,
                log,
                image,
                imaged_next: AtomicU64::new(next_index(imaged)),
                imaged: Arc::new(tokio::sync::Mutex::new(imaged)),
                pending_bytes: AtomicU64::new(0),
                image_written: AtomicU64::new(0),
                installed: AtomicU64::new(0),
                image_log_bytes: config.image_log_bytes,
                versions: config.versions,
                flush_due: Notify::new(),
                digests: DigestBook::default(),
                applied_next: watch::Sender::new(next_index(imaged)),
                events: Mutex::new(events),
                event_watch: watch::Sender::new(0),
                state: RwLock::new(state),
                _open: open,
            }),
        })
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&self.shared.state.read())
    }

    pub(crate) fn image(&self) -> &ImageStore {
        &self.shared.image
    }

    pub(crate) fn digests(&self) -> &DigestBook {
        &self.shared.digests
    }

    /// One more than the index of the last applied entry, as it changes.
    pub(crate) fn applied_next(&self) -> watch::Receiver<u64> {
        self.shared.applied_next.subscribe()
    }

    /// Up to `max` events at or after `from`.
    pub(crate) fn events(&self, from: EventPosition, max: usize) -> Result<EventPage, Compacted> {
        self.shared.events.lock().read(from, max)
    }

    /// The oldest index whose events are all held, and the one after the last applied.
    pub(crate) fn event_bounds(&self) -> (u64, u64) {
        self.shared.events.lock().bounds()
    }

    /// Changes when there are new events.
    pub(crate) fn watch_events(&self) -> watch::Receiver<u64> {
        self.shared.event_watch.subscribe()
    }

    /// The last index that the image on disk includes.
    pub(crate) fn image_index(&self) -> Option<u64> {
        self.shared.imaged_next.load(Ordering::Acquire).checked_sub(1)
    }

    /// Waits until enough was applied that the image should be written before its interval is over.
    pub(crate) async fn flush_due(&self) {
        self.shared.flush_due.notified().await;
    }

    /// Applies one committed entry; `None` if it is part of the state already.
    pub(crate) fn apply(
        &self,
        entry: &Entry,
        command: Result<Option<Command>, UnknownCommand>,
    ) -> Option<(Vec<Reply>, Option<u64>)> {
        let id = entry.log_id();
        let mut state = self.shared.state.write();
        if state.applied.as_ref().is_some_and(|applied| applied.index() >= id.index()) {
            return None;
        }
        // Skipping it would make this member differ from the others in silence.
        let command = command.unwrap_or_else(|error| stop_process(&error.to_string()));
        let replies = state.step(entry, command);
        let digest = state.ledger.take_digest_request();
        let happened = self.keep_events(&mut state.ledger, id.index());
        let version = state.ledger.version();
        drop(state);
        if let Err(why) = check_supported(version, self.shared.versions) {
            stop_process(&why);
        }
        if let EntryPayload::Normal(command) = &entry.payload {
            self.count_bytes(command.0.len() as u64);
        }
        self.shared.applied_next.send_replace(id.index() + 1);
        if happened {
            self.shared.event_watch.send_replace(id.index());
        }
        Some((replies, digest))
    }

    /// Moves the events of the entry just applied to the ring; true if there are any.
    fn keep_events(&self, ledger: &mut Ledger, index: u64) -> bool {
        let events = ledger.take_events();
        let happened = !events.is_empty();
        self.shared.events.lock().push(index + 1, events, ledger);
        happened
    }

    /// Bytes of records written to the image since the start.
    pub(crate) fn image_written(&self) -> u64 {
        self.shared.image_written.load(Ordering::Relaxed)
    }

    /// Bytes in memory that the image waits to write to table files.
    pub(crate) fn write_buffer_bytes(&self) -> u64 {
        self.shared.image.write_buffer_bytes()
    }

    /// Snapshots of others installed since the start.
    pub(crate) fn installed(&self) -> u64 {
        self.shared.installed.load(Ordering::Relaxed)
    }

    fn count_bytes(&self, bytes: u64) {
        let before = self.shared.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let due = self.shared.image_log_bytes;
        if before < due && before + bytes >= due {
            self.shared.flush_due.notify_one();
        }
    }
}

fn next_index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index() + 1)
}

/// Runs disk work on a thread that may block.
pub(crate) async fn blocking<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime is going away, and this task with it.
        Err(error) if error.is_cancelled() => std::future::pending().await,
        Err(error) => stop_process(&format!("disk work ended without a result: {error}")),
    }
}

#[cfg(test)]
mod tests;
