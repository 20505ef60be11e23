//! Lines of bounded length, numbered, and the error of a line that cannot be read.

use std::fmt::Display;
use std::io::{self, BufRead, Read};

/// The longest line that is read, in bytes; a longer one is an error.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes are not valid in the format.
    #[error("line {line}: {what}")]
    Content {
        /// The line, from 1.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// Nothing of the format was found: a pass would be vacuous.
    #[error("no operation in it; is this the right format?")]
    Empty,
}

impl ReadError {
    pub(crate) fn at(line: u64, what: impl Display) -> Self {
        Self::Content { line, what: what.to_string() }
    }
}

/// One line without its end. Bytes that are no UTF-8 are replaced.
#[derive(Debug)]
pub struct Line {
    /// From 1.
    pub number: u64,
    pub text: String,
}

/// The lines of an input.
pub struct Lines<R> {
    input: R,
    read: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads lines from `input`.
    pub fn new(input: R) -> Self {
        Self { input, read: 0 }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<Line, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        let mut bounded = self.input.by_ref().take(MAX_LINE_BYTES);
        match bounded.read_until(b'\n', &mut bytes) {
            Ok(0) => return None,
            Ok(_) => self.read += 1,
            Err(err) => return Some(Err(err.into())),
        }
        if bytes.len() as u64 == MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
            let what = format!("longer than {MAX_LINE_BYTES} bytes");
            return Some(Err(ReadError::at(self.read, what)));
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(['\n', '\r']).to_owned();
        Some(Ok(Line { number: self.read, text }))
    }
}
