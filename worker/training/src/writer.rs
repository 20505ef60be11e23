//! Writes a rank's part of a checkpoint to the store while the training loop continues.
//!
//! *Invariant:* chunks are durable before the manifest that names them is written, and the manifest before it is
//! reported. Every object is named by its blake3 hash; a file store writes under a temporary name, syncs and renames.
//! At most [`IN_FLIGHT`] chunks are in flight at a time. A store that does not answer is retried for as long as a
//! caller waits for the part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use rollout_proto::v1;
use rollout_storage::BlobStore;
use tokio::task::JoinHandle;

use crate::error::TrainError;
use crate::outage::until_answered;

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 20;
/// Chunks that are written at a time.
const IN_FLIGHT: usize = 4;
/// Version of the manifest.
pub(crate) const FORMAT: u32 = 1;

/// A rank's files to save: names and bytes. The bytes are shared, not copied.
pub type Files = Vec<(String, Bytes)>;

/// The part that became durable.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The manifest, the object that names the others.
    pub manifest: v1::BlobName,
    /// Total bytes of the objects that it names.
    pub bytes: u64,
    /// The number of those objects.
    pub objects: u32,
}

/// Writes into one store.
#[derive(Clone, Debug)]
pub struct CheckpointWriter {
    store: BlobStore,
    chunk_bytes: usize,
    /// Whether this writer has cleaned up after killed ones.
    tidied: Arc<AtomicBool>,
}

/// A rank's part while it is written. If it is dropped, the write continues unobserved, but a store that does not
/// answer is retried at most once more.
pub struct Writing {
    task: JoinHandle<Result<Written, TrainError>>,
    wanted: Arc<AtomicBool>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
    }
}

impl Writing {
    /// Waits until everything is durable, however long the store does not answer; a caller with a limit drops the
    /// future.
    ///
    /// # Errors
    /// The store's refusal.
    pub async fn wait(mut self) -> Result<Written, TrainError> {
        (&mut self.task).await.map_err(|_| TrainError::WriterEnded)?
    }
}

impl CheckpointWriter {
    /// A writer into the store with a URL.
    ///
    /// # Errors
    /// The URL names no store.
    pub fn open(store_url: &str) -> Result<Self, TrainError> {
        Ok(Self::of(BlobStore::open(store_url)?, CHUNK_BYTES))
    }

    fn of(store: BlobStore, chunk_bytes: usize) -> Self {
        Self { store, chunk_bytes, tidied: Arc::default() }
    }

    /// Removes the leftovers of killed writers of this job, once.
    async fn tidy(&self, prefix: &str) {
        if self.tidied.swap(true, Ordering::Relaxed) {
            return;
        }
        let job = prefix.rsplit_once('/').map_or(prefix, |(job, _)| job);
        if let Err(error) = self.store.remove_abandoned(job).await {
            tracing::warn!(%error, "cannot remove the leftovers of killed writers");
        }
    }

    /// Starts to write a rank's files under a checkpoint's prefix, and returns at once.
    pub fn begin(&self, checkpoint: &v1::Checkpoint, trainer: &str, files: Files) -> Writing {
        let wanted = Arc::new(AtomicBool::new(true));
        let (writer, prefix) = (self.clone(), checkpoint.prefix.clone());
        let part = Part { writer, prefix, wanted: wanted.clone() };
        let (step, trainer) = (checkpoint.step, trainer.to_owned());
        let task = tokio::spawn(async move {
            part.writer.tidy(&part.prefix).await;
            part.write(step, &trainer, files).await
        });
        Writing { task, wanted }
    }
}

/// A rank's part, as its task sees it.
struct Part {
    writer: CheckpointWriter,
    /// The checkpoint's.
    prefix: String,
    /// Whether a caller waits for it.
    wanted: Arc<AtomicBool>,
}

impl Part {
    async fn write(&self, step: u64, trainer: &str, files: Files) -> Result<Written, TrainError> {
        let mut manifest = v1::CheckpointManifest {
            format: FORMAT,
            trainer: trainer.to_owned(),
            step,
            files: Vec::with_capacity(files.len()),
        };
        let (mut bytes, mut objects) = (0, 0);
        for (name, content) in files {
            let file = self.write_file(name, content).await?;
            bytes += file.bytes;
            objects += file.chunks.len() as u32;
            manifest.files.push(file);
        }
        let manifest = self.put(manifest.encode_to_vec().into()).await?;
        Ok(Written { manifest, bytes, objects })
    }

    async fn write_file(
        &self,
        name: String,
        content: Bytes,
    ) -> Result<v1::CheckpointFile, TrainError> {
        let whole = content.clone();
        let digest = tokio::task::spawn_blocking(move || blake3::hash(&whole));
        let failed = AtomicBool::new(false);
        let starts = (0..content.len()).step_by(self.writer.chunk_bytes);
        let chunks = futures::stream::iter(starts.map(|start| {
            let end = content.len().min(start + self.writer.chunk_bytes);
            self.put_unless(&failed, content.slice(start..end))
        }));
        // Chunks in flight end before the file fails: a dropped upload leaves its parts behind.
        let chunks: Vec<_> = chunks.buffered(IN_FLIGHT).collect().await;
        let chunks = chunks.into_iter().flatten().collect::<Result<Vec<_>, TrainError>>()?;
        let digest = digest.await.map_err(|_| TrainError::WriterEnded)?;
        let digest = digest.as_bytes().to_vec().into();
        Ok(v1::CheckpointFile { name, bytes: content.len() as u64, digest, chunks })
    }

