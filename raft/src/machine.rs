//! Owns: the ledger in memory with the log position it stands at, and its image on disk.
//!
//! Invariant: ledger, applied position and membership change together under one lock, and one batch of the image
//! holds all three as of one moment; so a restart finds some earlier moment and replays the log from there. The log is
//! fsynced before the image is written or replaced, so that the image on disk is never ahead of the durable log.
//! Absent: the contents of the ledger, and when the log may be purged; see `compaction`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use parking_lot::{Mutex, RwLock};
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Command, EntryId, Ledger, Reply, UnknownCommand};
use rollout_storage::{ImageBatch, ImageReader, ImageStore, RaftLog, Snapshot, StorageError};
use tokio::sync::{Notify, OwnedMutexGuard, watch};

use crate::codec::{
    decode_log_id, decode_stored_membership, encode_log_id, encode_stored_membership,
};
use crate::config::RaftConfig;
use crate::digest::DigestBook;
use crate::event_ring::{Compacted, EventPage, EventPosition, EventRing};
use crate::fatal::{stop_after, stop_process};
use crate::member::ClusterId;
use crate::records::with_records;
use crate::running::{Stores, StoresOpen};
use crate::types::{Entry, LogId, SnapshotMeta, StoredMembership, log_id, term_of};

pub(crate) const APPLIED: &[u8] = b"raft/applied";
pub(crate) const MEMBERSHIP: &[u8] = b"raft/membership";

/// Why an image cannot become a ledger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the image of the ledger cannot be read: {0}")]
    Ledger(#[from] rollout_ledger::LoadError),
    #[error("the image of the ledger is inconsistent: {0}")]
    Inconsistent(String),
}

/// The position of the image on disk, and the right to change it.
pub(crate) type ImageGuard = OwnedMutexGuard<Option<LogId>>;

/// What changes when an entry is applied.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

impl State {
    /// Applies the entry behind the last one applied, of which [`read`] has made `command`.
    pub(crate) fn step(&mut self, entry: &Entry, command: Option<Command>) -> Vec<Reply> {
        let id = entry.log_id();
        let at = EntryId { index: id.index(), term: term_of(&id) };
        if let EntryPayload::Membership(membership) = &entry.payload {
            self.membership = StoredMembership::new(Some(id), membership.clone());
        }
        let replies = match (&entry.payload, command) {
            (EntryPayload::Normal(bytes), Some(command)) => {
                self.ledger.apply_decoded(at, command, &bytes.0)
            }
            _ => {
                note(&mut self.ledger, at);
                Vec::new()
            }
        };
        self.applied = Some(id);
        replies
    }
}

/// The command of an entry, decoded once and before the state is locked; `None` for an entry that has none.
pub(crate) fn read(entry: &Entry) -> Result<Option<Command>, UnknownCommand> {
    let EntryPayload::Normal(bytes) = &entry.payload else { return Ok(None) };
    let unknown = UnknownCommand { index: entry.log_id().index() };
    Command::decode(&bytes.0).map(Some).ok_or(unknown)
}

/// Refuses a cluster version that this build does not know: what comes next could not be read.
fn known(version: u32, (min, max): (u32, u32)) -> Result<(), String> {
    if (min..=max).contains(&version) {
        return Ok(());
    }
    Err(format!(
        "the cluster is of version {version}, and this build runs {min} to {max}: start another build"
    ))
}

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
    events_told: watch::Sender<u64>,
    // Last: dropped when both stores are closed.
    _open: Arc<StoresOpen>,
}

impl Machine {
    /// Loads what the image holds, or begins an empty ledger.
    pub(crate) fn load(
        cluster: ClusterId,
        stores: Stores,
        config: &RaftConfig,
    ) -> Result<Self, LoadError> {
        let Stores { log, image, open } = stores;
        let state = load_state(cluster, &image)?;
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
                events_told: watch::Sender::new(0),
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
    pub(crate) fn events_told(&self) -> watch::Receiver<u64> {
        self.shared.events_told.subscribe()
    }

    /// The last index that the image on disk includes.
    pub(crate) fn image_index(&self) -> Option<u64> {
        self.shared.imaged_next.load(Ordering::Acquire).checked_sub(1)
    }

    /// Waits until enough was applied that the image should be written before its interval is over.
    pub(crate) async fn flush_due(&self) {
        self.shared.flush_due.notified().await;
    }

    /// Whether this build can run the cluster's version, as the image has it.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        known(self.read(|state| state.ledger.version()), self.shared.versions)
    }

