//! Owns: a count with its noun, in texts for people.
//!
//! Invariant: one is no plural.
//! Absent: nouns whose plural does not end in `s` alone.

/// `1 row`, `2 rows`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
