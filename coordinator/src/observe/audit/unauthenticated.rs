//! Bounds the audit lines of callers of the enrollment port that have no certificate and no valid token.
//!
//! *Invariant:* however many such requests are refused or abandoned, the audit log has at most one line for them per
//! [`LINE_EVERY`]. The line says how many requests before it have none. Without this bound, such a caller could rotate
//! the audit files and so delete the lines about all others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two lines about such calls: 8,640 lines a day, for which a file of the default size has room.
pub(super) const LINE_EVERY: Duration = Duration::from_secs(10);

/// When the last line about such calls was written, and how many requests had none since.
#[derive(Default)]
pub(super) struct UnauthenticatedCalls(Mutex<(Option<Instant>, u64)>);

impl UnauthenticatedCalls {
    /// If this request gets a line: how many have had none since the last line.
    pub(super) fn line_due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (last, unlogged) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < LINE_EVERY) {
            *unlogged += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(unlogged))
    }

    /// Counts a request that gets no line.
    pub(super) fn count_unlogged(&self) {
        self.0.lock().1 += 1;
    }
}
