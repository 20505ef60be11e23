//! Owns: reading an OpenAI batch file line by line, from its beginning or from a position that was stored.
//!
//! Invariant: the rows and errors of a file depend on its bytes alone, not on where reading was interrupted. Memory
//! holds a chunk and a line, and a copy while they grow: at most 32 MiB.
//! Absent: what needs the whole file, such as repeated ids (`validate`); where rows go.

mod validate;

use std::io::{self, Read};
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use self::validate::{
    ERRORS_MAX, EachRow, Invalid, Limits, NotTaken, Pass, Report, ValidateError, validate,
};
use super::chunk::{Chunk, ChunkReader, LINE_BYTES_MAX};
use super::line_fault::{LineCode, LineFault};
use super::row::{Row, RowError};
use super::task::Task;
use crate::canonical::Text;
use crate::sampling::Sampling;

const CHUNK_BYTES: usize = 1 << 20;

/// The beginning of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the file before it.
    pub offset: u64,
    /// Lines before it.
    pub lines: u64,
}

/// What every line of a file must agree with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// The batch's endpoint, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// The model; if none, that of the first row.
    pub model: Option<String>,
}

/// A valid line with a request.
#[derive(Debug)]
pub struct BatchRow<'a> {
    /// Its line, from 1.
    pub line: u64,
    /// The line without its end and the space around it: the body of a segment's row.
    pub text: &'a str,
    pub row: Row<'a>,
    /// The model of all rows.
    pub model: &'a str,
    /// The position of the next line, from which reading may be resumed.
    pub next: Position,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineProblem {
    /// From 1.
    pub line: u64,
    pub error: RowError,
}

/// Reads a file. Empty lines are no rows.
#[derive(Debug)]
pub struct BatchFile<R> {
    chunks: ChunkReader<R>,
    checks: Checks,
    sampling: Sampling,
    chunk: Vec<u8>,
    /// The offset of the chunk in the file.
    chunk_offset: u64,
    /// The beginning of the next line in the chunk.
    at: usize,
    lines: u64,
}

/// What a body says that matters here.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    url: &'a RawValue,
    #[serde(borrow)]
    body: Body<'a>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
}

impl<R: Read> BatchFile<R> {
    /// Reads from `position` on; `source` has the bytes from its offset on. A resumed reader needs the model in
    /// `checks`, because it does not see the first row.
    pub fn new(source: R, position: Position, checks: Checks) -> Self {
        Self {
            chunks: ChunkReader::resumed(source, position.offset, CHUNK_BYTES),
            checks,
            sampling: Sampling::default(),
            chunk: Vec::new(),
            chunk_offset: position.offset,
            at: 0,
            lines: position.lines,
        }
    }

    /// The model of the rows, once it is known.
    pub fn model(&self) -> Option<&str> {
        self.checks.model.as_deref()
    }

    /// Lines read so far, empty ones included.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Bytes of the file up to the next line.
    pub fn offset(&self) -> u64 {
        self.chunk_offset + self.at as u64
    }

    /// The next row, or the first problem of the next wrong line. None at the end.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Result<BatchRow<'_>, LineProblem>>> {
        let line = loop {
            if self.at >= self.chunk.len() {
                // Freed before the next chunk is read.
                drop(std::mem::take(&mut self.chunk));
                match self.chunks.next()? {
                    None => {
                        self.begin(Vec::new());
                        return Ok(None);
                    }
                    Some(Chunk::TooLong) => {
                        self.begin(Vec::new());
                        self.lines += 1;
                        return Ok(Some(Err(self.too_long())));
                    }
                    Some(Chunk::Lines(bytes)) => self.begin(bytes),
                }
            }
            let line = self.take_line();
            if !self.chunk[line.clone()].trim_ascii().is_empty() {
                break line;
            }
        };
        let next = Position { offset: self.offset(), lines: self.lines };
        let (number, bytes) = (self.lines, &self.chunk[line]);
        let read = read_line(bytes, &mut self.checks, &self.sampling);
        let model = self.checks.model.as_deref().unwrap_or_default();
        let row = read.map(|(text, row)| BatchRow { line: number, text, row, model, next });
        Ok(Some(row.map_err(|error| LineProblem { line: number, error })))
    }

    fn begin(&mut self, chunk: Vec<u8>) {
        self.chunk_offset = self.chunks.end() - chunk.len() as u64;
        (self.chunk, self.at) = (chunk, 0);
    }

    /// The next line of the chunk, without its end.
    fn take_line(&mut self) -> Range<usize> {
        let (start, rest) = (self.at, &self.chunk[self.at..]);
        let len = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        self.at = (start + len + 1).min(self.chunk.len());
        self.lines += 1;
        start..start + len
    }

    fn too_long(&self) -> LineProblem {
        let message = format!("the line is longer than {LINE_BYTES_MAX} bytes");
        let error =
            problem(LINE_BYTES_MAX + 1, message, LineFault::whole(LineCode::InvalidJsonLine));
        LineProblem { line: self.lines, error }
    }
}

fn problem(column: usize, message: String, fault: LineFault) -> RowError {
    RowError { column, message, fault }
}

fn read_line<'a>(
    bytes: &'a [u8],
    checks: &mut Checks,
    sampling: &Sampling,
) -> Result<(&'a str, Row<'a>), RowError> {
    let line = std::str::from_utf8(bytes).map_err(|error| {
        let column = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).chars().count() + 1;
        let fault = LineFault::whole(LineCode::InvalidJsonLine);
        problem(column, "the line is not UTF-8".to_owned(), fault)
    })?;
    let (text, indent) = (line.trim_ascii(), line.len() - line.trim_ascii_start().len());
    let shifted = |error: RowError| RowError { column: error.column + indent, ..error };
    let row = Row::parse(text, Task::Openai, sampling, None).map_err(shifted)?;
    check(&row, checks).map_err(shifted)?;
    Ok((text, row))
}

/// Checks that a row goes with the others.
fn check(row: &Row<'_>, checks: &mut Checks) -> Result<(), RowError> {
    let refused = |message: String, fault| Err(problem(1, message, fault));
    // The request is canonical, so no field of it appears twice, and this does not fail.
    let request = serde_json::from_str::<Request<'_>>(&row.request_json);
    let request =
        request.and_then(|Request { url, body }| Ok((serde_json::from_str(url.get())?, body)));
    let Ok((Text(url), body)) = request else {
        let message = "the request cannot be read".to_owned();
        return refused(message, LineFault::whole(LineCode::InvalidJsonLine));
    };
    if url != checks.endpoint {
        let message = format!("\"url\" is {url:?}, the batch's endpoint is {:?}", checks.endpoint);
        return refused(message, LineFault::new(LineCode::UrlMismatch, "url"));
    }
    if body.stream.is_some_and(|stream| !matches!(stream.get(), "false" | "null")) {
        let message = "\"stream\" has to be false: the response goes into a file".to_owned();
        return refused(message, LineFault::new(LineCode::StreamingUnsupported, "body.stream"));
    }
    let Some(model) = body.model else {
        let message = "\"body\" needs a \"model\"".to_owned();
        return refused(message, LineFault::missing("body.model"));
    };
    let fault = LineFault::new(LineCode::MismatchedModel, "body.model");
    let Ok(Text(model)) = serde_json::from_str(model.get()) else {
        return refused("\"model\" has to be a string".to_owned(), fault);
    };
    match &checks.model {
        Some(first) if *first != model => {
            let message = format!("\"model\" is {model:?}, the first row's is {first:?}");
            refused(message, fault)
        }
        Some(_) => Ok(()),
        None => {
            checks.model = Some(model.into_owned());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
