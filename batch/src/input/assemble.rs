//! Owns: parsed chunks assembled, in the order of the input, into segments.
//!
//! Invariant: segments depend on the rows and their order alone, not on files, chunks or threads, so submitting again
//! gives the same objects. The first error stops the making of segments, unless the caller wants them, but not the
//! reading.
//! Absent: threads.

use std::io;

use bytes::Bytes;
use rollout_storage::{Full, SegmentWriter};

use super::admission::{Admission, Verdict};
use super::duplicates::Duplicates;
use super::occurrence::Occurrences;
use super::rules::Rules;
use super::scan::{LineError, Scan, SegmentSink, SinkClosed};

/// One row of a parsed chunk.
#[derive(Debug)]
pub(super) struct ParsedRow {
    /// The position of its JSON in the chunk.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Its line, from 0 within the chunk.
    pub(super) line: u64,
    /// Its ID; that of a first occurrence if it has no ID of its own.
    pub(super) item_id: [u8; 32],
    /// The hash of its own id.
    pub(super) own_id: Option<u128>,
}

/// A chunk and its rows.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) file: u32,
    /// The first chunk of its file.
    pub(super) first: bool,
    /// Its lines are rows of a table.
    pub(super) tabular: bool,
    /// The error of the file as a whole, if any.
    pub(super) whole: Option<String>,
    /// Which mapped columns its rows have, one bit each.
    pub(super) present: u16,
    /// The columns of its first row, if columns are mapped.
    pub(super) columns: Vec<String>,
    pub(super) bytes: Vec<u8>,
    /// Rows that differ from their lines, while the chunk is parsed.
    pub(super) rewritten: Vec<u8>,
    pub(super) lines: u64,
    pub(super) rows: Vec<ParsedRow>,
    pub(super) errors: Notes,
    pub(super) warnings: Notes,
}

/// Messages about a chunk's lines.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The first of them: line within the chunk, column, message.
    first: Vec<(u64, usize, String)>,
    /// The number of further ones.
    more: u64,
}

/// Messages that are kept of one chunk.
const CHUNK_NOTES_MAX: usize = 1000;

impl Notes {
    pub(super) fn note(&mut self, line: u64, column: usize, message: String) {
        if self.first.len() < CHUNK_NOTES_MAX {
            self.first.push((line, column, message));
        } else {
            self.more += 1;
        }
    }
}

#[derive(Debug, Clone)]
pub struct FinishedSegment {
    /// Its number, from 0.
    pub number: u32,
    pub rows: u32,
    /// Its encoded bytes.
    pub bytes: Bytes,
}

pub(super) struct Assembler<'a> {
    pub(super) scan: Scan,
    errors_max: usize,
    past_errors: bool,
    rules: Rules,
    duplicates: Duplicates,
    occurrences: Occurrences,
    segment: SegmentWriter,
    sink: Option<&'a mut SegmentSink<'a>>,
    /// Which rows are omitted, and the digest of all IDs so far.
    admission: Option<(Admission, blake3::Hasher)>,
    /// Lines of this file in the chunks before.
    lines_before: u64,
    /// Whether this file is a table.
    tabular: bool,
    /// Which mapped columns the rows so far have, one bit each.
    present: u16,
    /// The columns of the first row, if columns are mapped.
    columns: Vec<String>,
}

pub(super) enum Stop {
    Io(io::Error),
    Sink,
    /// An error after which nothing more is reported about the input.
    Enough,
}

