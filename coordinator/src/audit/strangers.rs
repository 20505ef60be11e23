//! Callers of the enrollment port without a certificate or a valid token.
//!
//! *Invariant:* however many of their requests are refused or given up, the audit has at most one line of them in
//! [`TOLD_EVERY`], which says how many went before it without one. Else a stranger could turn the audit's files over
//! and so remove what it says of everybody else.

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
