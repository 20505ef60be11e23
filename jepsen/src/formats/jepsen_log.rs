//! Lines of a Jepsen log: `INFO  jepsen.util - 3<TAB>:invoke<TAB>:cas<TAB>[0 4]`.
//!
//! A failed `:cas` is an operation that answered false; any other `:fail` did not happen. Lines of other loggers, of
//! the nemesis, and of functions other than `:read`, `:write` and `:cas` are ignored.

use super::{Event, Kind, Line, Lines, ReadError, edn_text};
use crate::value::Value;
use std::io::BufRead;

pub(super) struct Reader<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { lines: Lines::new(input) }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.lines.next()?.and_then(|line| event(&line)) {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(err) => return Some(Err(err)),
            }
        }
    }
}

/// Splits off the next word.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

/// Process, type, function and value text, if this line is an operation: a numeric process with a known function.
fn fields(line: &str) -> Result<Option<(i64, Kind, &str, &str)>, String> {
    let mut rest = line;
    for expected in ["INFO", "jepsen.util", "-"] {
        let (found, after) = word(rest);
        if found != expected {
            return Ok(None);
        }
        rest = after;
    }
    let (process, rest) = word(rest);
    let (kind, rest) = word(rest);
    let (f, rest) = word(rest);
    let f = f.strip_prefix(':').filter(|f| ["read", "write", "cas"].contains(f));
    let digits = process.strip_prefix('-').unwrap_or(process);
    let (Some(f), true) = (f, digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty())
    else {
        return Ok(None);
    };
    let kind = match kind {
        ":invoke" => Kind::Invoke,
        ":ok" => Kind::Ok,
        ":fail" => Kind::Fail,
        ":info" => Kind::Info,
        other => return Err(format!("unknown type {other}")),
    };
    let process = process.parse().map_err(|_| format!("process {process} is too large"))?;
    Ok(Some((process, kind, f, rest)))
}

fn event(line: &Line) -> Result<Option<Event>, ReadError> {
    let fields = fields(&line.text).map_err(|what| ReadError::at(line.number, what))?;
    let Some((process, kind, f, rest)) = fields else { return Ok(None) };
    let (kind, value) = match (kind, f) {
        (Kind::Fail, "cas") => (Kind::Ok, Value::Bool(false)),
        // This field holds the reason: `:timed-out`.
        (Kind::Fail | Kind::Info, _) => (kind, Value::Nil),
        (Kind::Invoke | Kind::Ok, _) => {
            let value = edn_text::value(rest).map_err(|what| ReadError::at(line.number, what))?;
            (kind, value)
        }
    };
    let (number, f) = (line.number, f.into());
    Ok(Some(Event {
        line: number,
        at: number,
        process,
        kind,
        f,
        key: None,
        value,
        position: None,
        request: None,
    }))
}
