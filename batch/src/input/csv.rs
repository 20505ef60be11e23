//! Owns: files of comma- or tab-separated values as lines of JSON, one for each row.
//!
//! The first row names the columns. A value is text, and an empty one is null.
//! Invariant: a row's JSON line has the number of the file's line on which the row begins: empty lines are inserted
//! before it as needed. At most a row of [`LINE_BYTES_MAX`] bytes and a buffer of lines are in memory. An invalid row
//! becomes a line that begins with [`NO_ROW`] and says why.
//! Absent: types. Numbers, objects and lists need JSON lines or Parquet.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::chunk::LINE_BYTES_MAX;
use super::unpack::Text;
use crate::canonical::write_string;
use crate::quantities::counted;

/// The first character of a line that is an error instead of a row. No JSON begins with it.
pub(super) const NO_ROW: char = '!';
/// The most columns.
const COLUMNS_MAX: usize = 16 << 10;
/// Lines are converted until the buffer has this many bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// The separator of a file with that name, compressed or not; None if the name is not one of such a file.
pub(super) fn delimiter_of(path: &Path) -> Option<u8> {
    let ending = |path: &Path| {
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        ending.to_ascii_lowercase()
    };
    let last = match ending(path).as_str() {
        "gz" | "gzip" | "zst" | "zstd" => ending(Path::new(path.file_stem()?)),
        _ => ending(path),
    };
    match last.as_str() {
        "csv" => Some(b','),
        "tsv" => Some(b'\t'),
        _ => None,
    }
}

/// Whether a file with that name is read as comma- or tab-separated values, unless it is a Parquet file.
pub fn is_named(path: &Path) -> bool {
    delimiter_of(path).is_some()
}

/// The rows of a file, as text.
pub(super) struct CsvText<'a> {
    records: Records<'a>,
    header: Vec<String>,
    /// The same, as JSON keys.
    keys: Vec<String>,
    lines: Vec<u8>,
    taken: usize,
    /// Lines that were converted.
    made: u64,
    /// The next line, and its number.
    next: Option<(u64, String)>,
    ended: bool,
}

impl<'a> CsvText<'a> {
    pub(super) fn open(text: Text<'a>, delimiter: u8) -> io::Result<Self> {
        let mut records = Records::new(text, delimiter);
        let (mut header, mut next, mut ended) = (Vec::new(), None, false);
        match records.next()? {
            None => ended = true,
            Some((line, record)) => match record.and_then(|record| names(&record)) {
                Ok(names) => header = names,
                Err(message) => {
                    next = Some((line, format!("{NO_ROW}the header: {message}")));
                    ended = true;
                }
            },
        }
        let key = |name: &String| {
            let mut key = String::new();
            write_string(name, &mut key);
            key + ":"
        };
        let keys = header.iter().map(key).collect();
        Ok(Self { records, header, keys, lines: Vec::new(), taken: 0, made: 0, next, ended })
    }

    /// The columns, if the header is valid.
    pub(super) fn columns(&self) -> Option<Vec<String>> {
        (!self.header.is_empty()).then(|| self.header.clone())
    }

    /// Converts the next lines.
    fn fill(&mut self) -> io::Result<()> {
        self.lines.clear();
        self.taken = 0;
        while self.lines.len() < BUFFER_BYTES {
            let Some((line, text)) = &self.next else {
                if self.ended {
                    return Ok(());
                }
                match self.records.next()? {
                    Some((line, record)) => self.next = Some((line, line_of(&self.keys, record))),
                    None => self.ended = true,
                }
                continue;
            };
            let missing = line.saturating_sub(self.made + 1);
            let empty = missing.min((BUFFER_BYTES - self.lines.len()) as u64);
            self.lines.resize(self.lines.len() + empty as usize, b'\n');
            self.made += empty;
            if empty == missing {
                self.lines.extend_from_slice(text.as_bytes());
                self.lines.push(b'\n');
                self.made += 1;
                self.next = None;
            }
        }
        Ok(())
    }
}

/// The line of a row whose values have these keys.
fn line_of(keys: &[String], record: Result<Record<'_>, String>) -> String {
    let values = match record.and_then(|record| record.values()) {
        Ok(values) if values.len() == keys.len() => values,
        Ok(values) => {
            let (values, columns) = (counted(values.len() as u64, "value"), keys.len());
            return format!("{NO_ROW}the row has {values}, and the header {columns}");
        }
        Err(message) => return format!("{NO_ROW}{message}"),
    };
    let mut line = String::from("{");
    for (key, value) in keys.iter().zip(values) {
        if line.len() > 1 {
            line.push(',');
        }
        line.push_str(key);
        match value {
            "" => line.push_str("null"),
            value => write_string(value, &mut line),
        }
    }
    line.push('}');
    line
}

