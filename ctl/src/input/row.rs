//! Owns: what a row is: exactly one of `prompt` and `messages`, an optional `id`, any other fields.
//!
//! Invariant: parsing borrows from the line, builds no tree, and never panics; an error has the column, in
//! characters from 1, of what is wrong.
//! Absent: the meaning of other fields; they come back as they were written.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::canonical::{Fields, Text, canonical, plain_message};

/// The most bytes of a row's own id, as JSON.
pub const ID_BYTES_MAX: usize = 1024;

/// What is wrong with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// In characters, from 1.
    pub column: usize,
    /// Lower case, without a full stop.
    pub message: String,
}

/// A row, borrowed from its line.
#[derive(Debug)]
pub struct Row<'a> {
    /// The canonical JSON of the prompt, a string, or of the messages, an array.
    pub prompt_json: Cow<'a, str>,
    /// The canonical JSON of the row's own id.
    pub id_json: Option<Cow<'a, str>>,
}

impl<'a> Row<'a> {
    /// Parses one line.
    pub fn parse(line: &'a str) -> Result<Self, RowError> {
        let raw: RawRow<'a> = serde_json::from_str(line).map_err(|error| RowError {
            column: characters(line, error.column().saturating_sub(1)),
            message: plain_message(&error),
        })?;
        let at = |value: &RawValue, message: String| RowError {
            column: characters(line, offset(line, value.get())),
            message,
        };
        let prompt_json = match (raw.prompt, raw.messages) {
            (Some(prompt), None) => {
                if !prompt.get().starts_with('"') {
                    return Err(at(prompt, "\"prompt\" has to be a string".to_owned()));
                }
                canonical(prompt).map_err(|error| at(prompt, format!("\"prompt\": {error}")))?
            }
            (None, Some(messages)) => {
                check_messages(messages).map_err(|message| at(messages, message))?;
                canonical(messages).map_err(|e| at(messages, format!("\"messages\": {e}")))?
            }
            (Some(_), Some(messages)) => {
                let message = "a row has \"prompt\" or \"messages\", not both";
                return Err(at(messages, message.to_owned()));
            }
            (None, None) => {
                let message = "a row needs \"prompt\" or \"messages\"".to_owned();
                return Err(RowError { column: 1, message });
            }
        };
        let id_json = match raw.id {
            Some(id) => Some(own_id(id).map_err(|message| at(id, message))?),
            None => None,
        };
        Ok(Self { prompt_json, id_json })
    }
}

fn own_id(id: &RawValue) -> Result<Cow<'_, str>, String> {
    let text = id.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !integer && !text.starts_with('"') {
        return Err("\"id\" has to be a string or an integer".to_owned());
    }
    if text == "\"\"" {
        return Err("\"id\" is empty; leave it out or give one".to_owned());
    }
    if text.len() > ID_BYTES_MAX {
        return Err(format!("\"id\" has {} bytes, the most is {ID_BYTES_MAX}", text.len()));
    }
    canonical(id).map_err(|error| format!("\"id\": {error}"))
}

fn check_messages(messages: &RawValue) -> Result<(), String> {
    let wrong = || {
        "\"messages\" has to be an array, not empty, of objects with a \"role\", a string"
            .to_owned()
    };
    let list: Vec<&RawValue> = serde_json::from_str(messages.get()).map_err(|_| wrong())?;
    if list.is_empty() {
        return Err(wrong());
    }
    for message in list {
        let Fields(fields) = serde_json::from_str(message.get()).map_err(|_| wrong())?;
        let mut roles = fields.iter().filter(|(key, _)| key == "role");
        if !roles.next().is_some_and(|(_, role)| role.get().starts_with('"')) {
            return Err(wrong());
        }
    }
    Ok(())
}

/// The place of a value within the line that it is borrowed from.
fn offset(line: &str, value: &str) -> usize {
    (value.as_ptr() as usize).saturating_sub(line.as_ptr() as usize).min(line.len())
}

/// The column, in characters from 1, of the byte at `offset`.
fn characters(line: &str, offset: usize) -> usize {
    let before = &line.as_bytes()[..offset.min(line.len())];
    // A byte that continues a character is none of its own.
    before.iter().filter(|byte| **byte & 0xc0 != 0x80).count() + 1
}

#[derive(Default)]
struct RawRow<'a> {
    prompt: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for RawRow<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowVisitor;
        impl<'de> Visitor<'de> for RowVisitor {
            type Value = RawRow<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a row, a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut row = RawRow::default();
                while let Some(Text(key)) = map.next_key()? {
                    let field = match &*key {
                        "prompt" => &mut row.prompt,
                        "messages" => &mut row.messages,
                        "id" => &mut row.id,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    if field.is_some() {
                        let message = format!("\"{key}\" appears twice");
                        return Err(serde::de::Error::custom(message));
                    }
                    *field = Some(map.next_value()?);
                }
                Ok(row)
            }
        }
        deserializer.deserialize_map(RowVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(line: &str) -> (usize, String) {
        let error = Row::parse(line).expect_err(line);
        (error.column, error.message)
    }

    #[test]
    fn a_row_is_a_prompt_or_messages_with_an_optional_id() {
        let row = Row::parse(r#"{"x": {"prompt": 3}, "prompt": "a\u0062"}"#).unwrap();
        assert_eq!((&*row.prompt_json, row.id_json), (r#""ab""#, None));
        let row = Row::parse(r#"{"id":-7,"messages":[{"role":"user","content":null}]}"#).unwrap();
        assert_eq!(row.prompt_json, r#"[{"content":null,"role":"user"}]"#);
        assert_eq!(row.id_json.as_deref(), Some("-7"));
    }

    #[test]
    fn what_is_wrong_comes_with_its_column() {
        assert_eq!(error(r#"{"prompt": 7}"#).0, 12);
        assert_eq!(error(r#"{"é": 1, "prompt": 7}"#).0, 20);
        assert_eq!(error(r#"{"prompt": "a", "id": 1.5}"#).0, 23);
        assert_eq!(error(r#"{"prompt": "a", "messages": []}"#).0, 29);
        assert_eq!(error(r#"{"text": "a"}"#).0, 1);
        assert_eq!(error(r#"{"prompt": "a" "b"}"#).0, 16);
        assert_eq!(error(r#"{"prompt": "\ud800"}"#).0, 12);
        assert!(error(r#"{"prompt":"a","prompt":"b"}"#).1.contains("appears twice"));
        assert!(error("[1]").1.contains("a row, a JSON object"));
        assert!(error(r#"{"messages":[{"content":"x"}]}"#).1.contains("role"));
        assert!(error(r#"{"prompt":"a"} x"#).1.contains("trailing"));
        assert!(error(r#"{"prompt":"a","id":""}"#).1.contains("empty"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_row_or_an_error_within_its_line(line in "\\PC{0,60}|[{}\\[\\]\":,a-z0-9\\\\ ]{0,60}") {
            if let Err(error) = Row::parse(&line) {
                prop_assert!(error.column >= 1);
                prop_assert!(error.column <= line.chars().count() + 1);
            }
        }

        #[test]
        fn any_prompt_comes_through(prompt in any::<String>(), id in any::<i64>()) {
            let line = serde_json::json!({"id": id, "prompt": prompt, "more": [1]}).to_string();
            let row = Row::parse(&line).unwrap();
            let back: String = serde_json::from_str(&row.prompt_json).unwrap();
            prop_assert_eq!(back, prompt);
            prop_assert_eq!(row.id_json.unwrap(), id.to_string());
        }
    }
}
