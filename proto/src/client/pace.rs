//! How soon to try again.
//!
//! *Invariant:* waiting adds at most a sixteenth to an outage, or 10 ms, and is never longer than
//! 250 ms: a client sees a new leader within tens of milliseconds of a quick election and does not
//! hammer a cluster that is down.
//!
//! Deliberately absent: limits of calls.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

const WAIT_MIN: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_millis(250);

/// The pace of one streak of failures.
pub(super) struct Pace {
    since: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace { since: None }
    }

    /// The wait before the next try. The first one starts the streak.
    pub(super) fn next_wait(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        let wait = (since.elapsed() / 16).clamp(WAIT_MIN, WAIT_MAX);
        wait.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Something worked: the next failure starts a new streak.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_with_the_outage_and_start_anew_after_it() {
        let mut pace = Pace::new();
        assert!(pace.next_wait() <= WAIT_MIN);
        tokio::time::advance(Duration::from_secs(1)).await;
        let wait = pace.next_wait();
        assert!((31..=63).contains(&wait.as_millis()), "{wait:?}");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!((WAIT_MAX / 2..=WAIT_MAX).contains(&pace.next_wait()));
        pace.reset();
        assert!(pace.next_wait() <= WAIT_MIN);
    }
}
