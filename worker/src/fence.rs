//! Owns: whether rows may be started: only for a while after the sending of the last heartbeat that was answered.
//!
//! Invariant: before the first answer, and once the time is over, [`Fence::open`] is false, without anybody having
//! to notice. The leader frees unstarted rows only later, so a row that starts is still this worker's.
//! Absent: rows that run already; they are finished.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Says until when rows may be started.
#[derive(Debug)]
pub(crate) struct FenceKeeper {
    until: watch::Sender<Option<Instant>>,
}

/// Asks whether rows may be started.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    until: watch::Receiver<Option<Instant>>,
}

pub(crate) fn fence() -> (FenceKeeper, Fence) {
    let (sender, receiver) = watch::channel(None);
    (FenceKeeper { until: sender }, Fence { until: receiver })
}

impl FenceKeeper {
    /// A message sent at `sent` was answered: rows may start until `lasts` after it.
    pub(crate) fn answered(&self, sent: Instant, lasts: Duration) {
        let until = sent + lasts;
        self.until.send_if_modified(|old| {
            let later = old.is_none_or(|old| until > old);
            if later {
                *old = Some(until);
            }
            later
        });
    }

    pub(crate) fn is_open(&self) -> bool {
        is_open(*self.until.borrow())
    }
}

impl Fence {
    /// True while rows may be started.
    pub(crate) fn open(&self) -> bool {
        is_open(*self.until.borrow())
    }

    /// Returns after the next answered heartbeat; never, once the keeper is gone.
    pub(crate) async fn changed(&mut self) {
        if self.until.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn is_open(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_starts_before_an_answer_or_long_after_its_heartbeat_was_sent() {
        let (keeper, fence) = fence();
        assert!(!fence.open());
        let now = Instant::now();
        keeper.answered(now, Duration::from_secs(60));
        assert!(fence.open());
        // An older heartbeat's late answer takes nothing back.
        keeper.answered(now - Duration::from_secs(30), Duration::from_secs(1));
        assert!(fence.open());
    }

    #[test]
    fn the_time_counts_from_the_sending() {
        let (keeper, fence) = fence();
        keeper.answered(Instant::now() - Duration::from_secs(5), Duration::from_secs(4));
        assert!(!fence.open());
    }
}
