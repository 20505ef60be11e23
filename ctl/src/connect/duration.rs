//! Owns: times on the command line: `500ms`, `1.5s`, `2m`, sums such as `1h 30m`, or plain seconds.
//!
//! Invariant: an accepted time is at most a year, so no deadline overflows.
//! Absent: the units, which are those of `humantime`.

use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Parses a time. A number without a unit counts seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let seconds = text.parse().map(Duration::from_secs).ok();
    let duration = match seconds {
        Some(seconds) => seconds,
        None => humantime::parse_duration(text)
            .map_err(|_| format!("{text:?} is not a duration: write 500ms, 30s, 2m or 1h"))?,
    };
    if duration > LONGEST {
        return Err(format!("{text:?} is more than a year"));
    }
    Ok(duration)
}
