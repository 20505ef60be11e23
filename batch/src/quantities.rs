//! Human-readable quantities: counts, bytes, durations.
//!
//! Invariant: at most three significant parts, so that columns stay narrow. In JSON, quantities are plain numbers in
//! base units; a u64 is a string there, because many readers keep 53 bits of a number.

use serde::Serializer;

/// A count with a comma between thousands: `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun in the singular or plural: `1 row`, `2,000 rows`, `3 entries`.
pub fn counted(value: u64, noun: &str) -> String {
    let stem = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o']));
    let number = count(value);
    match stem {
        _ if value == 1 => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

/// Bytes in the largest binary unit that leaves at least one whole: `412 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = value as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 || amount >= 100.0 {
        format!("{amount:.0} {}", UNITS[unit])
    } else {
        format!("{amount:.1} {}", UNITS[unit])
    }
}

/// A duration given in seconds, in its two largest units: `1m 31s`, `4d 2h`, `1.5s`, `12ms`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    if seconds < 1.0 {
        return format!("{:.0}ms", seconds * 1000.0);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    let (days, hours) = (whole / 86_400, whole / 3_600 % 24);
    let (minutes, rest) = (whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        (1..=29, _, _) => format!("{days}d {hours}h"),
        _ => format!("{days}d"),
    }
}

/// How long ago a wall-clock time was, both in milliseconds since 1970: `3m 2s ago`.
pub fn age(then_wall_ms: u64, now_wall_ms: u64) -> String {
    if then_wall_ms == 0 {
        return "-".into();
    }
    format!("{} ago", duration(now_wall_ms.saturating_sub(then_wall_ms) as f64 / 1000.0))
}

/// For `#[serde(serialize_with)]`: a u64 as a string.
///
/// # Errors
/// Those of the serializer.
pub fn u64_string<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let all = [(0, "row"), (1, "row"), (2_000, "row"), (1, "entry"), (2, "entry"), (2, "day")];
        let said = all.map(|(value, noun)| counted(value, noun));
        let expected = ["0 rows", "1 row", "2,000 rows", "1 entry", "2 entries", "2 days"];
        assert_eq!(said, expected);
    }

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(412 << 20), "412 MiB");
        assert_eq!(duration(0.0121), "12ms");
        assert_eq!(duration(1.52), "1.5s");
        assert_eq!(duration(91.0), "1m 31s");
        assert_eq!(duration(7_260.0), "2h 1m");
        assert_eq!(duration(4.0 * 86_400.0 + 7_200.0), "4d 2h");
        assert_eq!(duration(f64::NAN), "-");
        assert_eq!(age(0, 5), "-");
        assert_eq!(age(1_000, 13_000), "12s ago");
    }
}
