//! A count with its noun.
//!
//! Invariant: one of a thing is not told as several. Deliberately absent: nouns whose plural is not their own with an `s`.

use crate::output::count;

/// `1 row`, `2,000 rows`.
pub(in crate::rolloutctl) fn counted(value: u64, noun: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(0, "row"), "0 rows");
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(2_000, "row"), "2,000 rows");
    }
}
