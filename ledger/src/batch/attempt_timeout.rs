//! Attempt timeouts: when the oldest attempt of a run ends by itself.
//!
//! *Invariant:* reading changes nothing. The attempt ends in a `Tick` (`machine/clock.rs`).

use crate::batch::run::Run;
use crate::kernel::id::{Attempt, LedgerMs};
use crate::kernel::visits::count_visit;

impl Run {
    /// When the oldest attempt ends by itself. Attempts are numbered in the order of their grants, so the first is the
    /// oldest.
    pub(crate) fn attempt_ends(&self) -> Option<LedgerMs> {
        count_visit();
        let timeout_ms = self.head.spec.attempt_timeout_ms;
        let (_, first) = self.flight.grants.first_key_value().filter(|_| timeout_ms > 0)?;
        Some(lease_ends(first.granted_at, timeout_ms))
    }

    /// The oldest attempt, if its time is over, and how many rows it has.
    pub(crate) fn timed_out(&self, now: LedgerMs) -> Option<(Attempt, u64)> {
        let (attempt, first) = self.flight.grants.first_key_value()?;
        self.attempt_ends().filter(|end| *end <= now).map(|_| (*attempt, first.rows.len()))
    }
}

/// When a lease ends by itself, in a run with an attempt timeout. The worker fails an attempt sooner, counted from
/// the row's start. A row still held this long after its grant waits in a queue, or its worker has lost track of it.
fn lease_ends(granted_at: LedgerMs, attempt_timeout_ms: u64) -> LedgerMs {
    LedgerMs(granted_at.0.saturating_add(attempt_timeout_ms.saturating_mul(2)))
}
