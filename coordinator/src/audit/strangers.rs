//! Bounds the audit lines of callers of the enrollment port that have no certificate and no valid token.
//!
//! *Invariant:* however many such requests are refused or abandoned, the audit log has at most one line for them per
//! [`TOLD_EVERY`]. The line says how many requests before it have none. Without this bound, a stranger could rotate the
//! audit files and so delete the lines about all others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines about strangers: 8,640 lines a day, which a file of the default size has room for.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(10);

/// When they were last told of, and how many were not since.
#[derive(Default)]
pub(super) struct Strangers(Mutex<(Option<Instant>, u64)>);

impl Strangers {
    /// How many have had no line since the last one, where this one is to have one.
    pub(super) fn told(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (last, untold) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < TOLD_EVERY) {
            *untold += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(untold))
    }

    /// One that is to have no line.
    pub(super) fn untold(&self) {
        self.0.lock().1 += 1;
    }
}
