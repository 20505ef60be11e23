//! Restores files from a complete checkpoint and checks every byte.
//!
//! *Invariant:* returned files have the digests that the manifest names, and the manifest has the digest that the
//! ledger names; anything else is an error. A store that does not answer is retried, but not forever.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use prost::Message;
use rollout_proto::v1;
use rollout_storage::BlobStore;

use crate::error::TrainError;
use crate::outage::until_answered;
use crate::writer::{FORMAT, Files, key};

/// How long a store may fail to answer for one object while a rank is restored. Giving up earlier would only restart
/// the rank for the same restore.
const RESTORE_PATIENCE: Duration = Duration::from_secs(600);
/// The same for verification, where a user waits for the result.
const VERIFY_PATIENCE: Duration = Duration::from_secs(30);

/// A rank's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The trainer that wrote it.
    pub trainer: String,
    /// The step of the checkpoint.
    pub step: u64,
    /// Names and bytes, as they were written.
    pub files: Files,
}

/// Reads one rank's files. A store that does not answer is retried for ten minutes; a caller with a shorter limit
/// drops the future.
///
/// # Errors
/// Something is missing or differs from what was written, or the store refused.
pub async fn restore_rank(
    checkpoint: &v1::Checkpoint,
    rank: usize,
) -> Result<Restored, TrainError> {
    let store = Source::open(checkpoint, RESTORE_PATIENCE)?;
    let manifest = manifest_of(&store, checkpoint, rank).await?;
    let mut files = Vec::with_capacity(manifest.files.len());
    for file in &manifest.files {
        files.push((file.name.clone(), store.read_file(file).await?));
    }
    Ok(Restored { trainer: manifest.trainer, step: manifest.step, files })
}

/// Reads everything that a checkpoint names; returns the number of bytes. A store that does not answer is retried for
/// half a minute.
///
/// # Errors
/// The first object that is missing or differs from what was written.
pub async fn verify(checkpoint: &v1::Checkpoint) -> Result<u64, TrainError> {
    let store = Source::open(checkpoint, VERIFY_PATIENCE)?;
    let mut bytes = 0;
    for rank in 0..checkpoint.ranks.len() {
        for file in manifest_of(&store, checkpoint, rank).await?.files {
            bytes += store.read_file(&file).await?.len() as u64;
        }
    }
    Ok(bytes)
}

async fn manifest_of(
    store: &Source<'_>,
    checkpoint: &v1::Checkpoint,
    rank: usize,
) -> Result<v1::CheckpointManifest, TrainError> {
    let named = checkpoint.ranks.get(rank).and_then(|rank| rank.manifest.as_ref());
    let named =
        named.ok_or_else(|| damaged(format!("the checkpoint has nothing of rank {rank}")))?;
    let bytes = store.read(named).await?;
    let manifest = v1::CheckpointManifest::decode(bytes)
        .map_err(|error| damaged(format!("the manifest of rank {rank} cannot be read: {error}")))?;
    if manifest.format != FORMAT || manifest.step != checkpoint.step {
        return Err(damaged(format!("the manifest of rank {rank} is of another version or step")));
    }
    Ok(manifest)
}

/// Memory reserved for a file before its first chunk is read.
const READ_AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The location of a checkpoint's objects.
struct Source<'a> {
    store: BlobStore,
    prefix: &'a str,
    /// How long the store may fail to answer for one object.
    patience: Duration,
}

impl<'a> Source<'a> {
    fn open(checkpoint: &'a v1::Checkpoint, patience: Duration) -> Result<Self, TrainError> {
        let store = BlobStore::open(&checkpoint.store_url)?;
        Ok(Self { store, prefix: &checkpoint.prefix, patience })
    }

    async fn read_file(&self, file: &v1::CheckpointFile) -> Result<Bytes, TrainError> {
        let sum = file.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum::<u64>();
        if sum != file.bytes {
            return Err(damaged(format!("{} has chunks that do not match its length", file.name)));
        }
        // Reserve no more: the size in a manifest may be wrong.
        let mut content = BytesMut::with_capacity(sum.min(READ_AHEAD_BYTES_MAX) as usize);
        for chunk in &file.chunks {
            let bytes = self.read(chunk).await?;
            // Longer chunks would take more memory than the length of the file says, before its digest is compared.
            if bytes.len() as u64 != u64::from(chunk.bytes) {
                return Err(damaged(format!("{} has a chunk of another length", file.name)));
            }
            content.extend_from_slice(&bytes);
        }
        let content = content.freeze();
        let whole = content.clone();
        let found = tokio::task::spawn_blocking(move || blake3::hash(&whole));
        let found = found.await.map_err(|_| TrainError::WriterEnded)?;
        match found.as_bytes()[..] == file.digest[..] {
            true => Ok(content),
            false => Err(damaged(format!("{} differs from what was written", file.name))),
        }
    }

