//! The histories that this suite records: JSONL, one [`Record`] per invocation and per completion.
//!
//! *Invariant:* every invocation is written before its request leaves. A completion says `fail` only if the operation
//! certainly was not applied and never will be; an operation that may still take effect is `info`. After `info` the
//! client continues under a new process number. Written values are unique in a history, so that an answer identifies
//! the write that it saw.
//!
//! Absent: the meaning of an operation. A workload chooses `f` and `value`; its model interprets them.

use crate::lines::{Line, Lines, ReadError};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The request is about to leave.
    Invoke,
    /// It was applied; `value` holds the answer.
    Ok,
    /// It was certainly not applied and never will be.
    Fail,
    /// It may have been applied, may be applied later, or never.
    Info,
}

/// One invocation or completion. The workload's model defines the meaning of `f` and `value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Time from the start of the run, by the monotonic clock of the recording machine.
    pub time_ns: u64,
    /// The logical client; it has at most one operation in flight.
    pub process: u64,
    /// What happened to the operation.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The function: `read`, `claim`, …
    pub f: String,
    /// The independent object that it acts on; histories are judged key by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The arguments of an invocation, the answer in an `ok`.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub value: serde_json::Value,
    /// The request id under which the operation was sent, the same on every retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The `coord_epoch` of the member that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The operation's log position, as the answer reports it; for a read, the position that it is as of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<LogPosition>,
    /// It was sent more than once: it may have taken effect before `at`, the position of its repeat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Which member answered, or was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Why it failed or is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A log position: each operation of a merged command has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPosition {
    /// Index of the log entry.
    pub index: u64,
    /// Position within its command, from 0.
    pub position: u32,
}

impl LogPosition {
    /// The position after all of an entry, for a read as of this index.
    pub fn behind(index: u64) -> Self {
        Self { index, position: u32::MAX }
    }
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.position {
            u32::MAX => write!(f, "{} (as of)", self.index),
            position => write!(f, "{}.{position}", self.index),
        }
    }
}

impl Record {
    /// Appends this record to a history as one line.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        to.write_all(&line)
    }
}

/// Reads a recorded history, one record at a time, with the number of its line.
pub struct Reader<R> {
    lines: Lines<R>,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`; blank lines are skipped.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input) }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<(u64, Record), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Line { number, text } = match self.lines.next()? {
                Ok(line) => line,
                Err(err) => return Some(Err(err)),
            };
            if text.trim().is_empty() {
                continue;
            }
            let record = serde_json::from_str(&text).map_err(|err| ReadError::at(number, err));
            return Some(record.map(|record| (number, record)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let record = Record {
            time_ns: 12,
            process: 3,
            kind: Kind::Ok,
            f: "claim".to_owned(),
            key: Some("7".to_owned()),
            value: serde_json::json!({"attempt": 9}),
            request_id: Some("4/1".to_owned()),
            epoch: Some(2),
            at: Some(LogPosition { index: 80, position: 1 }),
            repeated: true,
            member: Some("c1".to_owned()),
            error: None,
        };
        let mut file = Vec::new();
        record.write(&mut file).unwrap();
        file.extend_from_slice(b"\n");
        record.write(&mut file).unwrap();
        let read: Vec<_> = Reader::new(&file[..]).collect::<Result<_, _>>().unwrap();
        assert_eq!(read, [(1, record.clone()), (3, record)]);
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error_with_its_number() {
        let file =
            b"{\"time_ns\":1,\"process\":0,\"type\":\"invoke\",\"f\":\"read\"}\n{\"time\":1}\n";
        let mut reader = Reader::new(&file[..]);
        assert!(reader.next().unwrap().is_ok());
        let err = reader.next().unwrap().unwrap_err().to_string();
        assert!(err.starts_with("line 2: unknown field `time`"), "{err}");
    }
}
