//! Knossos histories: a vector or list of operation maps, or one map after another.
//!
//! A history of nothing but the nemesis is a history. An entry whose process is no number is the nemesis's, and is ignored. Tags before a map
//! (`#jepsen.history.Op{…}`) are ignored.

use super::edn_text::{Form, Text};
use super::{Event, Kind, ReadError};
use crate::value::Value;
use std::io::BufRead;

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
    let Form::Value(Value::Int(process)) = process else { return Ok(None) };
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
    let key = match get("key").map(Form::value) {
        None | Some(Value::Nil) => None,
        Some(Value::Text(key)) => Some(key),
        Some(other) => Some(other.to_string().into()),
    };
    let value = get("value").map(Form::value).unwrap_or_default();
    let (process, f) = (*process, f.as_str().into());
    Ok(Some(Event { line, at, process, kind, f, key, value, place: None, request: None }))
}
