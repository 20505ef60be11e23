//! YAML of a JSON value, for people who read or edit such documents.
//!
//! Invariant: any YAML 1.1 or 1.2 reader gets the same value: a text that could be parsed as anything else is quoted
//! as in JSON, which is YAML too. Absent: anchors, tags and folded texts.

use serde_json::Value;

/// The document, ending in a line feed.
pub(super) fn document(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(value, 0, &mut text),
        Value::Array(list) if !list.is_empty() => block(value, 0, &mut text),
        _ => text = scalar(value) + "\n",
    }
    text
}

/// The lines of a map or list that is not empty, each after `indent` spaces except the first.
fn block(value: &Value, indent: usize, text: &mut String) {
    let pad = " ".repeat(indent);
    let mut first = true;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut first) {
            text.push_str(&pad);
        }
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                begin(text);
                text.push_str(&plain_or_quoted(key));
                text.push(':');
                match is_block(value) {
                    true => {
                        text.push('\n');
                        text.push_str(&" ".repeat(indent + 2));
                        block(value, indent + 2, text);
                    }
                    false => text.push_str(&format!(" {}\n", scalar(value))),
                }
            }
        }
        Value::Array(list) => {
            for value in list {
                begin(text);
                text.push_str("- ");
                match is_block(value) {
                    true => block(value, indent + 2, text),
                    false => text.push_str(&(scalar(value) + "\n")),
                }
            }
        }
        _ => text.push_str(&(scalar(value) + "\n")),
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        // Numbers, booleans, null, [] and {} are written as in JSON.
        other => other.to_string(),
    }
}

/// Only a word that no reader parses as a number, a date or a boolean goes without quotes.
fn plain_or_quoted(text: &str) -> String {
    const TAKEN: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.'));
    if word && !TAKEN.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_nest_and_doubtful_texts_are_quoted() {
        let value = json!({
            "kind": "RunList",
            "data": {"runs": [
                {"name": "eval-1", "rows": "1000", "why": null, "labels": {}, "on": true},
                {"name": "a: b", "tags": ["no", "12:30", "ok"], "nested": [[1, 2], []]},
            ]},
        });
        assert_eq!(
            document(&value),
            r#"kind: RunList
data:
  runs:
    - name: eval-1
      rows: "1000"
      why: null
      labels: {}
      "on": true
    - name: "a: b"
      tags:
        - "no"
        - "12:30"
        - ok
      nested:
        - - 1
          - 2
        - []
"#
        );
        assert_eq!(document(&json!("two\nlines")), "\"two\\nlines\"\n");
    }
}
