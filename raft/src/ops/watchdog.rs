//! Owns: the thread that detects a disk that does not answer.
//!
//! Invariant: it needs nothing that the disk could block: no lock of the log, no task of the runtime. Handing
//! leadership over is the exception: it is tried without waiting for it, and tried again while the reason lasts. If an
//! fsync does not end, a follower exits too: it acknowledges nothing until the fsync ends, a process that hangs in an
//! fsync cannot be stopped in order later, and a supervisor reports an exited process, not one that hangs.
//! Absent: fsyncs that are slow but end. A majority of fast disks commits without the leader's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::consensus::running::Running;
use crate::consensus::transfer::transfer_leader;
use crate::errors::ClusterError;
use crate::fatal::stop_process;
use crate::peer::handovers::Handover;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two attempts to leave a disk that stalls.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    let mut attempts = HandoverAttempts::default();
    let mut stall = Stall::default();
    loop {
        let looked = Instant::now();
        std::thread::sleep(LOOK_EVERY);
        let Some(running) = member.upgrade() else { return };
        if running.closing.load(Ordering::Acquire) {
            return;
        }
        let in_flight_since = running.store.log().stats().in_flight_since;
        let stalled = stall.observe(in_flight_since, looked.elapsed());
        if stalled > Duration::from_millis(running.config.stall_exit_ms) {
            stop_process(&format!("the disk has not finished an fsync for {stalled:?}"));
        }
        let hands_over = stalled > Duration::from_millis(running.config.stall_transfer_ms);
        if hands_over && attempts.may_start(RETRY_AFTER) {
            tracing::warn!(
                ?stalled,
                "the disk stalls; this member transfers leadership if it leads"
            );
            attempts.spawn(runtime, async move {
                transfer_leader(&running, None, Handover::SlowDisk).await
            });
        }
    }
}

/// How long an fsync has been running, counting only time in which this process ran. While the process is stopped,
/// the disk may be fine, so each check counts at most twice its usual time.
#[derive(Default)]
struct Stall {
    since: Option<Instant>,
    counted: Duration,
}

impl Stall {
    /// Checks the fsync that began at `since`, `passed` after the last check.
    fn observe(&mut self, since: Option<Instant>, passed: Duration) -> Duration {
        if since.is_none() || since != self.since {
            (self.since, self.counted) = (since, Duration::ZERO);
        }
        if since.is_some() {
            self.counted += passed.min(2 * LOOK_EVERY);
        }
        self.counted
    }
}

/// Attempts to hand leadership over, one at a time.
#[derive(Default)]
struct HandoverAttempts {
    begun: Option<Instant>,
    under_way: Arc<AtomicBool>,
}

impl HandoverAttempts {
    /// Whether an attempt may start now: none is in progress, and none has started lately.
    fn may_start(&self, again: Duration) -> bool {
        let rested = self.begun.is_none_or(|begun| begun.elapsed() >= again);
        rested && !self.under_way.load(Ordering::Acquire)
    }

    fn spawn(
        &mut self,
        runtime: &Handle,
        attempt: impl Future<Output = Result<(), ClusterError>> + Send + 'static,
    ) {
        self.begun = Some(Instant::now());
        self.under_way.store(true, Ordering::Release);
        let under_way = self.under_way.clone();
        runtime.spawn(async move {
            if let Err(error) = attempt.await {
                tracing::debug!(%error, "leadership was not transferred");
            }
            under_way.store(false, Ordering::Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_was_stopped_is_no_stall_of_the_disk() {
        let (mut stall, since) = (Stall::default(), Some(Instant::now()));
        assert_eq!(stall.observe(since, Duration::from_secs(60)), 2 * LOOK_EVERY);
        let after = |stall: &mut Stall, looks: u32| {
            (0..looks).map(|_| stall.observe(since, LOOK_EVERY)).last().unwrap()
        };
        assert_eq!(after(&mut stall, 98), 100 * LOOK_EVERY);
        // The next fsync is judged separately, and so is one after a pause.
        let next = since.map(|since| since + Duration::from_secs(1));
        assert_eq!(stall.observe(next, LOOK_EVERY), LOOK_EVERY);
        assert_eq!(stall.observe(None, LOOK_EVERY), Duration::ZERO);
        assert_eq!(stall.observe(next, LOOK_EVERY), LOOK_EVERY);
    }

    #[test]
    fn an_attempt_that_failed_is_made_again_and_never_two_at_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut attempts = HandoverAttempts::default();
        assert!(attempts.may_start(Duration::ZERO));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        attempts.spawn(runtime.handle(), async move {
            let _ = ended.await;
            Err(ClusterError::Refused("there is no other voter".into()))
        });
        assert!(!attempts.may_start(Duration::ZERO), "one is under way");
        end.send(()).unwrap();
        runtime.block_on(async {
            while attempts.under_way.load(Ordering::Acquire) {
                tokio::task::yield_now().await
            }
        });
        assert!(attempts.may_start(Duration::ZERO), "it failed");
        assert!(!attempts.may_start(Duration::from_secs(3600)), "it has only just failed");
    }
}
