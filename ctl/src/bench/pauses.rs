//! How long each worker went without a claim while leadership changed.
//!
//! Invariant: a pause belongs to one worker and lasts from the last claim that the previous leader granted it to the
//! first that a leader of a later epoch grants it. Absent: waits within an epoch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The pauses of one change of leader.
pub(super) struct Pauses {
    after_epoch: u64,
    last_claims: BTreeMap<u64, Instant>,
    ended: BTreeMap<u64, Duration>,
}

impl Pauses {
    /// Watches for claims granted in an epoch after this one.
    pub(super) fn after(after_epoch: u64) -> Self {
        Self { after_epoch, last_claims: BTreeMap::new(), ended: BTreeMap::new() }
    }

    /// A worker's claim was granted by the leader of `epoch`.
    pub(super) fn claimed(&mut self, worker: u64, epoch: u64, at: Instant) {
        if epoch <= self.after_epoch {
            self.last_claims.insert(worker, at);
        } else if let Some(last) = self.last_claims.get(&worker) {
            let pause = at.saturating_duration_since(*last);
            self.ended.entry(worker).or_insert(pause);
        }
    }

    /// Workers that have claimed from the previous leader.
    pub(super) fn begun(&self) -> usize {
        self.last_claims.len()
    }

    /// The pauses that are over, one a worker.
    pub(super) fn ended(&self) -> impl ExactSizeIterator<Item = Duration> + '_ {
        self.ended.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_from_a_workers_last_old_claim_to_its_first_new_one() {
        let (start, mut pauses) = (Instant::now(), Pauses::after(4));
        let at = |ms| start + Duration::from_millis(ms);
        for (worker, epoch, ms) in [(1, 4, 0), (2, 3, 5), (1, 4, 10), (3, 5, 30), (1, 5, 40)] {
            pauses.claimed(worker, epoch, at(ms));
        }
        // The third has no earlier claim to count from.
        assert_eq!(pauses.begun(), 2);
        assert_eq!(pauses.ended().collect::<Vec<_>>(), [Duration::from_millis(30)]);
        // A late answer of an old leader does not shorten a pause, and the next claim does not lengthen it.
        for (worker, epoch, ms) in [(1, 4, 60), (1, 5, 90), (2, 6, 105)] {
            pauses.claimed(worker, epoch, at(ms));
        }
        let ended: Vec<_> = pauses.ended().map(|pause| pause.as_millis()).collect();
        assert_eq!(ended, [30, 100]);
    }
}
