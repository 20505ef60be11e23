//! Owns: growing, jittered waits between retries.
//!
//! Invariant: a wait is never longer than its step, which doubles up to the bound. It is at least half of the step,
//! or, where thousands begin to wait at the same moment, drawn from zero to the step (full jitter).
//! Absent: giving up.

use std::time::Duration;

use rand::Rng;

#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    /// The least fraction of a step to wait.
    least: f64,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first, least: 0.5 }
    }

    /// With full jitter.
    pub(crate) fn of_many(first: Duration, max: Duration) -> Self {
        Self { least: 0.0, ..Self::new(first, max) }
    }

    /// The wait before the next retry.
    pub(crate) fn wait(&mut self) -> Duration {
        let step = self.next.min(self.max);
        self.next = (step * 2).min(self.max);
        step.mul_f64(rand::rng().random_range(self.least..=1.0))
    }

    pub(crate) async fn sleep(&mut self) {
        tokio::time::sleep(self.wait()).await;
    }

    /// Starts over, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Bounds all later waits.
    pub(crate) fn at_most(&mut self, max: Duration) {
        self.max = max.max(self.first);
    }
}

/// A random time from zero to `longest`.
pub(crate) fn spread(longest: Duration) -> Duration {
    longest.mul_f64(rand::rng().random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest and the longest of many waits at the same step.
    fn drawn(backoff: &Backoff) -> (Duration, Duration) {
        let waits: Vec<Duration> = (0..200).map(|_| backoff.clone().wait()).collect();
        (*waits.iter().min().unwrap(), *waits.iter().max().unwrap())
    }

    #[test]
    fn waits_grow_up_to_their_bound() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        let waits: Vec<_> = (0..10).map(|_| backoff.wait()).collect();
        assert!(waits[0] <= Duration::from_millis(10) && waits[0] >= Duration::from_millis(5));
        assert!(waits[9] <= Duration::from_millis(100) && waits[9] >= Duration::from_millis(50));
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(10));
    }

    #[test]
    fn waits_of_many_are_spread_over_the_whole_step() {
        let mut backoff = Backoff::of_many(Duration::from_millis(10), Duration::from_millis(80));
        for step_ms in [10, 20, 40, 80, 80] {
            let (step, (shortest, longest)) = (Duration::from_millis(step_ms), drawn(&backoff));
            assert!(shortest < step / 4 && longest > step * 3 / 4 && longest <= step);
            backoff.wait();
        }
        backoff.at_most(Duration::from_millis(20));
        assert!(drawn(&backoff).1 <= Duration::from_millis(20));
        backoff.at_most(Duration::from_secs(1));
        for _ in 0..10 {
            backoff.wait();
        }
        assert!(drawn(&backoff).1 > Duration::from_millis(500));
    }
}
