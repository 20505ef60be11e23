//! Knossos histories: a vector or list of operation maps, or one map after another.
//!
//! A history that holds only nemesis entries is valid. An entry whose process is a keyword (`:nemesis`) belongs to no
//! client, and is ignored. Tags before a map (`#jepsen.history.Op{…}`) are ignored.
//!
//! *Invariant:* two keys name one object exactly if they are equal as EDN: `0` and `"0"` are two objects.

use super::edn_text::{Form, Text};
use super::{Event, Kind, ReadError};
use crate::value::Value;
use std::io::BufRead;
use std::sync::Arc;

/// Prefix of the names of keys that are not strings.
const NO_STRING: char = '#';

pub(super) struct Reader<R> {
    text: Text<R>,
    /// Inside the one vector or list that holds all entries.
    within: Option<u8>,
    entries: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { text: Text::new(input), within: None, entries: 0 }
    }

    /// The next entry and its line.
    fn entry(&mut self) -> Result<Option<(u64, Form)>, ReadError> {
        loop {
            let next = self.text.peek_form()?;
            let line = self.text.line();
            match (next, self.within) {
                (None, None) => return Ok(None),
                (None, Some(_)) => return Err(ReadError::at(line, "the history has no end")),
                (Some(b'[' | b'('), None) => {
                    let close = if next == Some(b'[') { b']' } else { b')' };
                    self.text.skip()?;
                    self.within = Some(close);
                }
                (Some(found), Some(close)) if found == close => {
                    self.text.skip()?;
                    self.within = None;
                }
                _ => return Ok(Some((line, self.text.form()?))),
            }
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (line, form) = match self.entry() {
                Ok(Some(entry)) => entry,
                Ok(None) if self.entries > 0 => return None,
                Ok(None) => {
                    self.entries += 1;
                    return Some(Err(ReadError::Empty));
                }
                Err(err) => return Some(Err(err)),
            };
            self.entries += 1;
            match event(&form, line, self.entries) {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(what) => return Some(Err(ReadError::at(line, what))),
            }
        }
    }
}

fn event(form: &Form, line: u64, at: u64) -> Result<Option<Event>, String> {
    let Form::Map(entries) = form else {
        return Err("an entry of a history is a map".to_owned());
    };
    let get = |name: &str| {
        let entry = entries.iter().find(|(k, _)| matches!(k, Form::Keyword(k) if k == name));
        entry.map(|(_, value)| value)
    };
    let process = get("process").ok_or("an operation without :process")?;
    let process = match process {
        Form::Value(Value::Int(process)) => process,
        Form::Keyword(_) => return Ok(None),
        other => {
            let other = other.value();
            return Err(format!("a :process is a number or a keyword, not {other}"));
        }
    };
    let kind = match get("type") {
        Some(Form::Keyword(kind)) => match kind.as_str() {
            "invoke" => Kind::Invoke,
            "ok" => Kind::Ok,
            "fail" => Kind::Fail,
            "info" => Kind::Info,
            other => return Err(format!("unknown :type :{other}")),
        },
        _ => return Err("an operation without :type".to_owned()),
    };
    let Some(Form::Keyword(f)) = get("f") else {
        return Err("an operation without :f".to_owned());
    };
    let key = get("key").map(Form::value).and_then(named);
    let value = get("value").map(Form::value).unwrap_or_default();
    let (process, f) = (*process, f.as_str().into());
    Ok(Some(Event { line, at, process, kind, f, key, value, position: None, request: None }))
}

/// An object's name. A string names itself, except that a leading prefix character is doubled.
fn named(key: Value) -> Option<Arc<str>> {
    match key {
        Value::Nil => None,
        Value::Text(key) if key.starts_with(NO_STRING) => Some(format!("{NO_STRING}{key}").into()),
        Value::Text(key) => Some(key),
        other => Some(format!("{NO_STRING}{other}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_exactly_if_they_are_equal() {
        let name = |key: Value| named(key).unwrap_or_default().to_string();
        let text = Value::text;
        let keys = [
            Value::Int(0),
            text("0"),
            text("#0"),
            text("##0"),
            Value::Other(":0".into()),
            text(":0"),
            Value::List(vec![Value::Int(0)]),
            text("[0]"),
        ];
        let mut names: Vec<String> = keys.iter().cloned().map(name).collect();
        assert_eq!((names[0].as_str(), names[1].as_str()), ("#0", "0"));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), keys.len(), "{names:?}");
        assert_eq!(named(Value::Nil), None);
    }
}
