//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Waits until `look` finds something, looking every 20 ms, and gives up with `what` after `limit`.
///
/// # Panics
/// When the time is over.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "after {limit:?} still waiting until {what}");
        std::thread::sleep(Duration::from_millis(20)); // The poll; the condition decides.
    }
}