    /// Does nothing once another chunk of the file has failed.
    async fn put_unless(
        &self,
        failed: &AtomicBool,
        bytes: Bytes,
    ) -> Option<Result<v1::BlobName, TrainError>> {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let outcome = self.put(bytes).await;
        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        Some(outcome)
    }

    async fn put(&self, bytes: Bytes) -> Result<v1::BlobName, TrainError> {
        let len = bytes.len() as u32;
        let hashed = bytes.clone();
        let digest = tokio::task::spawn_blocking(move || blake3::hash(&hashed));
        let digest = digest.await.map_err(|_| TrainError::WriterEnded)?;
        let key = key(&self.prefix, digest.as_bytes());
        let wanted = || self.wanted.load(Ordering::Relaxed);
        until_answered(wanted, || self.writer.store.put(&key, bytes.clone())).await?;
        Ok(v1::BlobName { digest: digest.as_bytes().to_vec().into(), bytes: len })
    }
}

/// The key of an object under a checkpoint's prefix.
pub(crate) fn key(prefix: &str, digest: &[u8; 32]) -> String {
    format!("{prefix}/{}", blake3::Hash::from_bytes(*digest).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::{restore_rank, verify};

    fn checkpoint(url: &str, written: &Written) -> v1::Checkpoint {
        let ranks = vec![v1::CheckpointRank {
            trainer: "t0".into(),
            reported: true,
            manifest: Some(written.manifest.clone()),
            bytes: written.bytes,
            objects: written.objects,
        }];
        let (store_url, prefix) = (url.to_owned(), "training/default/sft/00000001".to_owned());
        v1::Checkpoint { step: 7, store_url, prefix, ranks, ..v1::Checkpoint::default() }
    }

    async fn written(url: &str) -> (v1::Checkpoint, Files) {
        let store = BlobStore::open(url).unwrap();
        let writer = CheckpointWriter::of(store, 1000);
        let long: Vec<u8> = (0..4321u32).map(|n| (n / 7) as u8).collect();
        let files: Files = vec![
            ("model/a.bin".into(), long.into()),
            ("empty".into(), Bytes::new()),
            ("optimizer".into(), Bytes::from_static(b"state")),
        ];
        let begun =
            checkpoint(url, &Written { manifest: v1::BlobName::default(), bytes: 0, objects: 0 });
        let written = writer.begin(&begun, "t0", files.clone()).wait().await.unwrap();
        assert_eq!((written.bytes, written.objects), (4326, 6));
        (checkpoint(url, &written), files)
    }

    #[tokio::test]
    async fn restored_files_equal_the_written_ones() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let (checkpoint, files) = written(&url).await;
        let restored = restore_rank(&checkpoint, 0).await.unwrap();
        assert_eq!((restored.step, restored.files), (7, files));
        assert_eq!(verify(&checkpoint).await.unwrap(), 4326);
    }

    #[tokio::test]
    async fn the_first_checkpoint_removes_what_killed_writers_left_and_nothing_of_live_ones() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("training/default/sft/00000000");
        std::fs::create_dir_all(&folder).unwrap();
        let temporary = |name: &str, hours: u64| {
            let file = std::fs::File::create(folder.join(name)).unwrap();
            let changed =
                std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
            file.set_modified(changed).unwrap();
            file
        };
        drop(temporary(".tmp-dead", 2));
        drop(temporary(".tmp-new", 0));
        drop(temporary("object", 2));
        // A stopped process counts as alive.
        let live = temporary(".tmp-live", 2);
        live.try_lock().unwrap();
        let url = format!("file://{}", dir.path().display());
        let (checkpoint, _) = written(&url).await;
        verify(&checkpoint).await.unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".tmp-live", ".tmp-new", "object"]);
        drop(live);
        written(&url).await;
        assert!(!folder.join(".tmp-live").exists());
    }

    #[tokio::test]
    async fn a_checkpoint_that_lacks_bytes_or_has_others_is_found_out() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let (checkpoint, _) = written(&url).await;
        let objects: Vec<_> =
            std::fs::read_dir(dir.path().join(&checkpoint.prefix)).unwrap().collect();
        assert_eq!(objects.len(), 7);
        for object in objects {
            let path = object.unwrap().path();
            let good = std::fs::read(&path).unwrap();
            let mut bad = good.clone();
            bad[0] ^= 1;
            std::fs::write(&path, bad).unwrap();
            assert!(verify(&checkpoint).await.is_err(), "{path:?} has other bytes");
            std::fs::remove_file(&path).unwrap();
            assert!(restore_rank(&checkpoint, 0).await.is_err(), "{path:?} is missing");
            std::fs::write(&path, good).unwrap();
        }
        assert!(restore_rank(&checkpoint, 1).await.is_err(), "there is no rank 1");
        verify(&checkpoint).await.unwrap();
    }
}
