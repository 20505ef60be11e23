//! Owns: the way from a grant to rows that an engine can run: the run's spec and the input segments.
//!
//! Invariant: every row of a grant comes back, either ready, or failed with its reason, or to be given back. An
//! unavailable store or leader is waited for, the lease being the leader's to end. Only a segment that is missing or no
//! segment is held against its rows; a store that refuses is not.
//! Absent: running rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollout_proto::ErrorCode;
use rollout_proto::v1::{self, FailureClass};
use rollout_storage::Segment;

use crate::backoff::Backoff;
use crate::engine::{EngineFailure, EngineRow};
use crate::held::{Lease, listed};
use crate::run::{RunError, RunInfo, Runs};
use crate::segments::{SegmentCache, SegmentError};
use crate::stores::Stores;

/// Tries before a segment that is missing, corrupt or refused is reported: a shared file system may lag behind.
const TRIES: u32 = 3;

/// What a grant's rows became.
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
}

impl Loader {
    pub(super) async fn load(self, grant: v1::Grant) -> Loaded {
        let lease = (grant.run, grant.attempt);
        // An overlong grant was refused before; see the slot.
        let rows = grant.rows.as_ref().and_then(listed).unwrap_or_default();
        let mut loaded = Loaded { lease, ..Loaded::default() };
        let run = match self.run(grant.run).await {
            Ok(run) => run,
            Err(RunError::Unusable { reason, .. }) => {
                loaded.failed.push((rows, EngineFailure::invalid("RUN_SPEC", reason)));
                return loaded;
            }
            Err(error) => {
                tracing::warn!(%error, "giving rows back");
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

    async fn run(&self, number: u32) -> Result<Arc<RunInfo>, RunError> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            match self.runs.get(number).await {
                Err(RunError::Unavailable { .. }) => backoff.sleep().await,
                other => return other,
            }
        }
    }

    async fn load_segment(
        &self,
        run: &Arc<RunInfo>,
        wanted: &v1::SegmentRef,
        rows: Vec<u64>,
        loaded: &mut Loaded,
    ) {
        let segment = match self.fetch(run, wanted).await {
            Ok(segment) => segment,
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
            let message = format!("segment {} has {} rows only", wanted.number, segment.len());
            let failure =
                EngineFailure::new(FailureClass::InputUnreadable, "SEGMENT_SHORT", message);
            loaded.failed.push((missing, failure));
        }
    }

    async fn fetch(
        &self,
        run: &RunInfo,
        wanted: &v1::SegmentRef,
    ) -> Result<Segment, EngineFailure> {
        let refused = |reason: String| {
            EngineFailure::new(FailureClass::StoreRefused, ErrorCode::StoreRefused.code(), reason)
        };
        let store = self.stores.get(&run.store_url).map_err(|error| refused(error.to_string()))?;
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut tries = 0;
        loop {
            let error = match self.segments.get(&store, wanted).await {
                Ok(segment) => return Ok(segment),
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
            backoff.sleep().await;
        }
    }
}