impl Read for CsvText<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.lines.len() {
            self.fill()?;
        }
        let rest = &self.lines[self.taken..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// The names of the columns.
fn names(record: &Record<'_>) -> Result<Vec<String>, String> {
    let names = record.values()?;
    let mut seen = std::collections::HashSet::new();
    match names.iter().find(|name| !seen.insert(**name)) {
        Some(twice) => Err(format!("column {twice:?} appears twice")),
        None => Ok(names.into_iter().map(str::to_owned).collect()),
    }
}

/// A row as it was read.
struct Record<'a> {
    bytes: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Record<'a> {
    fn values(&self) -> Result<Vec<&'a str>, String> {
        let mut begin = 0;
        let value = |end: &usize| {
            let value = &self.bytes[begin..*end];
            begin = *end;
            std::str::from_utf8(value)
        };
        let values = self.ends.iter().map(value).collect::<Result<Vec<_>, _>>();
        values.map_err(|_| "it is not UTF-8; convert the file, for example with iconv".to_owned())
    }
}

/// The line on which a row begins, and the row or its error.
type Numbered<'a> = (u64, Result<Record<'a>, String>);

/// Reads rows.
struct Records<'a> {
    source: BufReader<Text<'a>>,
    parser: Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The current line, from 1.
    line: u64,
}

/// The result of reading a row: the bytes of its values, and their number.
enum Outcome {
    Whole(usize, usize),
    TooLong,
    Unclosed,
}

impl<'a> Records<'a> {
    fn new(text: Text<'a>, delimiter: u8) -> Self {
        let parser = ReaderBuilder::new().delimiter(delimiter).build();
        let (bytes, ends) = (vec![0; 64 << 10], vec![0; 256]);
        Self { source: BufReader::with_capacity(128 << 10, text), parser, bytes, ends, line: 1 }
    }

    /// The next row; None at the end.
    fn next(&mut self) -> io::Result<Option<Numbered<'_>>> {
        if !self.skip_empty_lines()? {
            return Ok(None);
        }
        let line = self.line;
        let record = match self.read()? {
            Outcome::Whole(bytes, ends) => {
                Ok(Record { bytes: &self.bytes[..bytes], ends: &self.ends[..ends] })
            }
            Outcome::TooLong => Err(format!(
                "the row has more than {LINE_BYTES_MAX} bytes or {COLUMNS_MAX} values; is a quote not closed?"
            )),
            Outcome::Unclosed => Err("a quote in it is not closed before the file ends".to_owned()),
        };
        Ok(Some((line, record)))
    }

    /// False at the end.
    fn skip_empty_lines(&mut self) -> io::Result<bool> {
        loop {
            let buffer = self.source.fill_buf()?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let empty = buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let more = empty < buffer.len();
            self.line += ends_of_lines(&buffer[..empty]);
            self.source.consume(empty);
            if more {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> io::Result<Outcome> {
        let (mut bytes, mut ends, mut too_long) = (0, 0, false);
        loop {
            let buffer = self.source.fill_buf()?;
            let at_end = buffer.is_empty();
            // The last row may lack its line end. If it does not end with this one, it is within quotes.
            let input = if at_end { b"\n" } else { buffer };
            let (result, read, written, ended) =
                self.parser.read_record(input, &mut self.bytes[bytes..], &mut self.ends[ends..]);
            (bytes, ends) = (bytes + written, ends + ended);
            if !at_end {
                self.line += ends_of_lines(&input[..read]);
                self.source.consume(read);
            }
            match result {
                ReadRecordResult::InputEmpty if at_end => return Ok(Outcome::Unclosed),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.bytes.len() < LINE_BYTES_MAX => {
                    self.bytes.resize((2 * self.bytes.len()).min(LINE_BYTES_MAX), 0);
                }
                ReadRecordResult::OutputEndsFull if self.ends.len() < COLUMNS_MAX => {
                    self.ends.resize((2 * self.ends.len()).min(COLUMNS_MAX), 0);
                }
                // The rest of it is read and discarded.
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    (bytes, ends, too_long) = (0, 0, true);
                }
                ReadRecordResult::Record | ReadRecordResult::End => {
                    return Ok(if too_long {
                        Outcome::TooLong
                    } else {
                        Outcome::Whole(bytes, ends)
                    });
                }
            }
        }
    }
}

fn ends_of_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests;
