//! Owns: when the image's tables are merged after something was forgotten, and the snapshot that lets go of the old ones.
//!
//! Invariant: at most a twentieth of the time is spent on it, and nothing waits for it: the image is written, loaded
//! and installed meanwhile.
//! Absent: the merging itself; see `ImageStore::reclaim`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_storage::{Reclaim, StorageError};

use crate::running::Running;

/// Between two of them, at the least.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Between two of them, in times of what the last took.
const PAUSE_FACTOR: u32 = 20;
/// After one that came to nothing.
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
