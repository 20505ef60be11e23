//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Waits until `look` finds something, looking every 20 ms, and gives up with `what` after `limit`.
///
/// # Panics
/// When the time is over.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_or_show(what, limit, |_| look())
}

/// [`eventually`] for a `look` that notes what it saw: the last of it is told when the time is over.
///
/// # Panics
/// When the time is over.
#[track_caller]
pub fn eventually_or_show<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut(&mut String) -> Option<T>,
) -> T {
    let begun = Instant::now();
    let mut seen = String::new();
    loop {
        if let Some(found) = look(&mut seen) {
            return found;
        }
        assert!(
            begun.elapsed() < limit,
            "after {limit:?} still waiting until {what}; last seen: {seen:?}"
        );
        std::thread::sleep(Duration::from_millis(20)); // The poll; the condition decides.
    }
}
