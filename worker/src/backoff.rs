//! Owns: growing, jittered waits between tries.
//!
//! Invariant: a wait is never shorter than half of its step and never longer than the bound.
//! Absent: giving up.

use std::time::Duration;

use rand::Rng;

#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The wait before the next try.
    pub(crate) fn wait(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.max);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    pub(crate) async fn sleep(&mut self) {
        tokio::time::sleep(self.wait()).await;
    }

    /// Begins anew, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_their_bound() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
        let waits: Vec<_> = (0..10).map(|_| backoff.wait()).collect();
        assert!(waits[0] <= Duration::from_millis(10) && waits[0] >= Duration::from_millis(5));
        assert!(waits[9] <= Duration::from_millis(100) && waits[9] >= Duration::from_millis(50));
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(10));
    }
}
