//! The object with which a worker proves that it sees the same store as the members.
//!
//! *Invariant:* the probe is durable before a worker learns of it. When the worker has asked, the probe is there as far
//! as this member can see: the member writes it again if it was removed or replaced. Its key belongs to this cluster
//! and this member alone, because clusters may share a store.
//! Absent: a verdict if this member cannot read the store. The worker finds out for itself.

use bytes::Bytes;
use rollout_proto::{ErrorCode, Outcome, RpcError, v1};
use rollout_storage::{BlobError, BlobRef, BlobStore};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long a read of the probe may take. After that the probe counts as present.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// A member's access to the cluster's store, only for probes.
pub(crate) struct StoreProbe {
    store: BlobStore,
    member: String,
    /// Constant for the life of the process, so that a rewritten probe equals the one that workers know.
    bytes: Bytes,
    /// Checks of the object that were started.
    begun: AtomicU64,
    /// Locked during a check.
    seen: Mutex<ProbeState>,
}

#[derive(Default)]
struct ProbeState {
    /// The probe as it was last written.
    written: Option<BlobRef>,
    /// The result of the last check; `None` if its caller left before it ended.
    answer: Option<Result<v1::BlobRef, RpcError>>,
}

impl StoreProbe {
    pub(crate) fn new(store: BlobStore, member: &str) -> Self {
        let bytes = format!("rollout probe {:032x}\n", rand::random::<u128>()).into();
        let (begun, seen) = (AtomicU64::new(0), Mutex::default());
        Self { store, member: member.to_owned(), bytes, begun, seen }
    }

    pub(crate) fn url(&self) -> &str {
        self.store.url()
    }

    /// This member's probe in that cluster. One check of the store answers all callers that arrived before it started.
    ///
    /// # Errors
    /// [`ErrorCode::StoreUnavailable`] or [`ErrorCode::StoreRefused`] if the probe must be written and cannot be.
    pub(crate) async fn get(&self, cluster_id: &str) -> Result<v1::BlobRef, RpcError> {
        let before = self.begun.load(Ordering::Acquire);
        let mut seen = self.seen.lock().await;
        let since = self.begun.load(Ordering::Acquire) > before;
        if since && let Some(answer) = &seen.answer {
            return answer.clone();
        }
        seen.answer = None;
        self.begun.fetch_add(1, Ordering::AcqRel);
        let key = format!("probes/{cluster_id}/{}", self.member);
        let answer = self.keep(key, &mut seen.written).await.map_err(|e| refusal(&e));
        seen.answer = Some(answer.clone());
        answer
    }

    /// Writes the probe unless it is there.
    async fn keep(
        &self,
        key: String,
        written: &mut Option<BlobRef>,
    ) -> Result<v1::BlobRef, BlobError> {
        let kept = match written.take() {
            Some(blob) if blob.key == key && self.is_there(&blob).await => blob,
            _ => self.store.put(&key, self.bytes.clone()).await?,
        };
        let blob = written.insert(kept);
        let digest = blob.digest.to_vec().into();
        Ok(v1::BlobRef { key, digest, bytes: blob.len })
    }

    /// Whether the probe may still be there: false only if it is missing or has other bytes.
    async fn is_there(&self, blob: &BlobRef) -> bool {
        let look = self.store.get(&blob.key, &blob.digest);
        match tokio::time::timeout(LOOK_WITHIN, look).await {
            Ok(Err(error @ (BlobError::Missing { .. } | BlobError::Corrupt { .. }))) => {
                tracing::warn!(%error, "rewriting the store's probe");
                false
            }
            Ok(_) | Err(_) => true,
        }
    }
}

fn refusal(error: &BlobError) -> RpcError {
    let code = match error.retryable() {
        true => ErrorCode::StoreUnavailable,
        false => ErrorCode::StoreRefused,
    };
    RpcError::new(code, format!("the probe cannot be written: {error}"))
        .with_outcome(Outcome::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store as a worker opens it.
    fn store(dir: &tempfile::TempDir) -> BlobStore {
        BlobStore::open(&format!("file://{}", dir.path().display())).expect("a store")
    }

    async fn is_readable(dir: &tempfile::TempDir, probe: &v1::BlobRef) -> bool {
        let digest = <[u8; 32]>::try_from(&probe.digest[..]).expect("a digest");
        store(dir).get(&probe.key, &digest).await.is_ok()
    }

    #[tokio::test]
    async fn members_of_one_name_in_two_clusters_of_one_store_do_not_replace_each_others_probe() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (StoreProbe::new(store(&dir), "c1"), StoreProbe::new(store(&dir), "c1"));
        let of_a = a.get("aaaa").await.expect("written");
        let of_b = b.get("bbbb").await.expect("written");
        assert!(is_readable(&dir, &of_a).await && is_readable(&dir, &of_b).await);
        assert_eq!(a.get("aaaa").await, Ok(of_a), "it stays what it was");
    }

    #[tokio::test]
    async fn a_probe_that_was_removed_or_replaced_is_written_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let probe = StoreProbe::new(store(&dir), "c1");
        let told = probe.get("aaaa").await.expect("written");
        store(&dir).delete(&told.key).await.expect("removed");
        assert_eq!(probe.get("aaaa").await.as_ref(), Ok(&told));
        assert!(is_readable(&dir, &told).await, "also by a worker that learned of it before");
        store(&dir).put(&told.key, "another's".into()).await.expect("replaced");
        assert!(!is_readable(&dir, &told).await);
        assert_eq!(probe.get("aaaa").await.as_ref(), Ok(&told));
        assert!(is_readable(&dir, &told).await);
    }

    #[tokio::test]
    async fn concurrent_callers_share_a_check_and_a_later_caller_gets_a_new_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let probe = StoreProbe::new(store(&dir), "c1");
        let asked = futures::future::join_all((0..100).map(|_| probe.get("aaaa"))).await;
        assert!(asked.iter().all(|answer| answer.is_ok() && *answer == asked[0]));
        // The first caller's check, and one that started when all others had asked.
        assert_eq!(probe.begun.load(Ordering::Acquire), 2);
        // A check that is abandoned answers no caller.
        drop(futures::poll!(Box::pin(probe.get("aaaa"))));
        assert_eq!(probe.get("aaaa").await, asked[0]);
        assert_eq!(probe.begun.load(Ordering::Acquire), 4);
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_read_here_is_no_reason_to_refuse_a_worker() {
        let dir = tempfile::tempdir().expect("a directory");
        let probe = StoreProbe::new(store(&dir), "c1");
        let told = probe.get("aaaa").await.expect("written");
        let path = dir.path().join(&told.key);
        std::fs::remove_file(&path).expect("removed");
        // A folder in its place: the object is not missing, and has no other bytes.
        std::fs::create_dir(&path).expect("a folder");
        assert_eq!(probe.get("aaaa").await.as_ref(), Ok(&told));
    }
}
