//! Waiting for a condition.

use std::time::{Duration, Instant};

/// The least and the most time between two checks.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(250);

/// Waits until `look` finds something, and gives up with `what` after `limit`.
///
/// # Panics
/// When the time is over.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_or_show(what, limit, |_| look())
}

/// [`eventually`] for a `look` that notes what it saw: the last note is in the panic message after a timeout.
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
        let looked = Instant::now();
        if let Some(found) = look(&mut seen) {
            return found;
        }
        assert!(
            begun.elapsed() < limit,
            "after {limit:?} still waiting until {what}; last seen: {seen:?}"
        );
        // This only sets the poll interval; the condition decides. A check may start a process: checks take at most a
        // third of the time, and the rest is left to what the test waits for.
        std::thread::sleep((2 * looked.elapsed()).clamp(POLL_MIN, POLL_MAX));
    }
}
