//! Owns: times on the command line: `500ms`, `30s`, `2m`, `1h`, or plain seconds.
//!
//! Invariant: an accepted time is at most a year, so no deadline overflows.
//! Absent: sums such as `1m30s`.

use std::time::Duration;

const MS_MAX: u64 = 365 * 24 * 3_600_000;

/// Parses a time. A number without a unit counts seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{text:?} is not a duration: write 500ms, 30s, 2m or 1h")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a duration: write 500ms, 30s, 2m or 1h"))?;
    match number.checked_mul(unit_ms) {
        Some(ms) if ms <= MS_MAX => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is more than a year")),
    }
}
