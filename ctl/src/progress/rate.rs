//! Owns: a rate over the last seconds.
//!
//! Invariant: at most [`SAMPLES_MAX`] samples, none older than the window except one that bounds it.
//! Absent: clocks; the caller supplies the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(10);
const SAMPLES_MAX: usize = 64;

/// Samples of a growing counter.
#[derive(Debug, Default)]
pub(super) struct Rate {
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    pub(super) fn push(&mut self, at: Instant, value: u64) {
        self.samples.push_back((at, value));
        let old = |second: &(Instant, u64)| at.saturating_duration_since(second.0) > WINDOW;
        while self.samples.len() > SAMPLES_MAX || self.samples.get(1).is_some_and(old) {
            self.samples.pop_front();
        }
    }

    pub(super) fn per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = last.0.saturating_duration_since(first.0).as_secs_f64();
        if seconds < 0.1 { 0.0 } else { last.1.saturating_sub(first.1) as f64 / seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_forgets_progress_before_its_window() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), 0.0);
        for second in 0..20 {
            rate.push(start + Duration::from_secs(second), second * 100);
        }
        assert!((rate.per_second() - 100.0).abs() < 1.0);
        for second in 20..60 {
            rate.push(start + Duration::from_secs(second), 1900);
        }
        assert_eq!(rate.per_second(), 0.0);
        for n in 0..1000 {
            rate.push(start + Duration::from_secs(60), n);
        }
        assert!(rate.samples.len() <= SAMPLES_MAX);
    }
}
