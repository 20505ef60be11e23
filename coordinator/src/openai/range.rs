//! The header `Range` of a request for bytes.
//!
//! *Invariant:* as RFC 9110 requires, a header that is not understood is ignored, and one that is outside of the content
//! is refused.
//! Absent: several ranges in one request, which get the whole content.

use std::ops::Range;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range<u64>),
    /// Nothing of the content is in the range.
    Unsatisfiable,
}

/// What a header asks for of a content of `len` bytes.
pub(super) fn wanted(header: &str, len: u64) -> Wanted {
    let bounds = header.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'));
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    let (from, to) = match bounds {
        Some(("", last)) => match number(last) {
            Some(last) => (len.saturating_sub(last), len),
            None => return Wanted::Whole,
        },
        Some((first, "")) => match number(first) {
            Some(first) => (first, len),
            None => return Wanted::Whole,
        },
        Some((first, last)) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, len.min(last.saturating_add(1))),
            _ => return Wanted::Whole,
        },
        None => return Wanted::Whole,
    };
    if from < to { Wanted::Part(from..to) } else { Wanted::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_clipped_to_the_content_and_a_strange_header_is_ignored() {
        for (header, expected) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=2-5", Wanted::Part(2..6)),
            ("bytes=8-100", Wanted::Part(8..10)),
            ("bytes=7-", Wanted::Part(7..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=10-12", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("bytes=1-2,4-5", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("", Wanted::Whole),
        ] {
            assert_eq!(wanted(header, 10), expected, "{header}");
        }
        assert_eq!(wanted("bytes=0-", 0), Wanted::Unsatisfiable);
    }
}