    /// Applies one committed entry; `None` where it is part of the state already.
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
        if let Err(why) = known(version, self.shared.versions) {
            stop_process(&why);
        }
        if let EntryPayload::Normal(command) = &entry.payload {
            self.count_bytes(command.0.len() as u64);
        }
        self.shared.applied_next.send_replace(id.index() + 1);
        if happened {
            self.shared.events_told.send_replace(id.index());
        }
        Some((replies, digest))
    }

    /// Moves the events of the entry just applied to the ring; true where there are any.
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

    async fn lock_image(&self) -> ImageGuard {
        self.shared.imaged.clone().lock_owned().await
    }

    /// Writes what changed to the image.
    pub(crate) async fn flush(&self) {
        drop(self.flush_locked(self.lock_image().await).await);
    }

    /// The guard goes to the thread that writes: a caller that is dropped meanwhile does not let a second writer in.
    ///
    /// Where the disk refuses, the process ends: what was drained from the ledger is in memory alone then, and no later
    /// image would hold it. The log replays it after a restart. Once the log is closed, the image stays what it is.
    async fn flush_locked(&self, mut imaged: ImageGuard) -> ImageGuard {
        let (batch, applied) = {
            let mut state = self.shared.state.write();
            if state.applied == *imaged {
                return imaged;
            }
            self.shared.pending_bytes.store(0, Ordering::Relaxed);
            (batch_of(&mut state), state.applied)
        };
        let shared = self.shared.clone();
        let bytes: usize = batch.puts.iter().map(|(key, value)| key.len() + value.len()).sum();
        let Ok(imaged) = blocking::<_, Infallible>(move || {
            // An entry is applied when a quorum has it, which may be without this member's fsync.
            if let Err(error) = shared.log.sync_now() {
                tracing::info!(%error, "the image is not written: this member stops");
                return Ok(imaged);
            }
            shared.image_written.fetch_add(bytes as u64, Ordering::Relaxed);
            if let Err(error) = shared.image.write(batch) {
                stop_after("the image of the ledger cannot be written", &error);
            }
            *imaged = applied;
            shared.imaged_next.store(next_index(applied), Ordering::Release);
            Ok(imaged)
        })
        .await;
        imaged
    }

    /// Makes a snapshot of the state as of now, or a little later, and returns its metadata.
    pub(crate) async fn snapshot(&self) -> Result<SnapshotMeta, LoadError> {
        let imaged = self.flush_locked(self.lock_image().await).await;
        let image = self.shared.image.clone();
        blocking(move || {
            let snapshot = image.snapshot()?;
            drop(imaged);
            meta_of(&snapshot.open_image()?)
        })
        .await
    }

    /// The state as of now, or a little later, as files for one reader, which go with the handle.
    pub(crate) async fn checkpoint(&self) -> Result<Snapshot, StorageError> {
        let imaged = self.flush_locked(self.lock_image().await).await;
        let image = self.shared.image.clone();
        blocking(move || {
            let checkpoint = image.checkpoint();
            drop(imaged);
            checkpoint
        })
        .await
    }

    /// Replaces the whole state with a received image, on disk first.
    pub(crate) async fn install(
        &self,
        meta: &SnapshotMeta,
        staged: rollout_storage::Staged,
    ) -> Result<(), LoadError> {
        let mut imaged = self.lock_image().await;
        let (shared, expected) = (self.shared.clone(), meta.last_log_id);
        blocking(move || {
            let found = meta_of(&staged.open_image()?)?;
            if found.last_log_id != expected {
                let text =
                    format!("expected {expected:?}, the image holds {:?}", found.last_log_id);
                return Err(LoadError::Inconsistent(text));
            }
            // A conflicting tail is cut off the log by now. If it came back after a power loss, consensus would take it for
            // damage, at every start.
            shared.log.sync_now()?;
            shared.image.install(staged)?;
            // The received image is from now on the snapshot that this member would pass on.
            shared.image.snapshot()?;
            let state = load_state(shared.cluster, &shared.image)?;
            let applied = state.applied;
            if let Err(why) = known(state.ledger.version(), shared.versions) {
                stop_process(&why);
            }
            let old = {
                let mut current = shared.state.write();
                let old = std::mem::replace(&mut *current, state);
                shared.events.lock().restart(next_index(applied));
                old
            };
            // A ledger of millions of rows takes a while to drop: not under the lock.
            drop(old);
            // Whoever follows is behind the ring now and has to learn of it.
            shared.events_told.send_replace(next_index(applied));
            *imaged = applied;
            shared.pending_bytes.store(0, Ordering::Relaxed);
            shared.imaged_next.store(next_index(applied), Ordering::Release);
            shared.applied_next.send_replace(next_index(applied));
            shared.installed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .await
    }

    /// Computes this member's digests as of the entry just applied; see `digest`.
    pub(crate) async fn digest_now(&self, index: u64) {
        let imaged = self.flush_locked(self.lock_image().await).await;
        // It hashes the whole state, for which consensus must not wait.
        let machine = self.clone();
        let digests = move || machine.read(|s| (s.ledger.chain(), s.ledger.state_digest()));
        let Ok((chain, state)) = tokio::task::spawn_blocking(digests).await else { return };
        let image = self.shared.image.clone();
        self.shared.digests.compute(index, chain, state, image, imaged);
    }
}

/// The position 0 belongs to the entry that forms a cluster; for the ledger it is where nothing was applied.
fn note(ledger: &mut Ledger, at: EntryId) {
    if at.index > 0 {
        ledger.note(at);
    }
}

fn next_index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index() + 1)
}

