//! Reading histories: each format turns its bytes into the same [`Event`]s, one at a time.
//!
//! *Invariant:* a reader never guesses. Input that belongs to the format but cannot be read is an error with its
//! line; input that the format says to ignore is ignored. Past this module, `fail` means in every format that the
//! operation did not happen.

mod edn;
mod edn_number;
mod edn_text;
mod jepsen_log;
mod jsonl;

pub use crate::history::Kind;
pub use crate::lines::{Line, Lines, ReadError};

use crate::history::LogPosition;
use crate::value::Value;
use std::io::BufRead;
use std::sync::Arc;

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines of a Jepsen log: `INFO  jepsen.util - 3 :invoke :cas [0 4]`
    JepsenLog,
    /// Knossos: a vector, or one map per line, of `{:process 4, :type :invoke, :f :write, :value 2}`
    Edn,
    /// The JSONL records of this suite
    Jsonl,
}

/// One invocation or completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its line, from 1.
    pub line: u64,
    /// Its time; only the order counts, and equal times are taken as concurrent.
    pub at: u64,
    pub process: i64,
    /// What happened to the operation.
    pub kind: Kind,
    /// The function.
    pub f: Arc<str>,
    /// The independent object that it concerns.
    pub key: Option<Arc<str>>,
    /// Arguments or answer.
    pub value: Value,
    /// The log position that an answer carries.
    pub position: Option<ReportedPosition>,
    /// The request by which an operation was sent.
    pub request: Option<Arc<str>>,
}

/// A log position, as an answer reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedPosition {
    /// The position.
    pub at: LogPosition,
    /// The epoch of the member that answered.
    pub epoch: Option<u64>,
    /// The operation was sent more than once, and may have taken effect before.
    pub repeated: bool,
}

/// The events of one history.
pub type Events<'a> = Box<dyn Iterator<Item = Result<Event, ReadError>> + 'a>;

/// Reads the events of a history. A history in which the format finds no events is an error.
pub fn events<'a>(format: Format, input: impl BufRead + 'a) -> Events<'a> {
    match format {
        Format::JepsenLog => Box::new(not_empty(jepsen_log::Reader::new(input))),
        Format::Edn => Box::new(edn::Reader::new(input)),
        Format::Jsonl => Box::new(not_empty(jsonl::events(input))),
    }
}

fn not_empty(
    mut events: impl Iterator<Item = Result<Event, ReadError>>,
) -> impl Iterator<Item = Result<Event, ReadError>> {
    let first = events.next().unwrap_or(Err(ReadError::Empty));
    std::iter::once(first).chain(events)
}
