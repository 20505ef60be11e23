//! The history of a row that failed at least once, and what each class of failure means.
//!
//! *Invariant:* a row waits for its time, is pending, runs, or has failed for good; its failure record outlives all of
//! these. The failure record of a done row is only history: it decides nothing, is kept for at most
//! [`limits::DONE_HISTORIES_MAX`] rows of a run, and goes with the run's rows. Each class has its own count, so that
//! one kind of failure does not use up the retries of another. Worker crashes make a row a suspect and give no
//! strike. A row that was only beside another one when an engine died has a history and no strike.

use crate::batch::incident::Incident;
use crate::kernel::id::{Attempt, LedgerMs};
use crate::kernel::limits;
use crate::machine::command::{Evidence, FailureClass};
use crate::machine::seeded::{Bug, seeded};
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
    /// Human-readable.
    pub message: String,
    /// The evidence for the class.
    pub evidence: Evidence,
    /// Wall time, informational only.
    pub wall_ms: u64,
    /// The consequence for the row.
    pub ruling: Ruling,
}

/// The consequence of a failure for its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ruling {
    /// Nothing: it was no fault of the row, or another slot went on with it.
    Excused,
    /// One of several rows that ran when an engine died: they are tried in smaller groups.
    Suspect {
        /// How many there were.
        among: u32,
    },
    /// A strike: it is tried again.
    Strike,
    /// It failed for good.
    Final,
    /// It failed for good: it killed engines while it ran alone.
    Poison,
}

/// Failures that count, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strikes {
    /// Of [`FailureClass::Transient`].
    pub transient: u32,
    /// Of [`FailureClass::OutOfMemory`], of the row alone.
    pub out_of_memory: u32,
    /// Of [`FailureClass::EngineDied`], of the row alone.
    pub engine_died: u32,
    /// Of [`FailureClass::InputUnreadable`].
    pub input_unreadable: u32,
}

impl Strikes {
    /// All together.
    pub fn total(self) -> u32 {
        self.transient + self.out_of_memory + self.engine_died + self.input_unreadable
    }

    fn of(&mut self, class: FailureClass) -> Option<&mut u32> {
        match class {
            FailureClass::Transient => Some(&mut self.transient),
            FailureClass::OutOfMemory => Some(&mut self.out_of_memory),
            FailureClass::EngineDied => Some(&mut self.engine_died),
            FailureClass::InputUnreadable => Some(&mut self.input_unreadable),
            FailureClass::InvalidRow | FailureClass::StoreRefused => None,
        }
    }
}

/// The failures of a row that failed at least once, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// Its latest failures, oldest first, at most [`limits::HISTORY_MAX`].
    pub history: Vec<FailedTry>,
    /// Failures that count.
    pub strikes: Strikes,
    /// Until when it waits, if it does.
    pub not_before: Option<LedgerMs>,
    /// Whether it failed for good.
    pub failed: bool,
    /// Times that a worker's process ended without a word while it ran this row.
    pub crashes: u32,
    /// The attempt that made its result, if it is done nevertheless.
    pub done: Option<DoneTry>,
    /// Where it last failed or killed an engine. The record stores it separately.
    #[serde(skip)]
    pub incident: Option<Incident>,
}

/// The attempt that made a row's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneTry {
    /// The attempt.
    pub attempt: Attempt,
    /// The worker's name.
    pub worker: String,
    /// Wall time, informational only.
    pub wall_ms: u64,
}

/// The verdict of a failure on its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Pending again at once.
    Again,
    /// Pending again at this time.
    Wait(LedgerMs),
    /// Failed for good.
    Failed,
}

impl FailureRecord {
    /// Adds a failure of this row and returns the verdict, on which the caller acts. A slot that may not decide gives a
    /// strike and no verdict.
    pub(crate) fn add(
        &mut self,
        mut failed: FailedTry,
        (attempts_max, decides): (u32, bool),
        now: LedgerMs,
    ) -> Verdict {
        let max = match failed.class {
            FailureClass::Transient | FailureClass::InputUnreadable => attempts_max,
            FailureClass::OutOfMemory => limits::OUT_OF_MEMORY_STRIKES_MAX,
            FailureClass::EngineDied => limits::ENGINE_DIED_STRIKES_MAX,
            FailureClass::InvalidRow | FailureClass::StoreRefused => 0,
        };
        let class = failed.class;
        let strikes = self.strikes.of(class).map_or(0, |count| {
            *count += 1;
            *count
        });
        let verdict = match class {
            FailureClass::StoreRefused => Verdict::Again,
            _ if strikes >= max && decides && !seeded(Bug::FailedRowRetried) => Verdict::Failed,
            _ => Verdict::Wait(LedgerMs(now.0.saturating_add(backoff_ms(strikes)))),
        };
        failed.ruling = match verdict {
            Verdict::Again => Ruling::Excused,
            Verdict::Wait(_) => Ruling::Strike,
            Verdict::Failed if class == FailureClass::EngineDied => Ruling::Poison,
            Verdict::Failed => Ruling::Final,
        };
        if verdict == Verdict::Failed {
            (self.failed, self.incident) = (true, None);
        }
        self.remember(failed);
        verdict
    }

    /// Adds a failure that is no strike: a death that this row shares with others, or an attempt beside which another
    /// one continues.
    pub(crate) fn excuse(&mut self, failed: FailedTry) {
        self.remember(failed);
    }

    fn remember(&mut self, failed: FailedTry) {
        if self.history.len() == limits::HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(failed);
    }

    /// A user retries the row: its history stays, and no longer counts.
    pub(crate) fn pardon(&mut self) {
        self.failed = false;
        self.strikes = Strikes::default();
        self.crashes = 0;
        self.incident = None;
    }
}

/// Doubles from one second to one minute.
pub(crate) fn backoff_ms(strikes: u32) -> u64 {
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
