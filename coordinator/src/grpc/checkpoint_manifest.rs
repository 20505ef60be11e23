//! Compares a rank's report with the store.
//!
//! *Invariant:* before a report is proposed, its manifest was read back and matches its digest, and every object that
//! the manifest names is in the store and has its length. A manifest has at most [`MANIFEST_BYTES_MAX`] bytes, in the
//! store as in the report, and names at most [`FILES_MAX`] files: decoding makes 88 bytes of an empty file entry, which
//! takes two.
//!
//! Absent: the bytes of those objects. The restoring process compares them, and so does `rolloutctl
//! checkpoint verify`.

use crate::grpc::convert;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use rollout_ledger::RankReport;
use rollout_proto::{ErrorCode, Outcome, RpcError, v1};
use rollout_storage::{BlobError, BlobStore};
use std::collections::BTreeMap;
use tokio::sync::Semaphore;

/// Version of the manifest's message.
const FORMAT: u32 = 1;
/// Objects that are checked concurrently.
const LOOKS: usize = 32;
/// Enough for 6 TB in chunks of 64 MiB.
const MANIFEST_BYTES_MAX: u32 = 4 << 20;
const FILES_MAX: usize = 65_536;
/// Manifests in memory before they are decoded: all ranks of a job report at once, and a store may take 100 ms.
static READING: Semaphore = Semaphore::const_new(32);
/// Manifests that are decoded concurrently: one file may name millions of empty chunks.
static DECODING: Semaphore = Semaphore::const_new(2);

/// Refuses a report whose objects are not durable, belong to another rank, or are smaller than reported.
pub(super) async fn check(
    store: &BlobStore,
    prefix: &str,
    trainer: &str,
    report: &RankReport,
) -> Result<(), RpcError> {
    let digest = &report.manifest.digest;
    let key = key(prefix, digest);
    let unread = |error: BlobError| refused(&error, &format!("the manifest {key} cannot be read"));
    let refused = |why: &str| Err(convert::invalid(format!("the manifest {key} {why}")));
    if report.manifest.bytes > MANIFEST_BYTES_MAX {
        return refused("is longer than 4 MiB");
    }
    // invariant: these semaphores are never closed.
    let reading = READING.acquire().await;
    if store.size(&key).await.map_err(unread)? != u64::from(report.manifest.bytes) {
        return refused("has another length");
    }
    let bytes = store.get(&key, digest).await.map_err(unread)?;
    let decoding = DECODING.acquire().await;
    let Some(manifest) = decoded(bytes) else {
        return refused("is none, or names more than 65,536 files");
    };
    let chunks = || manifest.files.iter().flat_map(|file| &file.chunks);
    let sum: u64 = chunks().map(|chunk| u64::from(chunk.bytes)).sum();
    if manifest.format != FORMAT || manifest.trainer != trainer {
        return refused("is of another version or trainer");
    }
    if sum != report.bytes || chunks().count() != report.objects as usize {
        return refused("names other objects than the report counts");
    }
    let mut named = BTreeMap::new();
    for chunk in chunks() {
        let Ok(digest) = <[u8; 32]>::try_from(chunk.digest.as_ref()) else {
            return refused("names an object by no digest");
        };
        if *named.entry(digest).or_insert(chunk.bytes) != chunk.bytes {
            return refused("names one object with two lengths");
        }
    }
    drop((decoding, reading));
    let looks = named.into_iter().map(|(digest, bytes)| look(store, prefix, digest, bytes));
    futures::stream::iter(looks).buffer_unordered(LOOKS).try_collect().await
}

/// Decodes a manifest; `None` if it is not a message, or names too many files.
pub(super) fn decoded(bytes: Bytes) -> Option<v1::CheckpointManifest> {
    let few = files_in(&bytes).is_some_and(|files| files <= FILES_MAX);
    few.then(|| v1::CheckpointManifest::decode(bytes).ok()).flatten()
}

/// How many files an encoded manifest names, without decoding them; `None` if it is not a message.
fn files_in(mut bytes: &[u8]) -> Option<usize> {
    const FILES: u32 = 4;
    let mut files = 0;
    while !bytes.is_empty() {
        let (tag, wire_type) = prost::encoding::decode_key(&mut bytes).ok()?;
        files += usize::from(tag == FILES);
        let skipped = prost::encoding::DecodeContext::default();
        prost::encoding::skip_field(wire_type, tag, &mut bytes, skipped).ok()?;
    }
    Some(files)
}

/// Refuses an object that is missing, or has another length.
async fn look(
    store: &BlobStore,
    prefix: &str,
    digest: [u8; 32],
    bytes: u32,
) -> Result<(), RpcError> {
    let key = key(prefix, &digest);
    let what = format!("{key}, which the report's manifest names, is not in the store");
    let found = store.size(&key).await.map_err(|error| refused(&error, &what))?;
    match found == u64::from(bytes) {
        true => Ok(()),
        false => {
            Err(convert::invalid(format!("{key} has {found} bytes, the manifest says {bytes}")))
        }
    }
}

