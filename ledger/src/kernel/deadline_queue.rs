//! Queues of deadlines in ledger time.
//!
//! *Invariant:* the times are those of the records after each command (`settle.rs`). So finding the next deadline
//! reads only the first entries, and the cost of a `Tick` depends on what is due, not on what exists. An earlier step
//! of a `Tick` may have changed the record of an entry, so each step reads the record before it acts.
//! Absent: what has an order of its own elsewhere: waiting rows, and what the domains
//! of identity and training own.

use crate::kernel::id::{LedgerMs, RunNo, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Records by the time at which they are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadlineQueue<K> {
    times: BTreeMap<K, LedgerMs>,
    order: BTreeSet<(LedgerMs, K)>,
}

impl<K> Default for DeadlineQueue<K> {
    fn default() -> Self {
        Self { times: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> DeadlineQueue<K> {
    /// Sets when a record is due; `None` if it never is.
    pub(crate) fn set(&mut self, key: &K, at: Option<LedgerMs>) {
        let before = self.times.get(key).copied();
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key.clone()));
        }
        match at {
            Some(at) => {
                self.times.insert(key.clone(), at);
                self.order.insert((at, key.clone()));
            }
            None => drop(self.times.remove(key)),
        }
    }

    /// The earliest time.
    pub(crate) fn first(&self) -> Option<LedgerMs> {
        self.order.first().map(|first| first.0)
    }

    /// The records that are due, in the order of their keys: that order decides which come first if a `Tick` cannot
    /// do all, as it did before this index existed.
    pub(crate) fn by(&self, now: LedgerMs) -> BTreeSet<K> {
        let due = self.order.iter().take_while(|due| due.0 <= now);
        due.map(|due| due.1.clone()).collect()
    }

    /// The first record that is due, the earliest first.
    pub(crate) fn first_by(&self, now: LedgerMs) -> Option<&K> {
        self.order.first().filter(|due| due.0 <= now).map(|due| &due.1)
    }
}

/// The deadlines of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// When runs end by their own deadlines.
    runs: DeadlineQueue<RunNo>,
    /// When the first bisection group of a run may go to the excluded slot again.
    exclusions: DeadlineQueue<RunNo>,
    /// When the oldest attempt of a run times out.
    attempts: DeadlineQueue<RunNo>,
    /// When sessions end.
    sessions: DeadlineQueue<SessionId>,
}

impl Deadlines {
    /// A run ends by its own deadline at this time; `None` if it never does. The same for the other three.
    pub(crate) fn run_ends(&mut self, no: &RunNo, at: Option<LedgerMs>) {
        self.runs.set(no, at);
    }

    pub(crate) fn exclusion_ends(&mut self, no: &RunNo, at: Option<LedgerMs>) {
        self.exclusions.set(no, at);
    }

    pub(crate) fn oldest_attempt_ends(&mut self, no: &RunNo, at: Option<LedgerMs>) {
        self.attempts.set(no, at);
    }

    pub(crate) fn session_ends(&mut self, session: &SessionId, at: Option<LedgerMs>) {
        self.sessions.set(session, at);
    }

    /// The runs whose deadline has come, ascending.
    pub(crate) fn overdue_runs(&self, now: LedgerMs) -> BTreeSet<RunNo> {
        self.runs.by(now)
    }

    /// The runs of which an exclusion has ended, ascending.
    pub(crate) fn ended_exclusions(&self, now: LedgerMs) -> BTreeSet<RunNo> {
        self.exclusions.by(now)
    }

    /// The runs of which an attempt has timed out, ascending.
    pub(crate) fn runs_with_timeouts(&self, now: LedgerMs) -> BTreeSet<RunNo> {
        self.attempts.by(now)
    }

    /// The sessions that have ended, ascending.
    pub(crate) fn ended_sessions(&self, now: LedgerMs) -> BTreeSet<SessionId> {
        self.sessions.by(now)
    }

    /// The earliest of all.
    pub(crate) fn first(&self) -> Option<LedgerMs> {
        let of_runs = [self.runs.first(), self.exclusions.first(), self.attempts.first()];
        of_runs.into_iter().chain([self.sessions.first()]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_due_entries_come_in_the_order_of_their_keys() {
        let mut due = DeadlineQueue::default();
        for (key, at) in [(1, 30), (2, 10), (3, 20)] {
            due.set(&key, Some(LedgerMs(at)));
        }
        assert_eq!(due.first(), Some(LedgerMs(10)));
        due.set(&2, Some(LedgerMs(40)));
        assert_eq!(due.first(), Some(LedgerMs(20)));
        assert_eq!(due.by(LedgerMs(19)), BTreeSet::new());
        assert_eq!(due.by(LedgerMs(30)), BTreeSet::from([1, 3]));
        (1..=3).for_each(|key| due.set(&key, None));
        assert_eq!(due, DeadlineQueue::default());
    }
}
