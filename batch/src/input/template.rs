//! Owns: the template that builds a prompt from a row's columns: `{title}\n{body}`.
//!
//! Invariant: text without braces is literal, `{{` and `}}` are one brace each, `{name}` is the column of that name: a
//! string as its text, null as nothing, any other value as its JSON.
//! Absent: expressions and formats.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::canonical::{Text, plain_message};

/// The most bytes of a template.
pub const TEMPLATE_BYTES_MAX: usize = 16 << 10;

/// A template, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Column(String),
}

impl Template {
    /// Parses a template; an error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("is longer than {TEMPLATE_BYTES_MAX} bytes"));
        }
        let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = behind;
                continue;
            }
            let end = rest.find(['{', '}']).filter(|end| rest[*end..].starts_with('}'));
            let (true, Some(end)) = (brace == "{", end) else {
                return Err(format!("has a single {brace}; write {brace}{brace} for one brace"));
            };
            if end == 0 {
                return Err("has {} without the name of a column".to_owned());
            }
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Column(rest[..end].to_owned()));
            rest = &rest[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        match pieces.iter().any(|piece| matches!(piece, Piece::Column(_))) {
            true => Ok(Self { pieces }),
            false => Err("names no column, so that every prompt would be the same".to_owned()),
        }
    }

    /// The columns that it names.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Column(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The prompt of a row.
    pub(crate) fn fill(&self, fields: &[(Cow<'_, str>, &RawValue)]) -> Result<String, String> {
        let mut prompt = String::new();
        for piece in &self.pieces {
            let name = match piece {
                Piece::Text(text) => {
                    prompt.push_str(text);
                    continue;
                }
                Piece::Column(name) => name,
            };
            let Some((_, value)) = fields.iter().find(|(field, _)| field == name) else {
                return Err(format!("the row has no column {name:?}, which the template names"));
            };
            match value.get().as_bytes().first() {
                Some(b'"') => {
                    let Text(text) = serde_json::from_str(value.get())
                        .map_err(|error| format!("{name:?}: {}", plain_message(&error)))?;
                    prompt.push_str(&text);
                }
                Some(b'n') => {}
                _ => prompt.push_str(value.get()),
            }
        }
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::Fields;

    fn fill(template: &str, row: &str) -> Result<String, String> {
        let Fields(fields) = serde_json::from_str(row).unwrap();
        Template::parse(template)?.fill(&fields)
    }

    #[test]
    fn columns_are_filled_in_and_doubled_braces_are_braces() {
        let row =
            r#"{"title": "a\n\"b\"", "n": 1.50, "x": null, "list": [1, {"y":2}], "é 1": "z"}"#;
        for (template, prompt) in [
            ("{title}", "a\n\"b\""),
            ("{n}:{x}:{list}", "1.50::[1, {\"y\":2}]"),
            ("{{{n}}} {{n}}", "{1.50} {n}"),
            ("é{é 1}é", "ézé"),
        ] {
            assert_eq!(fill(template, row).unwrap(), prompt, "{template}");
        }
    }

    #[test]
    fn an_invalid_template_says_why() {
        for (template, why) in [
            ("plain", "names no column"),
            ("a {", "single {"),
            ("a } {b}", "single }"),
            ("{a{b}}", "single {"),
            ("{}", "without the name"),
            ("{n} {missing}", "no column \"missing\""),
        ] {
            let error = fill(template, r#"{"n": 1}"#).unwrap_err();
            assert!(error.contains(why), "{template}: {error}");
        }
        let long = "x".repeat(TEMPLATE_BYTES_MAX) + "{a}";
        assert!(Template::parse(&long).unwrap_err().contains("longer"));
    }
}
