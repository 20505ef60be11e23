//! Ledger time at a leader: the time of the last entry that it applied, and its own monotonic clock since.
//!
//! *Invariant:* it is never further ahead of the ledger than the ledger accepts in one step, however often it is read;
//! otherwise the ledger would refuse all commands permanently. Time in which no quorum answered does not count
//! ([`LeaderClock::hold`]), nor does the time until another member takes over: no timeout expires while the leader
//! cannot hear anyone. If the process itself stood still, at most one step of that time counts.
//! Absent: the time of day.

use parking_lot::Mutex;
use rollout_ledger::id::LedgerMs;
use rollout_ledger::limits;
use std::time::Instant;

/// The largest step by which a command advances ledger time, well below the step that the ledger refuses.
const STEP_MAX_MS: u64 = limits::CLOCK_STEP_MAX_MS / 2;

/// Ledger time at a leader.
pub(crate) struct LeaderClock {
    since: Instant,
    reading: Mutex<Reading>,
}

struct Reading {
    /// Ledger time at `since`, less time that did not count. Negative if that is longer than the ledger is old.
    base_ms: i64,
    /// Time of the newest command that was applied.
    applied_ms: u64,
    last_ms: u64,
    /// Time stands still.
    held: bool,
}

impl LeaderClock {
    pub(crate) fn new(base: LedgerMs) -> Self {
        let LedgerMs(ms) = base;
        let base_ms = i64::try_from(ms).unwrap_or(i64::MAX);
        let reading = Reading { base_ms, applied_ms: ms, last_ms: ms, held: false };
        Self { since: Instant::now(), reading: Mutex::new(reading) }
    }

    /// Ledger time now. It never goes back.
    pub(crate) fn now(&self) -> LedgerMs {
        self.reading.lock().at(self.since.elapsed().as_millis() as u64)
    }

    /// Stops ledger time at its last reading until [`go_on`](Self::go_on). Meanwhile no command can be applied and no
    /// worker heard.
    pub(crate) fn hold(&self) {
        self.reading.lock().held = true;
    }

    /// Continues from where it stood still, if it did.
    pub(crate) fn go_on(&self) {
        self.reading.lock().go_on(self.since.elapsed().as_millis() as u64);
    }

    /// Records that a command of that time was applied.
    pub(crate) fn applied(&self, at: LedgerMs) {
        let mut reading = self.reading.lock();
        reading.applied_ms = reading.applied_ms.max(at.0);
    }
}

impl Reading {
    fn go_on(&mut self, elapsed_ms: u64) {
        if std::mem::take(&mut self.held) {
            let last_ms = i64::try_from(self.last_ms).unwrap_or(i64::MAX);
            self.base_ms = last_ms.saturating_sub_unsigned(elapsed_ms);
        }
    }

    fn at(&mut self, elapsed_ms: u64) -> LedgerMs {
        if self.held {
            return LedgerMs(self.last_ms);
        }
        let real_ms = self.base_ms.saturating_add_unsigned(elapsed_ms).try_into().unwrap_or(0);
        let beyond_ms = u64::saturating_sub(real_ms, self.applied_ms.saturating_add(STEP_MAX_MS));
        self.base_ms = self.base_ms.saturating_sub_unsigned(beyond_ms);
        self.last_ms = self.last_ms.max(real_ms - beyond_ms);
        LedgerMs(self.last_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_quorum_does_not_count_at_all() {
        let clock = LeaderClock::new(LedgerMs(1000));
        let mut reading = clock.reading.lock();
        assert_eq!(reading.at(500), LedgerMs(1500));
        reading.held = true;
        // However often, and whenever, it is read.
        for elapsed_ms in (530..20_000).step_by(30) {
            assert_eq!(reading.at(elapsed_ms), LedgerMs(1500));
        }
        reading.go_on(20_000);
        assert_eq!(reading.at(20_000), LedgerMs(1500));
        assert_eq!(reading.at(20_050), LedgerMs(1550), "from there it goes again");
        reading.go_on(20_070);
        assert_eq!(reading.at(20_080), LedgerMs(1580), "it went on already");
    }

    #[test]
    fn time_without_applied_commands_does_not_count_and_blocks_no_later_command() {
        for base in [5, 1_000_000] {
            let clock = LeaderClock::new(LedgerMs(base));
            let mut reading = clock.reading.lock();
            assert_eq!(reading.at(10), LedgerMs(base + 10));
            // Reading it for minutes while nothing is applied does not advance it.
            for second in 60..300 {
                assert_eq!(reading.at(second * 1000), LedgerMs(base + STEP_MAX_MS));
            }
            // From the first command that is applied it advances as before.
            reading.applied_ms = base + STEP_MAX_MS;
            assert_eq!(reading.at(299_100), LedgerMs(base + STEP_MAX_MS + 100));
            assert_eq!(reading.at(309_000), LedgerMs(base + STEP_MAX_MS + 10_000));
            assert_eq!(
                reading.at(300_000),
                LedgerMs(base + STEP_MAX_MS + 10_000),
                "back it never goes"
            );
        }
    }
}