fn key(prefix: &str, digest: &[u8; 32]) -> String {
    format!("{prefix}/{}", blake3::Hash::from_bytes(*digest).to_hex())
}

fn refused(error: &BlobError, what: &str) -> RpcError {
    let code = match error.retryable() {
        true => ErrorCode::StoreUnavailable,
        false => ErrorCode::StoreRefused,
    };
    RpcError::new(code, format!("{what}: {error}")).with_outcome(Outcome::NotApplied)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rollout_ledger::BlobRef;
    use std::time::Duration;

    const PREFIX: &str = "training/default/sft/00000001";

    /// Two objects of `t0` and its manifest, of checkpoint 1 of job `sft`, and its report.
    pub(crate) async fn written(store: &BlobStore) -> (Vec<String>, RankReport) {
        let (mut keys, mut chunks) = (Vec::new(), Vec::new());
        for content in [&b"weights"[..], b"optimizer"] {
            let digest = *blake3::hash(content).as_bytes();
            store.put(&key(PREFIX, &digest), content.into()).await.unwrap();
            keys.push(key(PREFIX, &digest));
            chunks
                .push(v1::BlobName { digest: digest.to_vec().into(), bytes: content.len() as u32 });
        }
        // Equal chunks are one object.
        chunks.push(chunks[0].clone());
        let file = v1::CheckpointFile { chunks, ..v1::CheckpointFile::default() };
        let manifest = v1::CheckpointManifest {
            format: FORMAT,
            trainer: "t0".into(),
            step: 7,
            files: vec![file],
        };
        let bytes = manifest.encode_to_vec();
        let digest = *blake3::hash(&bytes).as_bytes();
        let manifest = BlobRef { digest, bytes: bytes.len() as u32 };
        store.put(&key(PREFIX, &digest), bytes.into()).await.unwrap();
        (keys, RankReport { manifest, bytes: 23, objects: 3 })
    }

    async fn put(store: &BlobStore, bytes: Vec<u8>) -> RankReport {
        let digest = *blake3::hash(&bytes).as_bytes();
        let manifest = BlobRef { digest, bytes: bytes.len() as u32 };
        store.put(&key(PREFIX, &digest), bytes.into()).await.unwrap();
        RankReport { manifest, bytes: 0, objects: 0 }
    }

    #[tokio::test]
    async fn a_manifest_that_would_take_much_memory_is_refused_before_it_is_decoded() {
        let store = BlobStore::open(&format!("memory://large-{}", std::process::id())).unwrap();
        let refused = async |report: RankReport| {
            check(&store, PREFIX, "t0", &report).await.unwrap_err().message
        };
        // Each pair of bytes is an empty file.
        let many = put(&store, [0x22, 0].repeat(1 << 20)).await;
        assert!(refused(many).await.contains("more than 65,536 files"));
        let long = put(&store, vec![0; (4 << 20) + 1]).await;
        assert!(refused(long).await.contains("longer than 4 MiB"));
        let mut other = put(&store, [0x22, 0].repeat(8)).await;
        other.manifest.bytes += 1;
        assert!(refused(other).await.contains("another length"));
    }

    #[tokio::test]
    async fn a_report_is_checked_while_the_store_is_slow_for_others() {
        let store = BlobStore::open(&format!("memory://slow-{}", std::process::id())).unwrap();
        let (_, report) = written(&store).await;
        // Stands for two other reports that wait for the store.
        let others = READING.acquire_many(2).await.unwrap();
        let checked = check(&store, PREFIX, "t0", &report);
        let checked = tokio::time::timeout(Duration::from_secs(30), checked).await;
        drop(others);
        checked.expect("it waits for the others").unwrap();
    }

    #[tokio::test]
    async fn a_report_of_what_is_not_in_the_store_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let memory = format!("memory://reports-{}", std::process::id());
        for url in [memory, format!("file://{}", dir.path().display())] {
            let store = BlobStore::open(&url).unwrap();
            let (keys, report) = written(&store).await;
            check(&store, PREFIX, "t0", &report).await.unwrap();
            for (gone, content) in keys.iter().zip([&b"weights"[..], b"optimizer"]) {
                store.delete(gone).await.unwrap();
                let error = check(&store, PREFIX, "t0", &report).await.unwrap_err();
                assert_eq!(error.code, ErrorCode::StoreRefused, "{url}: {error:?}");
                assert!(error.message.contains(gone), "{url}: {error:?}");
                store.put(gone, content[1..].to_vec().into()).await.unwrap();
                let error = check(&store, PREFIX, "t0", &report).await.unwrap_err();
                assert!(error.message.contains("bytes, the manifest says"), "{url}: {error:?}");
                store.delete(gone).await.unwrap();
                store.put(gone, content.into()).await.unwrap();
            }
            check(&store, PREFIX, "t0", &report).await.unwrap();
            assert!(check(&store, PREFIX, "t1", &report).await.is_err(), "{url}: another's");
        }
    }
}
