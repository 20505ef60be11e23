//! Owns: the thread that notices a disk that does not answer.
//!
//! Invariant: it needs nothing that the disk could hold up: no lock of the log, no task of the runtime, except for
//! handing leadership over, which is tried and not waited for.
//! Absent: slow disks. An fsync that ends is never punished.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::fatal::stop_process;
use crate::running::Running;
use crate::transfer::transfer_leader;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Starts the thread. It ends with the member.
pub(crate) fn start(running: &Arc<Running>, runtime: Handle) {
    let member = Arc::downgrade(running);
    let started = std::thread::Builder::new()
        .name("raft-watchdog".into())
        .spawn(move || watch(&member, &runtime));
    if let Err(error) = started {
        stop_process(&format!("the watchdog thread cannot be started: {error}"));
    }
}

fn watch(member: &Weak<Running>, runtime: &Handle) {
    let mut handed_over: Option<Instant> = None;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let Some(running) = member.upgrade() else { return };
        if running.closing.load(Ordering::Acquire) {
            return;
        }
        let Some(since) = running.store.log().stats().in_flight_since else { continue };
        let stalled = since.elapsed();
        if stalled > Duration::from_millis(running.config.stall_exit_ms) {
            stop_process(&format!("the disk has not finished an fsync for {stalled:?}"));
        }
        let hand_over = stalled > Duration::from_millis(running.config.stall_transfer_ms);
        if hand_over && handed_over != Some(since) {
            handed_over = Some(since);
            tracing::warn!(?stalled, "the disk stalls; leadership is handed over where it is here");
            runtime.spawn(async move {
                if let Err(error) = transfer_leader(&running, None).await {
                    tracing::debug!(%error, "leadership was not handed over");
                }
            });
        }
    }
}
