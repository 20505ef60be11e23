//! Owns: the line of help for a refused configuration key or value.
//!
//! Invariant: it suggests a known key only if that is close enough to the refused one.
//! Absent: the list of known keys; serde's own message has it.

use std::ops::Range;

use crate::former;

/// The line number, from 1, of a position in a text.
pub fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let at = span.map_or(0, |span| span.start).min(text.len());
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Serde's message in plain words, with the nearest known key or value if it is about an unknown one.
pub fn explain(message: &str) -> String {
    let message = message.trim();
    if let Some((unknown, allowed)) = unknown_of(message, "unknown field `") {
        return match nearest(unknown, allowed.iter().copied()) {
            Some(key) => format!("unknown key {unknown:?}, did you mean {key:?}?"),
            None => format!("unknown key {unknown:?}; known are {}", allowed.join(", ")),
        };
    }
    if let Some((unknown, allowed)) = unknown_of(message, "unknown variant `") {
        let meant = nearest(unknown, allowed.iter().copied());
        let meant = meant.map(|value| format!("did you mean {value:?}? ")).unwrap_or_default();
        return format!(
            "{unknown:?} is not allowed; {meant}allowed values: {}",
            allowed.join(", ")
        );
    }
    if let Some(key) =
        message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'))
    {
        return format!("the key {key:?} is missing");
    }
    let wrong = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "));
    match wrong {
        Some((found, expected)) => {
            format!("expected {}, found {}", allowed(expected), given(found))
        }
        None => message.to_owned(),
    }
}

/// Like [`explain`], with the key at that position of a TOML text.
pub fn explain_at(text: &str, span: Option<Range<usize>>, message: &str) -> String {
    let explained = explain(message);
    match span.and_then(|span| key_at(text, span.start)) {
        Some(key) => format!("{key}: {explained}"),
        None => explained,
    }
}

/// The unknown item and the known ones in a message that starts with `begin`.
fn unknown_of<'a>(message: &'a str, begin: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (unknown, expected) = message.strip_prefix(begin)?.split_once('`')?;
    let known = expected.split('`').skip(1).step_by(2);
    Some((unknown, known.filter(|name| !former::is_former(name)).collect()))
}

/// A Rust type in plain words.
fn allowed(expected: &str) -> String {
    match expected {
        "f32" | "f64" => "a number".into(),
        "u8" => whole_from_zero_to(u8::MAX.into()),
        "u16" => whole_from_zero_to(u16::MAX.into()),
        "u32" => whole_from_zero_to(u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "a boolean" => "true or false".into(),
        "a borrowed string" => "a string".into(),
        "path string" => "a path, as a string".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        other if other.starts_with("struct ") => "a table".into(),
        // Messages of this project may start with the word that precedes them.
        other => other.strip_prefix("expected ").unwrap_or(other).to_owned(),
    }
}

fn whole_from_zero_to(most: u64) -> String {
    format!("a whole number from 0 to {most}")
}

/// A value in serde's terms, in plain words.
fn given(found: &str) -> String {
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    let value = value.trim_matches('`');
    match kind {
        "integer" | "boolean" => value.to_owned(),
        "floating" => value.trim_start_matches("point `").to_owned(),
        "string" => format!("the string {value}"),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => found.to_owned(),
    }
}

/// The key, with its table, at a position of a TOML text.
fn key_at(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let begin = before.rfind('\n').map_or(0, |end| end + 1);
    let (above, line) = text.split_at(begin);
    let header = |line: &str| {
        let line = line.trim();
        let name = line.strip_prefix('[')?.trim_start_matches('[');
        Some(name.split(']').next()?.trim().to_owned())
    };
    let this = line.lines().next().unwrap_or("");
    if !this.contains('=')
        && let Some(table) = header(this)
    {
        return Some(table).filter(|table| !table.is_empty());
    }
    let names = keys_before(&before[begin..]).unwrap_or_default();
    let table = above.lines().rev().filter(|line| !line.contains('=')).find_map(header);
    let path = table.into_iter().chain(names).collect::<Vec<_>>().join(".");
    Some(path).filter(|path| !path.is_empty())
}

/// The key of a line, and that of an inline table in it, before the value.
fn keys_before(text: &str) -> Option<Vec<String>> {
    let is_key = |word: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.\"".contains(c);
        !word.is_empty() && word.chars().all(plain)
    };
    let (head, _) = text.rsplit_once('=')?;
    let first = head.split('=').next().map(str::trim).filter(is_key)?;
    let last = head.rsplit(['{', ',', '=']).next().map(str::trim).filter(is_key);
    let inner = last.filter(|last| head.contains('{') && *last != first);
    Some([Some(first), inner].into_iter().flatten().map(str::to_owned).collect())
}

/// The candidate that the user probably meant.
pub fn nearest<'a>(given: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    allowed
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
        let message = "unknown field `enrolmet`, expected `enrollment` or `enrolment`";
        assert_eq!(explain(message), "unknown key \"enrolmet\", did you mean \"enrollment\"?");
        assert_eq!(explain("invalid type: string"), "invalid type: string");
    }

    #[test]
    fn the_error_for_a_value_of_another_type_says_what_is_allowed() {
        for (message, told) in [
            (
                r#"invalid type: string "hot", expected f64"#,
                r#"expected a number, found the string "hot""#,
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "expected a whole number from 0 to 4294967295, found -1",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "expected a whole number, 0 or more, found 1.5",
            ),
            ("invalid type: boolean `true`, expected a string", "expected a string, found true"),
            ("invalid type: map, expected a boolean", "expected true or false, found a table"),
            ("missing field `uri`", "the key \"uri\" is missing"),
            (
                "unknown variant `jsonll`, expected `jsonl` or `parquet`",
                "\"jsonll\" is not allowed; did you mean \"jsonl\"? allowed values: jsonl, parquet",
            ),
            (
                "unknown variant `x`, expected one of `a`, `b`, `c`",
                "\"x\" is not allowed; allowed values: a, b, c",
            ),
        ] {
            assert_eq!(explain(message), told);
        }
    }

    #[test]
    fn the_key_of_a_place_is_named_with_its_table() {
        let text = "top = 1\n[sampling] # of all rows\ntemperature = \"hot\"\n\n[[engine]]\nargs = { tp = 2, x = true }\n";
        let of = |value: &str| key_at(text, text.find(value).unwrap());
        assert_eq!(of("1\n").as_deref(), Some("top"));
        assert_eq!(of("\"hot\"").as_deref(), Some("sampling.temperature"));
        assert_eq!(of("{ tp").as_deref(), Some("engine.args"));
        assert_eq!(of("true").as_deref(), Some("engine.args.x"));
        assert_eq!(of("[sampling]").as_deref(), Some("sampling"));
        assert_eq!(key_at("", 0), None);
        let hot = text.find("\"hot\"").unwrap();
        let told =
            explain_at(text, Some(hot..hot + 5), r#"invalid type: string "hot", expected f64"#);
        assert_eq!(told, "sampling.temperature: expected a number, found the string \"hot\"");
        let unknown =
            explain_at("[run]\nfoo = 1\n", Some(6..9), "unknown field `foo`, expected `name`");
        assert_eq!(unknown, "run: unknown key \"foo\"; known are name");
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(line_of("a\nb\n", Some(2..3)), 2);
        assert_eq!(line_of("a", Some(99..100)), 1);
        assert_eq!(line_of("", None), 1);
    }
}
