//! Owns: when the image is written, when a snapshot is taken, and what is purged from the log.
//!
//! Invariant: the log is purged only below the snapshot before the last, and only where at least the configured
//! number of bytes remains, so a follower that is briefly behind is served from the log.
//! Absent: the writing itself; see `machine`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use crate::consensus::running::Running;

/// Runs until consensus ends.
pub(crate) async fn run(running: Arc<Running>) {
    let interval = Duration::from_millis(running.config.image_interval_ms);
    let mut metrics = running.raft.server_metrics();
    let mut history = SnapshotHistory::default();
    while !running.closing.load(Ordering::Acquire) {
        let ended = async { while metrics.changed().await.is_ok() {} };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = running.machine.flush_due() => {}
            () = ended => return,
        }
        running.machine.flush().await;
        measure(&running).await;
        history.step(&running).await;
    }
}

async fn measure(running: &Running) {
    let root = running.machine.image().root().to_owned();
    if let Ok(bytes) = tokio::task::spawn_blocking(move || tree_bytes(&root, 4)).await {
        running.image_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Bytes of the files below `dir`. A file removed meanwhile counts as 0.
fn tree_bytes(dir: &Path, depth: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth > 0 => tree_bytes(&entry.path(), depth - 1),
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        })
        .sum()
}

/// The last two snapshots.
#[derive(Default)]
struct SnapshotHistory {
    last: Option<u64>,
    before: Option<u64>,
}

impl SnapshotHistory {
    async fn step(&mut self, running: &Running) {
        let (snapshot, purged) = {
            let metrics = running.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.snapshot.map(|id| id.index()), metrics.purged.map(|id| id.index()))
        };
        if snapshot != self.last {
            self.before = self.last.or(snapshot);
            self.last = snapshot;
        }
        let meter = running.store.meter();
        let keep = running.config.log_keep_bytes;
        let trigger = running.raft.trigger();
        let since_last = self.last.map_or(meter.bytes(), |index| meter.bytes_after(index));
        if since_last > keep / 2 && meter.bytes() > keep / 2 {
            tracing::info!(log_bytes = meter.bytes(), since_last, "taking a snapshot");
            // An error means that consensus has ended, which `leadership::watch` reports.
            drop(trigger.snapshot().await);
        }
        let Some(target) = meter.index_before(keep).zip(self.before).map(|(a, b)| a.min(b)) else {
            return;
        };
        if purged.is_none_or(|purged| purged < target) {
            tracing::info!(up_to = target, log_bytes = meter.bytes(), "purging the log");
            drop(trigger.purge_log(target).await);
        }
    }
}
