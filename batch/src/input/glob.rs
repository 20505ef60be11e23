//! Owns: globs: `*`, `?`, `[a-z]` within a component of a path, `**` for any number of components.
//!
//! Invariant: files and objects are matched alike; a leading dot must be matched explicitly.
//! Absent: the candidates to match.

use glob::{MatchOptions, Pattern};

use super::files::FilesError;

const AS_IN_A_SHELL: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Whether a pattern is more than a plain path.
pub(super) fn has_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// A glob for names, or for paths.
#[derive(Debug)]
pub(super) struct Glob(Pattern);

impl Glob {
    pub(super) fn parse(pattern: &str) -> Result<Self, FilesError> {
        // Shells take `^` for `!`; the library does not.
        Pattern::new(&pattern.replace("[^", "[!"))
            .map(Self)
            .map_err(|error| FilesError::BadGlob { pattern: pattern.to_owned(), reason: error.msg })
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.0.matches_with(path, AS_IN_A_SHELL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Glob::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*.jsonl", "a.jsonl"),
            ("a*b*c", "aXbYbc"),
            ("?[a-c]", "xb"),
            ("[!x]1", "y1"),
            ("[^x]1", "y1"),
            ("*", "x"),
            ("[]]", "]"),
            ("{a}*", "{a}b"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.jsonl", ".a.jsonl"),
            ("a*b", "abc"),
            ("[a-c]", "d"),
            ("?", ""),
            ("[!x]", "x"),
            ("[^x]", "x"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn two_stars_are_any_number_of_components() {
        assert!(matches("**/a", "a") && matches("**/a", "x/y/a") && matches("x/**", "x/y/z"));
        assert!(matches("x/*/a?", "x/y/ab") && matches("a", "a"));
        assert!(!matches("x/*", "x/y/z") && !matches("**/a", "x/.y/a") && !matches("a/b", "a"));
    }

    #[test]
    fn a_glob_that_cannot_be_read_is_an_error() {
        for bad in ["a[0-9.jsonl", "a**", "***"] {
            let error = Glob::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("write [[] or [*]"), "{error}");
        }
    }
}
