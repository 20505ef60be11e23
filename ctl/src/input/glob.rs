//! Owns: globs: `*`, `?`, `[a-z]` within a component of a path, `**` for any number of components.
//!
//! Invariant: files and objects are matched alike; a leading dot must be matched explicitly.
//! Absent: the candidates to match.

/// Whether a pattern is more than a plain path.
pub(super) fn has_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// Whether the components of a path match those of a pattern.
pub(super) fn matches_path(pattern: &[&str], names: &[&str]) -> bool {
    match (pattern.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), Some((name, later))) => {
            matches_path(rest, names) || (!name.starts_with('.') && matches_path(pattern, later))
        }
        (Some((&"**", rest)), None) => matches_path(rest, names),
        (Some((part, rest)), Some((name, later))) => {
            matches(part, name) && matches_path(rest, later)
        }
        _ => false,
    }
}

/// Whether a name matches one component of a glob. A leading dot must be matched explicitly.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // The position of the last star, and how much of the name it matches so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one(&pattern, p, name[n]) {
            p = next;
            n += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            n = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The position after the pattern's element at `p`, if it matches `c`.
fn one(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match *pattern.get(p)? {
        '?' => Some(p + 1),
        '[' => {
            let negated = matches!(pattern.get(p + 1), Some('!' | '^'));
            let first = p + 1 + usize::from(negated);
            // A bracket directly after the opening one is literal.
            let end = (first + 1..pattern.len()).find(|at| pattern[*at] == ']')?;
            let (mut at, mut inside) = (first, false);
            while at < end {
                if at + 2 < end && pattern[at + 1] == '-' {
                    inside |= (pattern[at]..=pattern[at + 2]).contains(&c);
                    at += 3;
                } else {
                    inside |= pattern[at] == c;
                    at += 1;
                }
            }
            (inside != negated).then_some(end + 1)
        }
        plain => (plain == c).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*.jsonl", "a.jsonl"),
            ("a*b*c", "aXbYbc"),
            ("?[a-c]", "xb"),
            ("[!x]1", "y1"),
            ("*", "x"),
            ("[]]", "]"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.jsonl", ".a.jsonl"), ("a*b", "abc"), ("[a-c]", "d"), ("?", ""), ("[!x]", "x")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn two_stars_are_any_number_of_components() {
        let fits = |pattern: &str, path: &str| {
            let (pattern, path): (Vec<_>, Vec<_>) =
                (pattern.split('/').collect(), path.split('/').collect());
            matches_path(&pattern, &path)
        };
        assert!(fits("**/a", "a") && fits("**/a", "x/y/a") && fits("x/**", "x/y/z"));
        assert!(fits("x/*/a?", "x/y/ab") && fits("a", "a"));
        assert!(!fits("x/*", "x/y/z") && !fits("**/a", "x/.y/a") && !fits("a/b", "a"));
    }
}
