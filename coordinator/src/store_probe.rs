//! The object that proves that a worker sees the same store as the members.
//!
//! *Invariant:* the probe is written, and durable, before a worker is told of it.

use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_storage::BlobStore;
use tokio::sync::OnceCell;

/// A member's access to the cluster's store, for probes alone.
pub(crate) struct StoreProbe {
    store: BlobStore,
    name: String,
    written: OnceCell<v1::BlobRef>,
}

impl StoreProbe {
    pub(crate) fn new(store: BlobStore, member: &str) -> Self {
        Self { store, name: format!("probes/{member}"), written: OnceCell::new() }
    }

    pub(crate) fn url(&self) -> &str {
        self.store.url()
    }

    /// The probe, written at the first call.
    pub(crate) async fn get(&self) -> Result<v1::BlobRef, RpcError> {
        let write = || async {
            let bytes = format!("rollout probe {:032x}\n", rand::random::<u128>());
            let blob = self.store.put(&self.name, bytes.into_bytes().into()).await?;
            let digest = blob.digest.to_vec().into();
            Ok(v1::BlobRef { key: blob.key, digest, bytes: blob.len })
        };
        self.written.get_or_try_init(write).await.cloned().map_err(
            |e: rollout_storage::BlobError| {
                let code = match e.retryable() {
                    true => ErrorCode::StoreUnavailable,
                    false => ErrorCode::StoreRefused,
                };
                RpcError::new(code, format!("the probe cannot be written: {e}"))
                    .with_outcome(rollout_proto::Outcome::NotApplied)
            },
        )
    }
}
