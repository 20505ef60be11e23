//! EDN numbers in a canonical form.
//!
//! *Invariant:* equal numbers become equal values however they are written (`1.0` and `1.00`, a whole number with or
//! without its `N`) and however large they are; different numbers stay different.
//!
//! Absent: decimals (`1.0M`) and fractions, with which no model computes. They stay as they were written.

use crate::value::Value;

/// Parses a number; `None` if the word is not one.
pub(super) fn value(word: &str) -> Option<Value> {
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits = unsigned.strip_suffix('N').unwrap_or(unsigned);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let sign = if word.starts_with('-') { "-" } else { "" };
        let whole = format!("{sign}{digits}");
        let large = || Value::Other(format!("{sign}{}", digits.trim_start_matches('0')).into());
        return Some(whole.parse().map_or_else(|_| large(), Value::Int));
    }
    word.parse::<f64>().ok().filter(|float| float.is_finite()).map(Value::float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_equal_however_they_are_written() {
        let read = |text: &str| value(text).unwrap_or_else(|| Value::Other(text.into()));
        for (one, other) in [
            ("7", "7N"),
            ("7", "+7"),
            ("0", "-0"),
            ("99999999999999999999", "99999999999999999999N"),
            ("-99999999999999999999", "-99999999999999999999N"),
            ("99999999999999999999", "+99999999999999999999"),
            ("1.0", "1.00"),
            ("1e3", "1000.0"),
            ("0.0", "-0.0"),
        ] {
            assert_eq!(read(one), read(other), "{one} and {other}");
        }
        for (one, other) in [
            ("99999999999999999999", "99999999999999999998"),
            ("99999999999999999999", "-99999999999999999999"),
            ("1", "1.0"),
            ("1.0", "1.0M"),
            ("1.0", "1.5"),
            ("1e999", "2e999"),
        ] {
            assert_ne!(read(one), read(other), "{one} and {other}");
        }
    }
}
