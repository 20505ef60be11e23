//! Owns: input segments in memory, shared by all slots.
//!
//! Invariant: at most the configured bytes are kept, evicted least recently used first. Concurrent requests for one
//! segment cause one fetch. A returned segment was verified against its digest and decodes.
//! Absent: retries. A caller that may wait for an unavailable store asks again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore, SEGMENT_BYTES_MAX, Segment};
use tokio::sync::OnceCell;

/// Why a segment cannot be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum SegmentError {
    /// It is missing, corrupt or not a segment, and needs an operator.
    #[error("segment {number}: {reason}")]
    Unreadable { number: u32, code: &'static str, reason: String },
    /// The store refuses to serve it: the segment may be intact, but the refusal needs an operator.
    #[error("segment {number}: {reason}")]
    Refused { number: u32, reason: String },
    /// The store may answer later.
    #[error("segment {number}: {reason}")]
    Unavailable { number: u32, reason: String },
}

type Cell = Arc<OnceCell<Segment>>;
type Key = (String, [u8; 32]);

#[derive(Debug)]
pub(crate) struct SegmentCache {
    bytes_max: usize,
    clock: AtomicU64,
    entries: Mutex<HashMap<Key, Entry>>,
}

#[derive(Debug)]
struct Entry {
    cell: Cell,
    bytes: usize,
    used: u64,
}

impl SegmentCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, clock: AtomicU64::new(0), entries: Mutex::default() }
    }

    /// The segment, from memory or from the store.
    pub(crate) async fn get(
        &self,
        store: &BlobStore,
        wanted: &v1::SegmentRef,
    ) -> Result<Segment, SegmentError> {
        let unreadable =
            |code, reason: String| SegmentError::Unreadable { number: wanted.number, code, reason };
        let named = wanted.blob.as_ref().and_then(|blob| {
            <[u8; 32]>::try_from(&blob.digest[..]).ok().map(|digest| (blob, digest))
        });
        let Some((blob, digest)) = named else {
            return Err(unreadable("SEGMENT_REF", "the grant does not name its object".into()));
        };
        let key = (store.url().to_owned(), digest);
        // No writer makes a larger one, whatever the grant claims.
        let bytes = blob.bytes.min(SEGMENT_BYTES_MAX as u64);
        let cell = self.cell(&key, bytes as usize);
        let fetch = || async {
            let bytes = store.get(&blob.key, &digest).await.map_err(|error| match error {
                BlobError::Missing { .. } => unreadable("SEGMENT_MISSING", error.to_string()),
                // No writer makes a larger one.
                BlobError::Corrupt { .. } | BlobError::TooLarge { .. } => {
                    unreadable("SEGMENT_CORRUPT", error.to_string())
                }
                BlobError::Key { .. } => unreadable("SEGMENT_REF", error.to_string()),
                error if error.retryable() => {
                    SegmentError::Unavailable { number: wanted.number, reason: error.to_string() }
                }
                error => SegmentError::Refused { number: wanted.number, reason: error.to_string() },
            })?;
            Segment::decode(bytes)
                .map_err(|error| unreadable("SEGMENT_CORRUPT", format!("{}: {error}", blob.key)))
        };
        let fetched = cell.get_or_try_init(fetch).await.cloned();
        if fetched.is_err() {
            self.remove_failed(&key, &cell);
        }
        fetched
    }

    fn cell(&self, key: &Key, bytes: usize) -> Cell {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(key) {
            entry.used = used;
            return entry.cell.clone();
        }
        let mut total: usize = entries.values().map(|entry| entry.bytes).sum();
        while total + bytes > self.bytes_max {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            total -= entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
        let cell = Cell::default();
        entries.insert(key.clone(), Entry { cell: cell.clone(), bytes, used });
        cell
    }

    /// A failure is not cached, so the next caller tries again.
    fn remove_failed(&self, key: &Key, cell: &Cell) {
        let mut entries = self.entries.lock();
        let same = entries.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.cell, cell));
        if same && !cell.initialized() {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_storage::{SegmentWriter, segment_key};

    use super::*;

    async fn segment(store: &BlobStore, number: u32, text: &str) -> v1::SegmentRef {
        let mut writer = SegmentWriter::new();
        writer.push([1; 32], 1, text.as_bytes()).unwrap();
        let bytes = writer.finish();
        let key = segment_key("default", "r", blake3::hash(&bytes).as_bytes());
        let blob = store.put(&key, bytes).await.unwrap();
        let blob = v1::BlobRef { key, digest: blob.digest.to_vec().into(), bytes: blob.len };
        v1::SegmentRef { number, first_row: 0, rows: 1, blob: Some(blob) }
    }

    #[tokio::test]
    async fn a_segment_is_fetched_once_and_then_comes_from_memory() {
        let store = BlobStore::open("memory://segments-once").unwrap();
        let cache = SegmentCache::new(1 << 20);
        let wanted = segment(&store, 0, "{}").await;
        let (one, two) = tokio::join!(cache.get(&store, &wanted), cache.get(&store, &wanted));
        assert_eq!(one.unwrap().row(0).unwrap().body, b"{}");
        two.unwrap();
        store.delete(&wanted.blob.as_ref().unwrap().key).await.unwrap();
        cache.get(&store, &wanted).await.unwrap();
    }

    #[tokio::test]
    async fn memory_is_bounded_and_the_least_recently_used_goes_first() {
        let store = BlobStore::open("memory://segments-lru").unwrap();
        let text = "x".repeat(400);
        let cache = SegmentCache::new(1000);
        let mut all = Vec::new();
        for number in 0..3 {
            all.push(segment(&store, number, &format!("{number}{text}")).await);
        }
        for wanted in [&all[0], &all[1], &all[0], &all[2]] {
            cache.get(&store, wanted).await.unwrap();
        }
        for wanted in &all {
            store.delete(&wanted.blob.as_ref().unwrap().key).await.unwrap();
        }
        assert!(cache.get(&store, &all[0]).await.is_ok());
        assert!(cache.get(&store, &all[2]).await.is_ok());
        assert!(cache.get(&store, &all[1]).await.is_err());
    }

    #[tokio::test]
    async fn a_missing_and_a_corrupt_segment_have_their_own_codes_and_are_fetched_again() {
        let store = BlobStore::open("memory://segments-bad").unwrap();
        let cache = SegmentCache::new(1 << 20);
        let good = segment(&store, 0, "{}").await;
        let blob = good.blob.clone().unwrap();
        store.delete(&blob.key).await.unwrap();
        let error = cache.get(&store, &good).await.unwrap_err();
        assert!(matches!(error, SegmentError::Unreadable { code: "SEGMENT_MISSING", .. }));
        store.put(&blob.key, bytes::Bytes::from_static(b"something else")).await.unwrap();
        let error = cache.get(&store, &good).await.unwrap_err();
        assert!(matches!(error, SegmentError::Unreadable { code: "SEGMENT_CORRUPT", .. }));
        store.delete(&blob.key).await.unwrap();
        segment(&store, 0, "{}").await;
        assert!(cache.get(&store, &good).await.is_ok());
    }
}