    async fn read(&self, named: &v1::BlobName) -> Result<Bytes, TrainError> {
        let digest: [u8; 32] =
            named.digest.as_ref().try_into().map_err(|_| damaged("a digest is not 32 bytes"))?;
        let (key, began) = (key(self.prefix, &digest), Instant::now());
        let wanted = || began.elapsed() < self.patience;
        Ok(until_answered(wanted, || self.store.get(&key, &digest)).await?)
    }
}

fn damaged(why: impl Into<String>) -> TrainError {
    TrainError::Damaged(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint of one rank whose manifest names this file.
    async fn checkpoint_of(dir: &std::path::Path, file: v1::CheckpointFile) -> v1::Checkpoint {
        let (store_url, prefix) = (format!("file://{}", dir.display()), "training/default/sft/1");
        let files = vec![file];
        let manifest =
            v1::CheckpointManifest { format: FORMAT, step: 7, files, ..Default::default() };
        let bytes = Bytes::from(manifest.encode_to_vec());
        let digest = *blake3::hash(&bytes).as_bytes();
        let store = BlobStore::open(&store_url).expect("a store");
        let named = v1::BlobName { digest: digest.to_vec().into(), bytes: bytes.len() as u32 };
        store.put(&key(prefix, &digest), bytes).await.expect("written");
        let rank = v1::CheckpointRank { manifest: Some(named), ..Default::default() };
        let (prefix, ranks) = (prefix.to_owned(), vec![rank]);
        v1::Checkpoint { store_url, prefix, step: 7, ranks, ..Default::default() }
    }

    #[tokio::test]
    async fn a_manifest_that_claims_more_bytes_than_its_chunks_have_is_refused_before_memory_is_set_aside()
     {
        let dir = tempfile::tempdir().expect("a directory");
        let chunk = v1::BlobName { digest: vec![1; 32].into(), bytes: 4 };
        for bytes in [u64::MAX, 5, 0] {
            let file = v1::CheckpointFile {
                name: "model".into(),
                bytes,
                chunks: vec![chunk.clone()],
                ..Default::default()
            };
            let checkpoint = checkpoint_of(dir.path(), file).await;
            let refused = restore_rank(&checkpoint, 0).await.expect_err("refused").to_string();
            assert_eq!(refused, "model has chunks that do not match its length", "{bytes}");
        }
    }

    #[tokio::test]
    async fn a_chunk_that_is_longer_than_its_manifest_says_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (url, prefix) = (format!("file://{}", dir.path().display()), "training/default/sft/1");
        let object = Bytes::from(vec![7; 1000]);
        let digest = *blake3::hash(&object).as_bytes();
        let store = BlobStore::open(&url).expect("a store");
        store.put(&key(prefix, &digest), object).await.expect("written");
        for (claimed, count) in [(1, 3), (1001, 1)] {
            let chunk = v1::BlobName { digest: digest.to_vec().into(), bytes: claimed };
            let chunks = vec![chunk; count];
            let bytes = u64::from(claimed) * count as u64;
            let file =
                v1::CheckpointFile { name: "model".into(), bytes, chunks, ..Default::default() };
            let checkpoint = checkpoint_of(dir.path(), file).await;
            let refused = restore_rank(&checkpoint, 0).await.expect_err("refused").to_string();
            assert_eq!(refused, "model has a chunk of another length", "{claimed}");
        }
    }

    #[tokio::test]
    async fn chunks_that_claim_terabytes_set_no_memory_aside_for_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let chunk = v1::BlobName { digest: vec![1; 32].into(), bytes: u32::MAX };
        let chunks = vec![chunk; 100_000];
        let bytes = 100_000 * u64::from(u32::MAX);
        let file = v1::CheckpointFile { name: "model".into(), bytes, chunks, ..Default::default() };
        let checkpoint = checkpoint_of(dir.path(), file).await;
        let refused = restore_rank(&checkpoint, 0).await.expect_err("refused").to_string();
        assert!(refused.contains("is missing"), "the first chunk is not there: {refused}");
    }
}
