//! From a complete checkpoint back to files, every byte checked.
//!
//! *Invariant:* what is returned has the digests that the manifest names, and the manifest the digest that the ledger
//! names; anything else is an error.

use bytes::{Bytes, BytesMut};
use prost::Message;
use rollout_proto::v1;
use rollout_storage::BlobStore;

use crate::error::TrainError;
use crate::writer::{FORMAT, Files, key};

/// A rank's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Who wrote it.
    pub trainer: String,
    /// Of which step it is.
    pub step: u64,
    /// Names and bytes, as they were written.
    pub files: Files,
}

/// Reads one rank's files.
///
/// # Errors
/// Something is missing, or not what it was.
pub async fn restore_rank(
    checkpoint: &v1::Checkpoint,
    rank: usize,
) -> Result<Restored, TrainError> {
    let store = BlobStore::open(&checkpoint.store_url)?;
    let manifest = manifest_of(&store, checkpoint, rank).await?;
    let mut files = Vec::with_capacity(manifest.files.len());
    for file in &manifest.files {
        files.push((file.name.clone(), read_file(&store, &checkpoint.prefix, file).await?));
    }
    Ok(Restored { trainer: manifest.trainer, step: manifest.step, files })
}

/// Reads everything that a checkpoint names, and answers how many bytes that was.
///
/// # Errors
/// The first thing that is missing, or not what it was.
pub async fn verify(checkpoint: &v1::Checkpoint) -> Result<u64, TrainError> {
    let store = BlobStore::open(&checkpoint.store_url)?;
    let mut bytes = 0;
    for rank in 0..checkpoint.ranks.len() {
        for file in manifest_of(&store, checkpoint, rank).await?.files {
            bytes += read_file(&store, &checkpoint.prefix, &file).await?.len() as u64;
        }
    }
    Ok(bytes)
}

async fn manifest_of(
    store: &BlobStore,
    checkpoint: &v1::Checkpoint,
    rank: usize,
) -> Result<v1::CheckpointManifest, TrainError> {
    let named = checkpoint.ranks.get(rank).and_then(|rank| rank.manifest.as_ref());
    let named =
        named.ok_or_else(|| damaged(format!("the checkpoint has nothing of rank {rank}")))?;
    let bytes = read(store, &checkpoint.prefix, named).await?;
    let manifest = v1::CheckpointManifest::decode(bytes)
        .map_err(|error| damaged(format!("the manifest of rank {rank} cannot be read: {error}")))?;
    if manifest.format != FORMAT || manifest.step != checkpoint.step {
        return Err(damaged(format!("the manifest of rank {rank} is of another version or step")));
    }
    Ok(manifest)
}

async fn read_file(
    store: &BlobStore,
    prefix: &str,
    file: &v1::CheckpointFile,
) -> Result<Bytes, TrainError> {
    let mut content = BytesMut::with_capacity(file.bytes as usize);
    for chunk in &file.chunks {
        content.extend_from_slice(&read(store, prefix, chunk).await?);
    }
    let content = content.freeze();
    let whole = content.clone();
    let found = tokio::task::spawn_blocking(move || blake3::hash(&whole));
    let found = found.await.map_err(|_| TrainError::WriterEnded)?;
    match content.len() as u64 == file.bytes && found.as_bytes()[..] == file.digest[..] {
        true => Ok(content),
        false => Err(damaged(format!("{} is not what was written", file.name))),
    }
}

async fn read(store: &BlobStore, prefix: &str, named: &v1::BlobName) -> Result<Bytes, TrainError> {
    let digest: [u8; 32] =
        named.digest.as_ref().try_into().map_err(|_| damaged("a digest has not 32 bytes"))?;
    Ok(store.get(&key(prefix, &digest), &digest).await?)
}

fn damaged(why: impl Into<String>) -> TrainError {
    TrainError::Damaged(why.into())
}
