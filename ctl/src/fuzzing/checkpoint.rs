//! A rank's part of a checkpoint without a cluster, for fuzz targets only.
//!
//! Invariant: the bytes take the same path as those of a trainer that recovers, and of `job checkpoint verify`.
//! Absent: the report of the rank, which a member checks before.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use prost::Message as _;
use rollout_proto::v1;
use rollout_storage::{BlobStore, checkpoint_key, checkpoint_prefix};
use rollout_training::{Restored, restore_rank, verify};
use tokio::runtime::{Builder, Runtime};

const STORE_URL: &str = "memory://fuzz-checkpoints";
const JOB: &str = "fuzz";
const NAMESPACE: &str = "default";

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));
/// The number of the next checkpoint, so that threads share no object.
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// Restores what a rank's manifest names from these objects, and verifies it. The objects supply the chunks in turn,
/// whatever their digests. A file without a digest gets that of its chunks. Returns the number of restored bytes, which
/// is at most the sum of the lengths in the manifest.
///
/// # Errors
/// Why the part is refused.
///
/// # Panics
/// If a restored file has another length than the manifest says, or if only one of restore and verification accepts the
/// part: that is a finding.
pub fn restored_rank(manifest: v1::CheckpointManifest, objects: &[Bytes]) -> Result<u64, String> {
    RUNTIME.block_on(restored(manifest, objects))
}

async fn restored(mut manifest: v1::CheckpointManifest, objects: &[Bytes]) -> Result<u64, String> {
    name_objects(&mut manifest, objects);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let encoded = Bytes::from(manifest.encode_to_vec());
    let store = BlobStore::open(STORE_URL).map_err(|error| error.to_string())?;
    let mut keys = Vec::new();
    for bytes in objects.iter().chain([&encoded]) {
        let key = checkpoint_key(NAMESPACE, JOB, number, blake3::hash(bytes).as_bytes());
        store.put(&key, bytes.clone()).await.map_err(|error| error.to_string())?;
        keys.push(key);
    }
    let digest = blake3::hash(&encoded).as_bytes().to_vec().into();
    let named = v1::BlobName { digest, bytes: encoded.len() as u32 };
    let checkpoint = v1::Checkpoint {
        step: manifest.step,
        store_url: STORE_URL.to_owned(),
        prefix: checkpoint_prefix(NAMESPACE, JOB, number),
        ranks: vec![v1::CheckpointRank { manifest: Some(named), ..Default::default() }],
        ..Default::default()
    };
    let restored = restore_rank(&checkpoint, 0).await.map_err(|error| error.to_string());
    let verified = verify(&checkpoint).await.map_err(|error| error.to_string());
    for key in &keys {
        store.delete(key).await.map_err(|error| error.to_string())?;
    }
    let bytes = restored.map(|restored| checked(&manifest, &restored));
    assert_eq!(bytes, verified, "restore and verification differ");
    bytes
}

/// Names the objects in turn as the chunks of the files. A mutation of bytes keeps no digest.
fn name_objects(manifest: &mut v1::CheckpointManifest, objects: &[Bytes]) {
    let mut objects = objects.iter().cycle();
    for file in &mut manifest.files {
        let mut content = blake3::Hasher::new();
        for chunk in &mut file.chunks {
            let Some(object) = objects.next() else { break };
            chunk.digest = blake3::hash(object).as_bytes().to_vec().into();
            content.update(object);
        }
        if file.digest.is_empty() {
            file.digest = content.finalize().as_bytes().to_vec().into();
        }
    }
}

/// The number of restored bytes.
fn checked(manifest: &v1::CheckpointManifest, restored: &Restored) -> u64 {
    assert_eq!(restored.files.len(), manifest.files.len());
    let files = manifest.files.iter().zip(&restored.files);
    let lengths = files.map(|(file, (name, bytes))| {
        assert_eq!(
            (name, bytes.len() as u64),
            (&file.name, file.bytes),
            "a file of another length"
        );
        file.bytes
    });
    lengths.sum()
}
