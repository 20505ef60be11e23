//! How soon to try again.
//!
//! *Invariant:* waiting adds at most a sixteenth to an outage, or 10 ms, and is never longer than the client's longest
//! wait, 250 ms by default: a client sees a new leader within tens of milliseconds of a quick election and does not
//! hammer a cluster that is down. Each wait is random between zero and that bound (full jitter), so that clients that
//! lost their leader at the same moment do not return at the same moment.
//!
//! Absent: limits of calls.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

const WAIT_MIN: Duration = Duration::from_millis(10);
/// The longest wait of a client that is one of few.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(250);
/// The shortest wait, however the random draw turns out.
const WAIT_LEAST: Duration = Duration::from_millis(2);

/// The waits between the tries of one streak of failures.
pub(super) struct RetryBackoff {
    since: Option<Instant>,
    max: Duration,
}

impl RetryBackoff {
    pub(super) fn new(max: Duration) -> Self {
        RetryBackoff { since: None, max }
    }

    /// The wait before the next try. The first call starts the streak.
    pub(super) fn next_wait(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        let longest = longest_wait(since.elapsed(), self.max);
        longest.mul_f64(rand::rng().random_range(0.0..=1.0)).max(WAIT_LEAST)
    }

    /// Sets the start of the streak to that of an earlier call.
    pub(super) fn set_start(&mut self, since: Instant) {
        self.since = Some(self.since.map_or(since, |earlier| earlier.min(since)));
    }

    /// Ends the streak after a success.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }
}

fn longest_wait(outage: Duration, max: Duration) -> Duration {
    (outage / 16).clamp(WAIT_MIN, max.max(WAIT_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest_ms(outage_ms: u64, max: Duration) -> u128 {
        longest_wait(Duration::from_millis(outage_ms), max).as_millis()
    }

    #[test]
    fn waits_grow_with_the_outage_within_their_bounds() {
        let waits = [0, 100, 400, 1_600, 60_000].map(|outage_ms| longest_ms(outage_ms, WAIT_MAX));
        assert_eq!(waits, [10, 10, 25, 100, 250]);
        let of_many = Duration::from_secs(5);
        let waits = [100, 1_600, 60_000, 600_000].map(|outage_ms| longest_ms(outage_ms, of_many));
        assert_eq!(waits, [10, 100, 3_750, 5_000], "a quick election is seen as quickly");
    }

    #[test]
    fn clients_that_start_together_are_spread_over_the_whole_wait() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(65));
        let Some(since) = long_ago else { return };
        let max = Duration::from_secs(4);
        let draw = |_| {
            let mut backoff = RetryBackoff::new(max);
            backoff.set_start(since);
            backoff.next_wait()
        };
        let waits: Vec<Duration> = (0..1000).map(draw).collect();
        assert!(waits.iter().all(|wait| *wait >= WAIT_LEAST && *wait <= max));
        // Each tenth of the time has between a half and twice its share.
        for tenth in 0..10 {
            let part = max * tenth / 10..max * (tenth + 1) / 10;
            let here = waits.iter().filter(|wait| part.contains(*wait)).count();
            assert!((50..200).contains(&here), "{here} of 1000 in the tenth {tenth}");
        }
    }

    #[test]
    fn a_new_streak_starts_with_the_shortest_wait() {
        let since = Instant::now().checked_sub(Duration::from_secs(9));
        let mut backoff = RetryBackoff { since, max: WAIT_MAX };
        backoff.reset();
        assert!(backoff.next_wait() <= WAIT_MIN);
    }
}
