//! Owns: how long rows of each run took lately, and whether a running row can end in the time that is left.
//!
//! Invariant: only measurements make a row too long: of at least [`LEAST`] rows of its run that took longer than it
//! has run already, fewer than one in [`ONE_IN`] ended as early as it would have to. Without such measurements any row
//! may fit.
//! Absent: estimates from outside, such as a row's tokens, and what happens to rows that are too long.

use std::collections::VecDeque;
use std::time::Duration;

/// Rows that are remembered, over all runs.
const REMEMBERED: usize = 256;
/// The least number of rows that allows a conclusion.
const LEAST: usize = 4;
/// A row with a smaller chance of ending in time is too long.
const ONE_IN: usize = 10;

#[derive(Debug, Default)]
pub(super) struct RowDurations {
    /// Run and duration, the newest last.
    recent: VecDeque<(u32, Duration)>,
}

impl RowDurations {
    /// Records how long a row of that run took to succeed.
    pub(super) fn record(&mut self, run: u32, time: Duration) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((run, time));
    }

    /// Whether a row of that run, which has run for `so_far`, may end within `left`.
    pub(super) fn may_end(&self, run: u32, so_far: Duration, left: Duration) -> bool {
        let (mut longer, mut in_time) = (0, 0);
        for (_, time) in self.recent.iter().filter(|(of, time)| *of == run && *time > so_far) {
            longer += 1;
            in_time += usize::from(*time - so_far <= left);
        }
        longer < LEAST || in_time * ONE_IN >= longer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_row_without_measurements_may_end_at_any_time() {
        let mut durations = RowDurations::default();
        assert!(durations.may_end(1, seconds(0), seconds(0)));
        (0..100).for_each(|_| durations.record(2, seconds(60)));
        assert!(durations.may_end(1, seconds(0), seconds(1)), "another run's rows say nothing");
        (1..LEAST).for_each(|_| durations.record(1, seconds(60)));
        assert!(durations.may_end(1, seconds(0), seconds(1)), "few rows say nothing");
        durations.record(1, seconds(60));
        assert!(!durations.may_end(1, seconds(0), seconds(1)));
        assert!(durations.may_end(1, seconds(61), seconds(1)), "longer than all that is known");
    }

    #[test]
    fn the_time_that_a_row_has_run_already_counts() {
        let mut durations = RowDurations::default();
        (0..20).for_each(|_| durations.record(1, seconds(30)));
        assert!(!durations.may_end(1, seconds(10), seconds(19)));
        assert!(durations.may_end(1, seconds(10), seconds(20)));
    }

    #[test]
    fn a_fair_chance_is_enough_and_old_rows_are_forgotten() {
        let mut durations = RowDurations::default();
        (0..18).for_each(|_| durations.record(1, seconds(30)));
        durations.record(1, seconds(5));
        assert!(!durations.may_end(1, seconds(0), seconds(10)), "one in nineteen");
        durations.record(1, seconds(5));
        assert!(durations.may_end(1, seconds(0), seconds(10)), "one in ten");
        assert!(!durations.may_end(1, seconds(6), seconds(10)), "the quick ones would be over");
        (0..REMEMBERED).for_each(|_| durations.record(1, seconds(2)));
        assert!(durations.may_end(1, seconds(0), seconds(2)));
    }
}
