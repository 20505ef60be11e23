//! Owns: a cache of recently read parts.
//!
//! Invariant: the cache holds at most the bound, besides parts in use. A part that several segments need at once is
//! fetched once, and every part has the requested digest.
//! Absent: which rows of a part count.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rollout_proto::v1;
use rollout_storage::{BLOB_BYTES_MAX, BlobError, BlobStore, FormatError, Part};
use tokio::sync::OnceCell;

use crate::retries::retried;

/// Bytes of cached parts.
pub const CACHE_BYTES: u64 = 256 << 20;

/// Why a part, or a segment, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error(transparent)]
    Store(#[from] BlobError),
    /// Its bytes have the right digest and the wrong format.
    #[error("object {key}: {source}")]
    Format {
        /// The object.
        key: String,
        source: FormatError,
    },
    /// The ledger's digest has another length than 32 bytes.
    #[error("object {key}: the ledger has no digest of it")]
    Digest {
        /// The object.
        key: String,
    },
}

/// The digest in a reference.
pub fn digest_of(blob: &v1::BlobRef) -> Result<[u8; 32], ObjectError> {
    let digest = <[u8; 32]>::try_from(&blob.digest[..]);
    digest.map_err(|_| ObjectError::Digest { key: blob.key.clone() })
}

/// Reads an object, with retries for transient errors.
pub async fn fetch(store: &BlobStore, key: &str, digest: &[u8; 32]) -> Result<Bytes, BlobError> {
    retried(|| store.get(key, digest)).await
}

/// Parts by digest; the least recently used one is evicted first.
#[derive(Debug)]
pub struct PartCache {
    store: BlobStore,
    bytes_max: u64,
    fetched: AtomicU64,
    kept: Mutex<CachedParts>,
}

type Cell = Arc<OnceCell<Part>>;

#[derive(Debug, Default)]
struct CachedParts {
    bytes: u64,
    uses: u64,
    entries: HashMap<[u8; 32], (Cell, u64, u64)>,
    /// By last use.
    order: BTreeMap<u64, [u8; 32]>,
}

impl PartCache {
    /// Keeps up to `bytes_max` bytes.
    pub fn new(store: BlobStore, bytes_max: u64) -> Self {
        Self { store, bytes_max, fetched: AtomicU64::new(0), kept: Mutex::default() }
    }

    /// Parts fetched so far.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// A part, from memory or from the store.
    pub async fn get(&self, blob: &v1::BlobRef) -> Result<Part, ObjectError> {
        let digest = digest_of(blob)?;
        let cell = self.kept.lock().touch(digest, blob.bytes, self.bytes_max);
        let part = cell.get_or_try_init(|| async {
            let bytes = fetch(&self.store, &blob.key, &digest).await?;
            self.fetched.fetch_add(1, Ordering::Relaxed);
            Part::decode(bytes)
                .map_err(|source| ObjectError::Format { key: blob.key.clone(), source })
        });
        Ok(part.await?.clone())
    }
}

impl CachedParts {
    fn touch(&mut self, digest: [u8; 32], bytes: u64, bytes_max: u64) -> Cell {
        self.uses += 1;
        // No writer makes a larger one, whatever the list claims.
        let bytes = bytes.min(BLOB_BYTES_MAX);
        let used = self.uses;
        if let Some((cell, _, last)) = self.entries.get_mut(&digest) {
            self.order.remove(last);
            *last = used;
            self.order.insert(used, digest);
            return cell.clone();
        }
        let cell = Cell::default();
        self.entries.insert(digest, (cell.clone(), bytes, used));
        self.order.insert(used, digest);
        self.bytes += bytes;
        while self.bytes > bytes_max && self.entries.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some((_, bytes, _)) = self.entries.remove(&oldest) {
                self.bytes -= bytes;
            }
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use rollout_storage::{PartRow, PartRowKind, PartWriter};

    use super::*;

    #[tokio::test]
    async fn parts_are_fetched_once_while_they_fit() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
        let mut blobs = Vec::new();
        for row in 0..4 {
            let mut writer = PartWriter::new();
            let kind = PartRowKind::Completed;
            writer.push(PartRow { row, attempt: 1, kind, body: &[b'x'; 1000] }).unwrap();
            let blob = store.put(&format!("p{row}"), writer.finish()).await.unwrap();
            let digest = blob.digest.to_vec().into();
            blobs.push(v1::BlobRef { key: blob.key, digest, bytes: blob.len });
        }
        let cache = PartCache::new(store.clone(), 2500);
        for turn in [0, 1, 0, 1, 2, 0, 1] {
            let part = cache.get(&blobs[turn]).await.unwrap();
            assert_eq!(part.row(0).unwrap().row, turn as u64);
        }
        // 2 evicted 0, 0 then 1, 1 then 2.
        assert_eq!(cache.fetched(), 5);
        assert!(cache.kept.lock().bytes <= 2500);
        std::fs::write(dir.path().join("p3"), b"changed").unwrap();
        let error = cache.get(&blobs[3]).await.unwrap_err();
        assert!(matches!(error, ObjectError::Store(BlobError::Corrupt { .. })), "{error}");
    }
}
