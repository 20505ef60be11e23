//! Owns: how well the other members keep up with this leader.
//!
//! Invariant: the leader hands leadership only to a member that keeps up, and counts only such members when a change
//! needs a majority that can continue at once. Otherwise all writes would wait until the member had caught up.
//! Absent: followers' own view; see `status`.

use std::fmt;
use std::time::Duration;

use openraft::{Instant, RaftMetrics};
use rollout_proto::LACKS_MAX;

use crate::types::Types;

/// Leases within which a member that answers has answered a heartbeat.
const RECENT_ANSWER_LEASES: u32 = 2;
/// How long a leader waits for a member to keep up, which may briefly lag under load or after an election.
pub(crate) const KEEPS_UP_WITHIN: Duration = Duration::from_secs(1);
/// How often it checks meanwhile.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How far one member is behind this leader; the greatest value is that of the most advanced member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FollowerProgress {
    /// It answered a heartbeat lately.
    pub(crate) answers: bool,
    /// The last index that its log is known to have; `None` if it never answered this leader.
    pub(crate) matched: Option<u64>,
    last: u64,
}

impl FollowerProgress {
    /// The progress of `id`, as a leader with this lease knows it.
    pub(crate) fn of(metrics: &RaftMetrics<Types>, id: u64, lease: Duration) -> Self {
        let answered_at =
            metrics.heartbeat.as_ref().and_then(|all| all.get(&id).copied().flatten());
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&id).copied().flatten());
        Self {
            answers: answered_at.is_some_and(|at| at.elapsed() < RECENT_ANSWER_LEASES * lease),
            matched: matched.map(|id| id.index()),
            last: metrics.last_log_index.unwrap_or(0),
        }
    }

    /// The entries that it lacks; `None` if it never answered this leader.
    pub(crate) fn missing_entries(self) -> Option<u64> {
        self.matched.map(|matched| self.last.saturating_sub(matched))
    }

    /// True if its log is nearly as long as the leader's.
    pub(crate) fn is_close(self) -> bool {
        self.missing_entries().is_some_and(|lacks| lacks <= LACKS_MAX)
    }

    /// True if it could continue at once.
    pub(crate) fn keeps_up(self) -> bool {
        self.answers && self.is_close()
    }
}

/// What is wrong with a member that does not keep up.
impl fmt::Display for FollowerProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.missing_entries() {
            Some(lacks) if self.answers => {
                write!(f, "is {lacks} entries behind (at most {LACKS_MAX} allowed)")
            }
            _ => f.write_str("does not answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeps_up_that_answers_and_has_nearly_all_of_the_log() {
        let progress = |answers, matched| FollowerProgress { answers, matched, last: 1000 };
        assert!(progress(true, Some(1000)).keeps_up() && progress(true, Some(744)).keeps_up());
        assert!(
            progress(true, Some(1001)).keeps_up(),
            "the leader's own log is behind its followers'"
        );
        for (bad, why) in [
            (progress(true, Some(743)), "is 257 entries behind (at most 256 allowed)"),
            (progress(false, Some(1000)), "does not answer"),
            (progress(true, None), "does not answer"),
        ] {
            assert!(!bad.keeps_up());
            assert_eq!(bad.to_string(), why);
        }
    }
}
