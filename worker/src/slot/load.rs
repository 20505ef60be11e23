//! Owns: the way from a grant to rows that an engine can run: the run's spec and the input segments.
//!
//! Invariant: every row of a grant comes back ready, failed with its reason, or to be returned. An unavailable store
//! or leader is retried while any of the rows is still wanted; the leader ends the lease. Only a segment that is
//! missing or malformed counts against its rows; a store that refuses does not.
//! Absent: running rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rollout_proto::ErrorCode;
use rollout_proto::v1::{self, FailureClass};
use rollout_storage::Segment;

use crate::backoff::Backoff;
use crate::engine::{EngineFailure, EngineRow};
use crate::lease_table::LeaseTable;
use crate::leased_rows::{Lease, listed};
use crate::run::{RunError, RunInfo, Runs};
use crate::segments::{SegmentCache, SegmentError};
use crate::stores::Stores;

/// Tries before a missing, corrupt or refused segment is reported: a shared file system may lag behind.
const TRIES: u32 = 3;

/// The outcome of loading a grant's rows.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) lease: Lease,
    pub(super) ready: Vec<EngineRow>,
    pub(super) failed: Vec<(Vec<u64>, EngineFailure)>,
    pub(super) give_back: Vec<u64>,
}

/// What loading needs.
#[derive(Clone)]
pub(super) struct Loader {
    pub(super) stores: Arc<Stores>,
    pub(super) runs: Arc<Runs>,
    pub(super) segments: Arc<SegmentCache>,
    /// Knows which rows this worker may still start.
    pub(super) lease_table: Arc<Mutex<LeaseTable>>,
}

impl Loader {
    pub(super) async fn load(self, grant: v1::Grant) -> Loaded {
        let lease = (grant.run, grant.attempt);
        // An overlong grant was refused before; see the slot.
        let rows = grant.rows.as_ref().and_then(listed).unwrap_or_default();
        let mut loaded = Loaded { lease, ..Loaded::default() };
        let run = self.run(lease, &rows).await;
        let run = match run {
            Ok(run) => run,
            Err(RunError::Unusable { reason, .. }) => {
                loaded.failed.push((rows, EngineFailure::invalid("RUN_SPEC", reason)));
                return loaded;
            }
            Err(error) => {
                tracing::warn!(%error, "returning rows");
                loaded.give_back = rows;
                return loaded;
            }
        };
        let mut rest = rows;
        for segment in &grant.segments {
            let range = segment.first_row..segment.first_row.saturating_add(segment.rows.into());
            let (mine, others) = rest.into_iter().partition(|row| range.contains(row));
            rest = others;
            self.load_segment(&run, segment, mine, &mut loaded).await;
        }
        if !rest.is_empty() {
            let message = "the grant does not say where these rows are";
            let failure = EngineFailure::new(FailureClass::InputUnreadable, "SEGMENT_REF", message);
            loaded.failed.push((rest, failure));
        }
        loaded
    }

