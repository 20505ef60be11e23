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
        longest_wait(since.elapsed()).mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Something worked: the next failure starts a new streak.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }
}

fn longest_wait(outage: Duration) -> Duration {
    (outage / 16).clamp(WAIT_MIN, WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_with_the_outage_within_their_bounds() {
        let waits = [0, 100, 400, 1_000, 60_000]
            .map(|outage_ms| longest_wait(Duration::from_millis(outage_ms)).as_micros());
        assert_eq!(waits, [10_000, 10_000, 25_000, 62_500, 250_000]);
    }

    #[test]
    fn a_new_streak_starts_with_the_shortest_wait() {
        let mut pace = Pace { since: Instant::now().checked_sub(Duration::from_secs(9)) };
        assert!(pace.since.is_none() || pace.next_wait() > WAIT_MIN);
        pace.reset();
        assert!(pace.next_wait() <= WAIT_MIN);
    }
}
