//! Owns: writing the image, taking snapshots of it, and replacing it with a received one.
//!
//! Invariant: one task at a time uses the image. The log is fsynced before the image is written or replaced, so that
//! the image on disk is never ahead of the durable log.
//! Absent: the contents of the image; see `image`.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use rollout_storage::{Snapshot, StorageError};
use tokio::sync::OwnedMutexGuard;

use super::image::batch_of;
use super::{LoadError, Machine, blocking, load_state, meta_of, next_index};
use crate::fatal::{stop_after, stop_process};
use crate::types::{LogId, SnapshotMeta};

/// The position of the image on disk, and the right to change it.
pub(crate) type ImageGuard = OwnedMutexGuard<Option<LogId>>;

impl Machine {
    async fn lock_image(&self) -> ImageGuard {
        self.shared.imaged.clone().lock_owned().await
    }

    /// Writes the changes to the image.
    pub(crate) async fn flush(&self) {
        drop(self.flush_locked(self.lock_image().await).await);
    }

    /// The writing thread takes the guard: a caller that is dropped meanwhile does not let a second writer in.
    ///
    /// If the disk refuses, the process ends: the changes drained from the ledger are only in memory then, and no
    /// later image would hold them. The log replays them after a restart. Once the log is closed, the image no longer
    /// changes.
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
            // A conflicting tail has been cut off the log by now. If it came back after a power loss, consensus would
            // treat it as damage at every start.
            shared.log.sync_now()?;
            shared.image.install(staged)?;
            // From now on the received image is the snapshot that this member sends to others.
            shared.image.snapshot()?;
            let state = match load_state(shared.cluster, &shared.image, shared.versions) {
                Err(LoadError::Version(why)) => stop_process(&why),
                loaded => loaded?,
            };
            let applied = state.applied;
            let old = {
                let mut current = shared.state.write();
                let old = std::mem::replace(&mut *current, state);
                shared.events.lock().restart(next_index(applied));
                old
            };
            // A ledger of millions of rows takes a while to drop: not under the lock.
            drop(old);
            // Followers of events are behind the ring now and must learn of it.
            shared.event_watch.send_replace(next_index(applied));
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