    async fn run(&self, lease: Lease, rows: &[u64]) -> Result<Arc<RunInfo>, RunError> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            match self.runs.get(lease.0).await {
                Err(RunError::Unavailable { .. }) if self.is_wanted(lease, rows) => {
                    backoff.sleep().await;
                }
                other => return other,
            }
        }
    }

    /// Whether any of the rows still waits here: they may have been revoked or given up.
    fn is_wanted(&self, lease: Lease, rows: &[u64]) -> bool {
        let lease_table = self.lease_table.lock();
        rows.iter().any(|row| lease_table.is_queued(lease, *row))
    }

    async fn load_segment(
        &self,
        run: &Arc<RunInfo>,
        wanted: &v1::SegmentRef,
        rows: Vec<u64>,
        loaded: &mut Loaded,
    ) {
        let fetched = self.fetch(run, wanted, loaded.lease, &rows).await;
        let segment = match fetched {
            Ok(Some(segment)) => segment,
            Ok(None) => {
                loaded.give_back.extend(rows);
                return;
            }
            Err(failure) => {
                loaded.failed.push((rows, failure));
                return;
            }
        };
        let mut missing = Vec::new();
        for row in rows {
            match segment.row((row - wanted.first_row) as usize) {
                Some(found) => loaded.ready.push(EngineRow {
                    run: run.clone(),
                    row,
                    attempt: loaded.lease.1,
                    item_id: found.item_id,
                    // Copied, so that a queued row does not keep its whole segment in memory.
                    body: Bytes::copy_from_slice(found.body),
                    tokens: 0,
                }),
                None => missing.push(row),
            }
        }
        if !missing.is_empty() {
            let message = format!("segment {} has only {} rows", wanted.number, segment.len());
            let failure =
                EngineFailure::new(FailureClass::InputUnreadable, "SEGMENT_SHORT", message);
            loaded.failed.push((missing, failure));
        }
    }

    /// None if the rows are no longer wanted.
    async fn fetch(
        &self,
        run: &RunInfo,
        wanted: &v1::SegmentRef,
        lease: Lease,
        rows: &[u64],
    ) -> Result<Option<Segment>, EngineFailure> {
        let refused = |reason: String| {
            EngineFailure::new(FailureClass::StoreRefused, ErrorCode::StoreRefused.code(), reason)
        };
        let store = self.stores.get(&run.store_url).map_err(|error| refused(error.to_string()))?;
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut tries = 0;
        loop {
            let error = match self.segments.get(&store, wanted).await {
                Ok(segment) => return Ok(Some(segment)),
                Err(error) => error,
            };
            let message = error.to_string();
            let failure = match error {
                SegmentError::Unavailable { .. } => {
                    tracing::warn!(%error, "cannot read a segment, trying again");
                    None
                }
                SegmentError::Unreadable { code, .. } => {
                    Some(EngineFailure::new(FailureClass::InputUnreadable, code, message))
                }
                SegmentError::Refused { .. } => Some(refused(message)),
            };
            tries += u32::from(failure.is_some());
            if let Some(failure) = failure.filter(|_| tries >= TRIES) {
                return Err(failure);
            }
            if !self.is_wanted(lease, rows) {
                return Ok(None);
            }
            backoff.sleep().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use rollout_storage::segment_key;
    use tokio::time::timeout;

    use super::*;
    use crate::leased_rows::{NamedRows, ranges};

    const LEASE: Lease = (1, 7);

    fn rows() -> v1::Rows {
        ranges(0..2)
    }

    /// A grant of two rows whose segment is in no store.
    fn grant() -> v1::Grant {
        let digest = [7; 32];
        let key = segment_key("default", "r", &digest);
        let blob = Some(v1::BlobRef { key, digest: digest.to_vec().into(), bytes: 100 });
        let segment = v1::SegmentRef { number: 0, first_row: 0, rows: 2, blob };
        let (rows, segments) = (Some(rows()), vec![segment]);
        v1::Grant { run: LEASE.0, attempt: LEASE.1, rows, segments, ..Default::default() }
    }

    /// A loader for a slot that waits for the grant's rows.
    fn loader(run: fn(u32) -> Result<RunInfo, RunError>) -> Loader {
        let stores = Stores::new(Vec::new());
        stores.set_cluster("memory://load");
        let runs = Runs::new(Box::new(move |number| std::future::ready(run(number)).boxed()));
        let mut lease_table = LeaseTable::new(1);
        (0..2).for_each(|row| assert!(lease_table.queue(LEASE, row)));
        Loader {
            stores: Arc::new(stores),
            runs: Arc::new(runs),
            segments: Arc::new(SegmentCache::new(1 << 20)),
            lease_table: Arc::new(Mutex::new(lease_table)),
        }
    }

    fn unavailable(run: u32) -> Result<RunInfo, RunError> {
        Err(RunError::Unavailable { run, reason: "no leader".to_owned() })
    }

    fn found(run: u32) -> Result<RunInfo, RunError> {
        Ok(RunInfo::for_test(run))
    }

    /// The run is cancelled.
    fn take_all(lease_table: &Mutex<LeaseTable>) {
        let held = v1::HeldRows { run: LEASE.0, attempt: LEASE.1, rows: Some(rows()) };
        assert_eq!(lease_table.lock().take(&NamedRows::new([held])), 2);
    }

    #[tokio::test]
    async fn a_silent_leader_is_asked_again_until_the_rows_are_unwanted() {
        let loader = loader(unavailable);
        let lease_table = loader.lease_table.clone();
        let load = tokio::spawn(loader.load(grant()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!load.is_finished(), "the rows are wanted");
        take_all(&lease_table);
        let loaded = timeout(Duration::from_secs(20), load).await.expect("it ends").unwrap();
        assert_eq!(loaded.give_back, [0, 1]);
        assert!(loaded.ready.is_empty() && loaded.failed.is_empty(), "{loaded:?}");
    }

    #[tokio::test]
    async fn a_store_is_not_asked_again_for_unwanted_rows() {
        let loaded = loader(found).load(grant()).await;
        let [(rows, failure)] = &loaded.failed[..] else { panic!("{loaded:?}") };
        assert_eq!((rows.len(), &*failure.code), (2, "SEGMENT_MISSING"), "while they are wanted");
        let loader = loader(found);
        take_all(&loader.lease_table);
        let loaded = timeout(Duration::from_secs(20), loader.load(grant())).await.expect("it ends");
        assert_eq!(loaded.give_back, [0, 1]);
        assert!(loaded.ready.is_empty() && loaded.failed.is_empty(), "{loaded:?}");
    }
}
