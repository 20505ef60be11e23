//! Owns: turning a refused configuration key into a helpful line.
//!
//! Invariant: a suggestion is made only where a known key is close enough to be meant.
//! Absent: which keys are known; serde's own message lists them.

use std::ops::Range;

/// The line, from 1, of a place in a text.
pub fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let at = span.map_or(0, |span| span.start).min(text.len());
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Serde's message, with the nearest known key where it is about an unknown one.
pub fn explain(message: &str) -> String {
    let message = message.trim();
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.to_owned();
    };
    let Some((unknown, expected)) = rest.split_once('`') else {
        return message.to_owned();
    };
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    match nearest(unknown, known.iter().copied()) {
        Some(key) => format!("unknown key {unknown:?}, did you mean {key:?}?"),
        None => format!("unknown key {unknown:?}; known are {}", known.join(", ")),
    }
}

/// The candidate that was probably meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|key| (strsim::jaro_winkler(given, key), key))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let message = "unknown field `temprature`, expected one of `temperature`, `top_p`";
        assert_eq!(explain(message), "unknown key \"temprature\", did you mean \"temperature\"?");
        let message = "unknown field `zzz`, expected `uri` or `revision`";
        assert_eq!(explain(message), "unknown key \"zzz\"; known are uri, revision");
        assert_eq!(explain("invalid type: string"), "invalid type: string");
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(line_of("a\nb\n", Some(2..3)), 2);
        assert_eq!(line_of("a", Some(99..100)), 1);
        assert_eq!(line_of("", None), 1);
    }
}
