//! Owns: when the image's tables are merged after data was deleted, and the snapshot that releases the old tables.
//!
//! Invariant: merging takes at most a twentieth of the time, and nothing waits for it: the image is written, loaded
//! and installed meanwhile.
//! Absent: the merging itself; see `ImageStore::reclaim`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_storage::{Reclaim, StorageError};

use crate::consensus::running::Running;

/// The least pause between two merges.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// The pause between two merges, as a multiple of the last one's duration.
const PAUSE_FACTOR: u32 = 20;
/// The pause after a failed merge.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Runs until it is cut off.
pub(crate) async fn run(running: Arc<Running>) {
    let mut pause = PAUSE_MIN;
    let mut failing = false;
    loop {
        tokio::time::sleep(pause).await;
        if !running.machine.image().reclaim_due() {
            continue;
        }
        let began = Instant::now();
        let machine = running.machine.clone();
        let outcome = tokio::task::spawn_blocking(move || machine.image().reclaim()).await;
        pause = PAUSE_MIN.max(began.elapsed() * PAUSE_FACTOR);
        let Ok(outcome) = outcome else { return };
        let failed = failure(&outcome);
        if let Some(why) = &failed {
            pause = PAUSE_AFTER_FAILURE;
            if !failing {
                tracing::warn!(%why, "the image still contains deleted records; retrying every minute");
            }
        }
        failing = failed.is_some();
        if let Ok(Reclaim::Done { before_bytes, after_bytes }) = outcome {
            tracing::info!(
                before_bytes,
                after_bytes,
                "deleted records were removed from the image"
            );
            // The latest one holds on to the tables as they were. An error means that consensus has ended,
            // which `leadership::watch` reports.
            drop(running.raft.trigger().snapshot().await);
        }
    }
}

fn failure(outcome: &Result<Reclaim, StorageError>) -> Option<String> {
    match outcome {
        Ok(Reclaim::Nothing | Reclaim::Done { .. }) => None,
        Ok(Reclaim::NoRoom { table_bytes }) => {
            Some(format!("the disk has no room for {table_bytes} bytes more"))
        }
        Ok(Reclaim::Unmerged) => Some("RocksDB did not merge its tables; its LOG says why".into()),
        Err(error) => Some(error.to_string()),
    }
}