impl From<SinkClosed> for Stop {
    fn from(SinkClosed: SinkClosed) -> Self {
        Self::Sink
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<'a> Assembler<'a> {
    pub(super) fn new(
        rules: Rules,
        duplicates: Duplicates,
        (errors_max, past_errors): (usize, bool),
        sink: Option<&'a mut SegmentSink<'a>>,
        admission: Option<Admission>,
    ) -> Self {
        Self {
            scan: Scan::default(),
            errors_max,
            past_errors,
            rules,
            duplicates,
            occurrences: Occurrences::new(),
            segment: SegmentWriter::new(),
            sink,
            admission: admission.map(|admission| (admission, blake3::Hasher::new())),
            lines_before: 0,
            tabular: false,
            present: 0,
            columns: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, parsed: &Parsed) -> Result<(), Stop> {
        if parsed.first {
            self.lines_before = 0;
        }
        self.tabular = parsed.tabular;
        if let Some(message) = &parsed.whole {
            self.error(parsed.file, 0, 0, message.clone());
        }
        self.present |= parsed.present;
        if self.columns.is_empty() {
            self.columns.clone_from(&parsed.columns);
        }
        for (line, column, message) in &parsed.errors.first {
            self.error(parsed.file, self.lines_before + line + 1, *column, message.clone());
        }
        self.scan.error_count += parsed.errors.more;
        for (line, column, message) in &parsed.warnings.first {
            self.warning(parsed.file, self.lines_before + line + 1, *column, message.clone());
        }
        self.scan.warning_count += parsed.warnings.more;
        for row in &parsed.rows {
            self.row(parsed, row)?;
        }
        self.lines_before += parsed.lines;
        self.scan.lines += parsed.lines;
        Ok(())
    }

    fn row(&mut self, parsed: &Parsed, row: &ParsedRow) -> Result<(), Stop> {
        let line = self.lines_before + row.line + 1;
        let body = &parsed.bytes[row.start..row.end];
        self.scan.rows += 1;
        self.scan.bytes += body.len() as u64;
        let mut item_id = row.item_id;
        match row.own_id {
            Some(hash) => self.duplicates.push(hash, parsed.file, line)?,
            None => match self.occurrences.next(&item_id) {
                Ok(0) => {}
                Ok(number) => {
                    item_id = self.repeated_id(body, number).unwrap_or(item_id);
                    self.scan.repeated += 1;
                }
                Err(too_many) => {
                    self.error(parsed.file, line, 1, too_many.to_string());
                    return Err(Stop::Enough);
                }
            },
        }
        let admitted = self.admits(&item_id, parsed.file, line);
        if !self.makes_segments() || !admitted {
            return Ok(());
        }
        match self.segment.push(item_id, line, body) {
            Ok(()) => return Ok(()),
            Err(Full::Rows | Full::Bytes) => self.finish_segment()?,
            Err(full @ Full::RowTooLarge { .. }) => {
                self.error(parsed.file, line, 1, full.to_string());
                return Ok(());
            }
        }
        // invariant: an empty segment accepts any row that is not too large.
        if let Err(full) = self.segment.push(item_id, line, body) {
            self.error(parsed.file, line, 1, full.to_string());
        }
        Ok(())
    }

    fn makes_segments(&self) -> bool {
        self.past_errors || self.scan.error_count == 0
    }

    /// Whether the row that was just counted is admitted.
    fn admits(&mut self, item_id: &[u8; 32], file: u32, line: u64) -> bool {
        let Some((admission, digest)) = &mut self.admission else { return true };
        digest.update(item_id);
        let verdict = admission.verdict(self.scan.rows - 1);
        if verdict == Verdict::Conflict {
            self.error(
                file,
                line,
                1,
                "the run has this \"id\" with another prompt or other parameters".to_owned(),
            );
        }
        verdict == Verdict::New
    }

    /// The ID of a row that repeats an earlier one; it is parsed again, which is rare.
    fn repeated_id(&mut self, body: &[u8], number: u64) -> Option<[u8; 32]> {
        let row = self.rules.stored(body)?;
        Some(self.rules.item_id(&row, number))
    }

    fn finish_segment(&mut self) -> Result<(), Stop> {
        let segment = std::mem::take(&mut self.segment);
        let (number, rows) = (self.scan.segments, segment.len() as u32);
        self.scan.segments += 1;
        if let Some(sink) = &mut self.sink {
            sink(FinishedSegment { number, rows, bytes: segment.finish() })?;
        }
        Ok(())
    }

    fn error(&mut self, file: u32, line: u64, column: usize, message: String) {
        self.scan.error_count += 1;
        if self.scan.errors.len() < self.errors_max {
            let column = self.column(column);
            self.scan.errors.push(LineError { file, line, column, message });
        }
    }

    fn warning(&mut self, file: u32, line: u64, column: usize, message: String) {
        self.scan.warning_count += 1;
        if self.scan.warnings.len() < self.errors_max {
            let column = self.column(column);
            self.scan.warnings.push(LineError { file, line, column, message });
        }
    }

    fn column(&self, column: usize) -> usize {
        if self.tabular { 0 } else { column }
    }

    /// Ends the last segment and checks for duplicates, and for mapped columns that no row has.
    pub(super) fn finish(mut self, describe: impl Fn(u32, u64) -> String) -> Result<Scan, Stop> {
        if self.scan.rows > 0
            && self.scan.error_count == 0
            && let Some(message) = self.rules.absent(self.present, &self.columns)
        {
            self.error(0, 0, 0, format!("the rows have {message}"));
        }
        if self.makes_segments() && !self.segment.is_empty() {
            self.finish_segment()?;
        }
        let duplicates =
            std::mem::replace(&mut self.duplicates, Duplicates::new(0, std::path::Path::new("")));
        let (found, count) = duplicates.finish(self.errors_max)?;
        for duplicate in &found {
            let (file, line) = duplicate.row;
            let first = describe(duplicate.first.0, duplicate.first.1);
            self.error(file, line, 1, format!("this row has the \"id\" of {first}"));
        }
        self.scan.error_count += count - found.len() as u64;
        self.scan.ids_digest = self.admission.map(|(_, digest)| *digest.finalize().as_bytes());
        self.scan.errors.sort_by_key(|error| (error.file, error.line, error.column));
        Ok(self.scan)
    }
}
