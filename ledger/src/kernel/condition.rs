//! Conditions on what a slot reports: `>=0.32,<0.40` for a version, `H100` for a device.
//!
//! *Invariant:* whether a text meets a condition depends on the two texts alone. Terms are separated by commas, and
//! all of them must be met. Versions are compared number by number; a pre-release comes before its release, and
//! everything after a `+` is ignored.
//!
//! Absent: ranges of anything but versions.

use std::cmp::Ordering;

/// The requirement of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// Without an operator: the text, or one of its words.
    Word,
    /// The same version, or, if the operand is not a version, the same text.
    Same,
    Other,
    AtLeast,
    AtMost,
    Above,
    Below,
}

fn terms(condition: &str) -> impl Iterator<Item = (Comparison, &str)> {
    condition.split(',').map(|term| {
        let term = term.trim();
        let signs = [
            (">=", Comparison::AtLeast),
            ("<=", Comparison::AtMost),
            ("==", Comparison::Same),
            ("!=", Comparison::Other),
            (">", Comparison::Above),
            ("<", Comparison::Below),
            ("=", Comparison::Same),
        ];
        let signed = signs
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, term.strip_prefix(sign)?)));
        signed
            .map_or((Comparison::Word, term), |(comparison, operand)| (comparison, operand.trim()))
    })
}

/// Refuses a condition that cannot be compared with anything.
pub(crate) fn check(condition: &str) -> Result<(), String> {
    for (comparison, operand) in terms(condition) {
        if operand.is_empty() {
            return Err(format!("{condition:?} asks for nothing"));
        }
        let ordered = matches!(
            comparison,
            Comparison::AtLeast | Comparison::AtMost | Comparison::Above | Comparison::Below
        );
        if ordered && !is_version(operand) {
            return Err(format!("{operand:?} in {condition:?} is no version, such as 0.32"));
        }
    }
    Ok(())
}

/// Whether `offered` meets a condition.
pub(crate) fn meets(offered: &str, condition: &str) -> bool {
    terms(condition).all(|(comparison, operand)| {
        let same = match is_version(operand) && is_version(offered) {
            true => compare(offered, operand) == Ordering::Equal,
            false => offered == operand,
        };
        let order = is_version(offered).then(|| compare(offered, operand));
        match comparison {
            Comparison::Word => same || offered.split_whitespace().any(|word| word == operand),
            Comparison::Same => same,
            Comparison::Other => !same,
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::Above => order.is_some_and(Ordering::is_gt),
            Comparison::Below => order.is_some_and(Ordering::is_lt),
        }
    })
}

/// Begins with a number that ends at a dot, a letter, or the end.
fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(char::is_whitespace)
}

fn compare(one: &str, other: &str) -> Ordering {
    let parts = |version: &str| -> Vec<Part> {
        let public = version.split('+').next().unwrap_or_default();
        public.split('.').map(Part::of).collect()
    };
    let (mut one, mut other) = (parts(one), parts(other));
    let len = one.len().max(other.len());
    one.resize_with(len, || Part::of("0"));
    other.resize_with(len, || Part::of("0"));
    one.cmp(&other)
}

/// The part of a version between two dots: `2`, `0rc1`, `post1`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    number: u64,
    /// Below zero for a pre-release, above for a later one.
    rank: i8,
    letters: String,
    nth: u64,
}

impl Part {
    fn of(text: &str) -> Self {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits(text));
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (letters, nth) = rest.split_at(end);
        let count = |text: &str| match text.is_empty() {
            true => 0,
            // Longer than any version has.
            false => text[..digits(text)].parse().unwrap_or(u64::MAX),
        };
        let rank = match letters {
            "" => 0,
            later if later.starts_with("post") => 1,
            _ => -1,
        };
        Self { number: count(number), rank, letters: letters.to_owned(), nth: count(nth) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_pre_releases_come_before() {
        for (offered, condition, met) in [
            ("0.32.0", ">=0.32", true),
            ("0.9.1", ">=0.32", false),
            ("0.32.0+cpu", "== 0.32", true),
            ("0.32.0rc1", ">=0.32", false),
            ("0.32.0.dev7+g1a2b", "<0.32", true),
            ("0.32.0.post1", ">0.32", true),
            ("0.33.1", ">= 0.32, < 0.34", true),
            ("0.34.0", ">= 0.32, < 0.34", false),
            ("0.34.0", "<=0.34", true),
            ("570.124.06", ">=570.86", true),
            ("0.32.1", "!=0.32.1", false),
            ("0.32.1", "0.32.1", true),
            ("0.32.10", "0.32.1", false),
            ("unknown", ">=0.1", false),
            ("unknown", "!=0.1", true),
        ] {
            assert_eq!(meets(offered, condition), met, "{offered} {condition}");
        }
    }

    #[test]
    fn a_device_is_named_by_a_word_of_its_name() {
        let name = "NVIDIA H100 80GB HBM3";
        assert!(meets(name, "H100") && meets(name, name) && meets(name, "H100,80GB"));
        assert!(!meets(name, "H10") && !meets(name, "A100") && !meets(name, "=H100"));
        assert!(meets(name, "!=H200"));
    }

    #[test]
    fn a_condition_that_asks_for_nothing_is_refused() {
        for good in [">=0.32", "H100", ">= 0.32 , < 1", "=main"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ">=", ">=0.32,", "< H100", ">="] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
