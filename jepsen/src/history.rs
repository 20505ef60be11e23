//! The histories that this suite records: JSONL, one [`Record`] for each invocation and each
//! completion.
//!
//! *Invariant:* every invocation is written before its request leaves, and a completion says
//! `fail` only if the operation certainly was not applied and never will be; whatever may still
//! take effect is `info`. After `info` the client goes on under a new process number. Written
//! values are unique in a history, so that an answer names the write that it saw.
//!
//! Absent on purpose: what an operation means. A workload chooses `f` and `value`, its model
//! reads them.

use crate::formats::{Line, Lines, ReadError};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

/// What a record tells of its operation.
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

/// One invocation or completion. `f` and `value` mean what the workload's model says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When, by the monotonic clock of the one machine that records, from the start of the run.
    pub time_ns: u64,
    /// The logical client; it has one operation in flight at most.
    pub process: u64,
    /// What happened to the operation.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The function: `read`, `claim`, …
    pub f: String,
    /// Which independent object it concerns; histories are judged key by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The arguments of an invocation, the answer in an `ok`.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub value: serde_json::Value,
    /// The request id under which the operation was sent, the same on every retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The `coord_epoch` of whoever answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Where in the log the answer says that the operation stands; of a read: what it is as of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<LogPosition>,
    /// It was sent more than once: it may have taken effect before `at`, where its repeat stands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Which member answered, or was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Why it failed or is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A place in the log: an operation of a merged command has a position of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPosition {
    /// Index of the log entry.
    pub index: u64,
    /// Position within its command, from 0.
    pub position: u32,
}

impl LogPosition {
    /// Behind all of an entry: where a read stands that is as of this index.
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
    /// What the writer reports.
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
