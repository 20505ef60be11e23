//! Owns: how long this member has lacked an entry that it heard to be committed.
//!
//! Invariant: no entry has been lacking for longer than reported here. Heartbeats have a connection of their own, so
//! a member whose connection for log entries is stuck hears its leader all the time but gets no entries.
//! Absent: whether it hears a leader; see `Node::heard_leader`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::types::LogId;

/// Groups of entries by commit time. Entries beyond the last group count as part of it.
const GROUPS: usize = 8;

/// The entries that this member has not applied yet.
pub(crate) struct Progress {
    /// Entries that become known within this time form one group, as old as its first entry.
    span: Duration,
    /// The last entry of each group, and since when its first one is known, oldest first.
    lacking: Mutex<VecDeque<(u64, Instant)>>,
}

impl Progress {
    /// For questions whether an entry has been lacking for as long as `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { span: limit / GROUPS as u32, lacking: Mutex::default() }
    }

    /// Records the committed and the applied index, and returns for how long an entry has been lacking. Call it
    /// whenever one of the two has changed.
    pub(crate) fn lags_for(&self, committed: Option<LogId>, applied: Option<LogId>) -> Duration {
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index());
        self.lags_at(index(committed), index(applied), Instant::now())
    }

    fn lags_at(&self, committed: u64, applied: u64, now: Instant) -> Duration {
        let mut lacking = self.lacking.lock();
        while lacking.front().is_some_and(|first| first.0 <= applied) {
            lacking.pop_front();
        }
        let full = lacking.len() == GROUPS;
        let recent =
            |last: &&mut (u64, Instant)| full || now.saturating_duration_since(last.1) < self.span;
        if let Some(last) = lacking.back_mut().filter(recent) {
            last.0 = last.0.max(committed);
        } else if lacking.back().map_or(applied, |last| last.0) < committed {
            lacking.push_back((committed, now));
        }
        lacking.front().map_or(Duration::ZERO, |first| now.saturating_duration_since(first.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a sequence of seconds: the time, the committed index, the applied index, and for how long an entry is
    /// lacking then.
    fn check(told: impl IntoIterator<Item = (u64, u64, u64, u64)>) {
        let (progress, begun) = (Progress::new(Duration::from_secs(16)), Instant::now());
        for (second, committed, applied, lag) in told {
            let at = begun + Duration::from_secs(second);
            let said = progress.lags_at(committed, applied, at).as_secs();
            assert_eq!(said, lag, "{committed} committed, {applied} applied at {second} s");
            assert!(progress.lacking.lock().len() <= GROUPS);
        }
    }

    #[test]
    fn an_entry_is_lacking_from_when_it_is_known_to_be_committed_until_it_is_applied() {
        check([(0, 5, 5, 0), (90, 5, 5, 0), (100, 7, 5, 0), (110, 9, 6, 10)]);
        check([(100, 7, 5, 0), (110, 9, 6, 10), (111, 9, 7, 1), (112, 9, 9, 0), (200, 9, 9, 0)]);
    }

    #[test]
    fn a_member_that_keeps_up_lacks_the_newest_entries_alone() {
        check((1..300).map(|second| (second, 100 * second, 100 * second, 0)));
        check((1..300).map(|second| (second, 100 * second, 100 * (second - 1), 0)));
    }

    #[test]
    fn the_remembered_entries_are_bounded_while_nothing_is_applied() {
        check((0..300).map(|second| (second, 10 + second, 9, second)));
    }
}
