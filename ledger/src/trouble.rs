//! What is remembered of a row that failed at least once.
//!
//! *Invariant:* a row waits for its time, is pending, runs, or has failed for good; its trouble
//! outlives all of these until the row is done.

use crate::command::{Evidence, FailureClass};
use crate::id::{Attempt, LedgerMs};
use crate::limits;
use serde::{Deserialize, Serialize};

/// One attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTry {
    /// The attempt.
    pub attempt: Attempt,
    /// The worker's name.
    pub worker: String,
    /// Which policy applied.
    pub class: FailureClass,
    /// Machine-readable reason.
    pub code: String,
    /// For people.
    pub message: String,
    /// What the class was decided by.
    pub evidence: Evidence,
    /// Wall time, for people.
    pub wall_ms: u64,
}

/// A row in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Its latest failures, oldest first, at most [`limits::HISTORY_MAX`].
    pub history: Vec<FailedTry>,
    /// Failures that count against the run's `attempts_max`.
    pub strikes: u32,
    /// Until when it waits, if it does.
    pub not_before: Option<LedgerMs>,
    /// Whether it failed for good.
    pub failed: bool,
}

impl Trouble {
    /// Adds a failure and says what it means for the row.
    pub(crate) fn add(&mut self, failed: FailedTry, attempts_max: u32, now: LedgerMs) -> Verdict {
        let class = failed.class;
        if self.history.len() == limits::HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(failed);
        match class {
            FailureClass::StoreRefused => return Verdict::Again,
            FailureClass::InvalidRow => {
                self.failed = true;
                return Verdict::Failed;
            }
            FailureClass::Transient
            | FailureClass::OutOfMemory
            | FailureClass::EngineDied
            | FailureClass::InputUnreadable => {}
        }
        self.strikes += 1;
        if self.strikes >= attempts_max {
            self.failed = true;
            return Verdict::Failed;
        }
        let until = LedgerMs(now.0 + backoff_ms(self.strikes));
        self.not_before = Some(until);
        Verdict::Wait(until)
    }
}

/// What a failure means for its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Pending again at once.
    Again,
    /// Pending again at this time.
    Wait(LedgerMs),
    /// Failed for good.
    Failed,
}

/// Doubles from one second to one minute.
fn backoff_ms(strikes: u32) -> u64 {
    (1000u64 << strikes.saturating_sub(1).min(6)).min(60_000)
}

#[cfg(test)]
mod tests {
    use super::backoff_ms;

    #[test]
    fn back_off_doubles_to_a_minute() {
        let all: Vec<u64> = (1..9).map(backoff_ms).collect();
        assert_eq!(all, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    }
}