fn batch_of(state: &mut State) -> ImageBatch {
    let delta = state.ledger.drain_dirty();
    let mut puts = delta.puts;
    let applied = state.applied.map(|id| match seeded(Bug::ImageMissesLastEntry) {
        true => log_id(term_of(&id), id.index() + 1),
        false => id,
    });
    if let Some(applied) = &applied {
        puts.push((APPLIED.to_vec(), encode_log_id(applied)));
    }
    puts.push((MEMBERSHIP.to_vec(), encode_stored_membership(&state.membership)));
    ImageBatch { puts, deletes: delta.deletes, delete_prefixes: delta.delete_prefixes }
}

/// The metadata of an image, from its own records.
pub(crate) fn meta_of(image: &ImageReader) -> Result<SnapshotMeta, LoadError> {
    decode_meta(image.get(APPLIED)?, image.get(MEMBERSHIP)?)
}

fn decode_meta(
    applied: Option<Vec<u8>>,
    membership: Option<Vec<u8>>,
) -> Result<SnapshotMeta, LoadError> {
    let bad = |error: crate::codec::CodecError| LoadError::Inconsistent(error.to_string());
    let last_log_id =
        applied.map(|bytes| decode_log_id(Bytes::from(bytes))).transpose().map_err(bad)?;
    let last_membership = membership
        .map(|bytes| decode_stored_membership(Bytes::from(bytes)))
        .transpose()
        .map_err(bad)?
        .unwrap_or_default();
    Ok(SnapshotMeta { last_log_id, last_membership })
}

/// What this member would pass on is as new as its image. Where power failed between the installation of an
/// image and the snapshot of it, the older snapshot is still there, but not the log behind it: consensus takes
/// that for damage, at every start.
fn renew_snapshot(image: &ImageStore, imaged: Option<LogId>) -> Result<(), LoadError> {
    let Some(snapshot) = image.current_snapshot() else { return Ok(()) };
    let taken = meta_of(&snapshot.open_image()?)?.last_log_id;
    if taken < imaged {
        tracing::info!(?taken, ?imaged, "the snapshot is older than the image and is taken again");
        drop(snapshot);
        image.snapshot()?;
    }
    Ok(())
}

pub(crate) fn load_state(cluster: ClusterId, image: &ImageStore) -> Result<State, LoadError> {
    let meta = decode_meta(image.get(APPLIED)?, image.get(MEMBERSHIP)?)?;
    let Some(applied) = meta.last_log_id else {
        let ledger = Ledger::new(cluster.0);
        return Ok(State { ledger, applied: None, membership: meta.last_membership });
    };
    let ledger = with_records(image, Box::new(|| {}), Ledger::load)??;
    if ledger.cluster_id() != cluster.0 {
        let found = ClusterId(ledger.cluster_id());
        let text = format!("the image is of cluster {found}, this member belongs to {cluster}");
        return Err(LoadError::Inconsistent(text));
    }
    if ledger.applied().index != applied.index() && !seeded(Bug::ImageMissesLastEntry) {
        let text = format!(
            "the ledger stands at {}, the log position beside it at {applied}",
            ledger.applied().index
        );
        return Err(LoadError::Inconsistent(text));
    }
    Ok(State { ledger, applied: Some(applied), membership: meta.last_membership })
}

/// Runs disk work where it may block.
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
