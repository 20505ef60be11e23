//! Owns: which refusals of a store a slot reports.
//!
//! Invariant: each report wastes one row's execution. So a slot reports at most one per run and [`AGAIN`], and only
//! for a row of a later attempt than any reported before: the leader pauses the run at the first report, and a worker
//! without new rows has nothing to add.
//! Absent: whether a store accepts parts again, which the slot sees.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often a refusing store is reported.
const AGAIN: Duration = Duration::from_secs(30);

/// The latest reported refusal of each run's store: when, and by which attempt.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<u32, (Instant, u64)>);

impl Refusals {
    /// Whether a row of this attempt should report a refusal now; if so, records the report.
    pub(super) fn should_report(&mut self, run: u32, attempt: u64, now: Instant) -> bool {
        let news = self.0.get(&run).is_none_or(|(at, by)| now >= *at + AGAIN && attempt > *by);
        if news {
            self.0.insert(run, (now, attempt));
        }
        news
    }

    /// The store has accepted a part of the run.
    pub(super) fn over(&mut self, run: u32) {
        self.0.remove(&run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_reported_once_and_again_only_by_a_later_attempt() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let at = |periods: u32| start + AGAIN * periods;
        assert!(refusals.should_report(1, 7, start));
        assert!(!refusals.should_report(1, 9, start), "not so soon");
        for period in 1..100 {
            assert!(
                !refusals.should_report(1, 7, at(period)),
                "the run is paused, and this attempt's rows wait"
            );
            assert!(!refusals.should_report(1, 5, at(period)));
        }
        assert!(refusals.should_report(2, 5, at(1)), "another run");
        // The run was resumed and got new grants, and the store still refuses.
        assert!(refusals.should_report(1, 9, at(100)));
        assert!(!refusals.should_report(1, 9, at(101)));
        refusals.over(1);
        assert!(refusals.should_report(1, 9, at(101)), "it was well meanwhile");
    }
}
