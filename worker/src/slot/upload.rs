//! Owns: the upload of one closed part to the object store.
//!
//! Invariant: the part's rows are synced in the spool before the upload, and its result is reported to the leader only
//! after the store has acknowledged it. An unavailable store is retried for as long as any row of the part is wanted;
//! the spool keeps the rows meanwhile.
//! Absent: what to do when a store refuses; the slot reports it and tries again later.

use std::sync::Arc;
use std::time::Duration;

use rollout_proto::v1;
use rollout_storage::part_key;
use tokio::sync::Semaphore;

use crate::backoff::Backoff;
use crate::combiner::Combiner;
use crate::part::OpenPart;
use crate::run::{RunError, Runs};
use crate::stores::Stores;

/// The outcome of an upload.
#[derive(Debug)]
pub(super) enum Uploaded {
    /// The part is durable.
    Done { part: OpenPart, result: v1::PartResult },
    /// The store refuses; an immediate retry would not help.
    Refused { part: OpenPart, reason: String },
    /// The run is gone, or all rows of the part were taken back, so the part is no longer wanted.
    Gone { part: OpenPart },
    /// This worker cannot use the run's spec; another worker may, or the run was never valid.
    Unusable { part: OpenPart, reason: String },
}

/// What uploads need.
#[derive(Clone)]
pub(super) struct Uploader {
    pub(super) stores: Arc<Stores>,
    pub(super) runs: Arc<Runs>,
    /// Knows which rows still belong to this worker, and where they are spooled.
    pub(super) combiner: Arc<Combiner>,
    /// Bounds how many run at a time.
    pub(super) permits: Arc<Semaphore>,
}

impl Uploader {
    /// Uploads a part, after a delay.
    pub(super) async fn upload(self, mut part: OpenPart, delay: Duration) -> Uploaded {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.combiner.keep_wanted(&mut part);
        if part.rows.is_empty() {
            return Uploaded::Gone { part };
        }
        self.combiner.sync(&part).await;
        let encoded = match part.encode() {
            Ok(encoded) => encoded,
            Err(error) => return Uploaded::Refused { part, reason: error.to_string() },
        };
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let (run, store) = loop {
            match self.runs.get(part.id.run).await {
                Ok(run) => match self.stores.get(&run.store_url) {
                    Ok(store) => break (run, store),
                    Err(error) => return Uploaded::Refused { part, reason: error.to_string() },
                },
                Err(RunError::Unavailable { .. }) => backoff.sleep().await,
                Err(RunError::Gone { .. }) => return Uploaded::Gone { part },
                Err(RunError::Unusable { reason, .. }) => {
                    return Uploaded::Unusable { part, reason };
                }
            }
        };
        let digest = *blake3::hash(&encoded.bytes).as_bytes();
        let key = part_key(&run.namespace, &run.folder, &digest);
        let len = encoded.bytes.len() as u64;
        loop {
            if !self.combiner.is_wanted(&part) {
                return Uploaded::Gone { part };
            }
            // An upload that backs off holds no permit, so one bad store does not stop the others.
            let put = match self.permits.acquire().await {
                Ok(_permit) => store.put(&key, encoded.bytes.clone()).await,
                Err(_closed) => std::future::pending().await,
            };
            match put {
                Ok(_) => break,
                Err(error) if error.retryable() => {
                    metrics::counter!("rollout_worker_upload_retries_total").increment(1);
                    tracing::warn!(%error, run = part.id.run, "cannot upload a part, trying again");
                    backoff.sleep().await;
                }
                Err(error) => return Uploaded::Refused { part, reason: error.to_string() },
            }
        }
        metrics::counter!("rollout_worker_uploaded_bytes_total").increment(len);
        let result = v1::PartResult {
            run: part.id.run,
            part: Some(v1::BlobRef { key, digest: digest.to_vec().into(), bytes: len }),
            sets: encoded.sets,
            tokens_in: encoded.tokens_in,
            tokens_out: encoded.tokens_out,
        };
        Uploaded::Done { part, result }
    }
}
