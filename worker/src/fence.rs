//! Owns: whether rows may be started: only for a while after the worker sent the last heartbeat that was answered.
//!
//! Invariant: [`Fence::open`] is false before the first answer and after the time has passed, without any timer. The
//! leader frees unstarted rows only later, so a row that starts still belongs to this worker. A registration opens the
//! fence for a slot only after the slot has learned which of its rows were lost meanwhile.
//! Absent: running rows; they are finished.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The number of a registration of the worker, from 1; 0 before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Registration(u64);

#[derive(Debug, Default)]
struct Vouched {
    until: Option<Instant>,
    registration: Registration,
}

/// Sets until when rows may be started.
#[derive(Debug)]
pub(crate) struct FenceKeeper {
    vouched: watch::Sender<Vouched>,
}

/// Checks whether rows may be started; each slot has its own.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    vouched: watch::Receiver<Vouched>,
    /// The last registration whose losses this slot has processed.
    processed: Registration,
}

pub(crate) fn fence() -> (FenceKeeper, Fence) {
    let (sender, receiver) = watch::channel(Vouched::default());
    (
        FenceKeeper { vouched: sender },
        Fence { vouched: receiver, processed: Registration::default() },
    )
}

impl FenceKeeper {
    /// A message sent at `sent` was answered: rows may start until `lasts` after that.
    pub(crate) fn answered(&self, sent: Instant, lasts: Duration) {
        let until = sent + lasts;
        self.vouched.send_if_modified(|vouched| {
            let later = vouched.until.is_none_or(|old| until > old);
            if later {
                vouched.until = Some(until);
            }
            later
        });
    }

    /// The worker has registered again: every slot stays shut until it has processed the losses of this registration.
    pub(crate) fn registered(&self) -> Registration {
        self.vouched.send_modify(|vouched| vouched.registration.0 += 1);
        self.vouched.borrow().registration
    }

    /// True while a slot that has processed every registration may start rows.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.vouched.borrow().until)
    }
}

impl Fence {
    /// True while rows may be started.
    pub(crate) fn open(&self) -> bool {
        let vouched = self.vouched.borrow();
        vouched.registration == self.processed && is_open(vouched.until)
    }

    /// This slot has dropped the rows that were lost by that registration.
    pub(crate) fn rows_dropped(&mut self, registration: Registration) {
        self.processed = registration;
    }

    /// Returns after the next answered heartbeat; never once the keeper is gone.
    pub(crate) async fn changed(&mut self) {
        if self.vouched.changed().await.is_err() {
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
        // A late answer to an older heartbeat does not shorten the time.
        keeper.answered(now - Duration::from_secs(30), Duration::from_secs(1));
        assert!(fence.open());
    }

    #[test]
    fn a_registration_opens_the_fence_only_once_the_slot_knows_its_lost_rows() {
        let (keeper, mut fence) = fence();
        keeper.answered(Instant::now(), Duration::from_secs(60));
        assert!(fence.open());
        let first = keeper.registered();
        keeper.answered(Instant::now(), Duration::from_secs(60));
        assert!(!fence.open(), "it may hold rows that are another's by now");
        let second = keeper.registered();
        fence.rows_dropped(first);
        assert!(!fence.open(), "what the second one lost it has not heard");
        fence.rows_dropped(second);
        assert!(fence.open());
    }

    #[test]
    fn the_time_counts_from_the_sending() {
        let (keeper, fence) = fence();
        keeper.answered(Instant::now() - Duration::from_secs(5), Duration::from_secs(4));
        assert!(!fence.open());
    }
}
