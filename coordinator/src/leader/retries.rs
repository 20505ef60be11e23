//! Retries with backoff: when a failed step is due again, and which steps go first.
//!
//! *Invariant:* a step that fails waits longer each time, up to a bound, and holds up no step that was not tried yet.
//!
//! Absent: giving up. The caller knows when it is too late.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

struct FailureRecord {
    count: u32,
    next: Instant,
}

/// Which `K` failed, and when each is due again.
pub(crate) struct Retries<K> {
    first: Duration,
    max: Duration,
    failed: BTreeMap<K, FailureRecord>,
}

impl<K: Copy + Ord> Retries<K> {
    /// Pauses for `first` after one failure and twice as long after each more, at most `max`.
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, failed: BTreeMap::new() }
    }

    /// Forgets keys that are no longer due.
    pub(crate) fn keep(&mut self, due: &[K]) {
        let due: BTreeSet<&K> = due.iter().collect();
        self.failed.retain(|key, _| due.contains(key));
    }

    /// Up to `max` of the `due` keys whose pause is over, those with the fewest failures first.
    pub(crate) fn ready(&self, mut due: Vec<K>, max: usize) -> Vec<K> {
        let now = Instant::now();
        due.retain(|key| self.failed.get(key).is_none_or(|failed| failed.next <= now));
        due.sort_by_key(|key| self.count(key));
        due.truncate(max);
        due
    }

    /// Records a failure. Returns how often the key has failed, and its pause.
    pub(crate) fn failed(&mut self, key: K) -> (u32, Duration) {
        let count = self.count(&key);
        let pause = self.first.saturating_mul(1 << count.min(16)).min(self.max);
        let next = Instant::now() + pause;
        self.failed.insert(key, FailureRecord { count: count.saturating_add(1), next });
        (count.saturating_add(1), pause)
    }

    fn count(&self, key: &K) -> u32 {
        self.failed.get(key).map_or(0, |failed| failed.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_a_pausing_key_is_not_ready() {
        let mut retries = Retries::new(Duration::from_secs(1), Duration::from_secs(300));
        let pauses: Vec<u64> = (0..60).map(|_| retries.failed(1).1.as_secs()).collect();
        assert_eq!(
            (&pauses[..3], &pauses[8..10], pauses[59]),
            (&[1, 2, 4][..], &[256, 300][..], 300)
        );
        assert_eq!(retries.ready(vec![1, 2, 3], 9), [2, 3]);
        retries.keep(&[2]);
        assert_eq!(retries.ready(vec![1, 2, 3], 2), [1, 2]);
    }

    #[test]
    fn a_failed_key_goes_after_keys_that_were_not_tried() {
        let mut retries = Retries::new(Duration::ZERO, Duration::ZERO);
        retries.failed(1);
        assert_eq!(retries.ready(vec![1, 2, 3], 2), [2, 3]);
    }
}
