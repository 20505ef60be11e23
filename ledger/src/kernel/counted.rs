//! Owns: a count with its noun, in human-readable texts.
//!
//! Invariant: a count of one takes the singular.
//! Absent: nouns whose plural is not formed by adding `s`.

/// `1 row`, `2 rows`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
