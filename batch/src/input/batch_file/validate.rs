//! Owns: the pass over a batch file before any of its rows runs.
//!
//! Invariant: the report has the first [`ERRORS_MAX`] errors by line. A file without errors has rows, one model, one
//! endpoint and no repeated `custom_id`. Memory stays below 160 MiB for 100,000,000 rows: 32 MiB of the file, and 96 MiB
//! of ids before they go to temporary files of 28 bytes a row; after that, 8 MiB of buffers and one of 256 partitions.
//! Absent: the ids of an interrupted pass. A pass over the rest of the file needs them from its caller.

use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::Ordering;

use super::super::duplicates::{BUDGET_BYTES, Duplicates};
use super::super::line_fault::{LineCode, LineFault};
use super::super::scan::ScanControl;
use super::{BatchFile, BatchRow, Checks, Position};

/// Errors that a report lists. Reading ends when there are so many.
pub const ERRORS_MAX: usize = 100;

/// An error, with the fields of OpenAI's `errors.data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub fault: LineFault,
    /// Lower case, without a full stop.
    pub message: String,
    /// From 1; none if the file as a whole is at fault.
    pub line: Option<u64>,
}

/// The result of validation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Valid rows, up to the point where reading ended.
    pub rows: u64,
    /// Lines, empty ones included.
    pub lines: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The model of the rows.
    pub model: Option<String>,
    /// At most [`ERRORS_MAX`], by line. Empty: the file is valid.
    pub errors: Vec<Invalid>,
}

/// Why validation has no result.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// The file cannot be read.
    #[error("the batch file: {0}")]
    Read(#[source] io::Error),
    /// Temporary files cannot be written or read.
    #[error("temporary files of ids: {0}")]
    Temporary(#[source] io::Error),
    /// The caller stopped it.
    #[error("validation was stopped")]
    Stopped,
}

/// The most that a batch may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub rows: u64,
    pub bytes: u64,
}

/// Validates a file, in a thread that may block. `control` shows the progress and can end it. Ids go to files in
/// `temp_dir` once they take 64 MiB.
///
/// # Errors
/// The file cannot be read, temporary files cannot be used, or the caller stopped it. What is wrong with the file is in
/// the report.
pub fn validate(
    source: impl Read,
    checks: Checks,
    limits: Limits,
    temp_dir: &Path,
    control: &ScanControl,
) -> Result<Report, ValidateError> {
    let (from, rows) = (Position::default(), 0);
    let ids = Duplicates::new(BUDGET_BYTES, temp_dir);
    Pass { checks, limits, from, rows, ids, control }.run(source, &mut |_| Ok(()))
}

/// Why the receiver of rows does not take one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    /// Something is wrong with it: lower case, without a full stop.
    Invalid(String),
    /// The pass ends.
    Stopped,
}

/// Receives rows.
pub type EachRow<'a> = dyn FnMut(&BatchRow<'_>) -> Result<(), NotTaken> + 'a;

/// A pass over a file, or over the rest of one whose beginning had no errors.
pub struct Pass<'a> {
    /// With the model, if it does not begin at the beginning.
    pub checks: Checks,
    /// Of the whole file.
    pub limits: Limits,
    /// Where it begins.
    pub from: Position,
    /// Rows before that.
    pub rows: u64,
    /// The ids of these rows.
    pub ids: Duplicates,
    pub control: &'a ScanControl,
}

impl Pass<'_> {
    /// Validates what `source` has, which begins where the pass does. `each` receives the rows before the first error.
    /// Repeated ids are noticed only at the end.
    ///
    /// # Errors
    /// As those of [`validate`].
    pub fn run(
        mut self,
        source: impl Read,
        each: &mut EachRow<'_>,
    ) -> Result<Report, ValidateError> {
        let mut report = Report { rows: self.rows, ..Report::default() };
        let limits = self.limits;
        // One byte more, so that a file over the limit is noticed.
        let room = limits.bytes.saturating_add(1).saturating_sub(self.from.offset);
        let mut file = BatchFile::new(source.take(room), self.from, self.checks.clone());
        while report.errors.len() < ERRORS_MAX {
            if self.control.stop.load(Ordering::Relaxed) {
                return Err(ValidateError::Stopped);
            }
            let Some(line) = file.next_line().map_err(ValidateError::Read)? else { break };
            match line {
                // The last line may have been cut at the limit; the error about the file follows.
                Err(problem) => report.errors.push(Invalid {
                    fault: problem.error.fault,
                    message: problem.error.message,
                    line: Some(problem.line),
                }),
                Ok(row) if report.rows == limits.rows => {
                    let most = limits.rows;
                    let message =
                        format!("this is one more request than {most}, the most of a batch");
                    report.errors.push(invalid(LineCode::TooManyTasks, message, Some(row.line)));
                    break;
                }
                Ok(row) => self.row(&row, &mut report, each)?,
            }
            self.control.bytes.store(file.offset(), Ordering::Relaxed);
        }
        (report.lines, report.bytes) = (file.lines(), file.offset());
        report.model = file.model().map(str::to_owned);
        // Sorting ids needs memory too.
        drop(file);
        self.end(report)
    }

    fn row(
        &mut self,
        row: &BatchRow<'_>,
        report: &mut Report,
        each: &mut EachRow<'_>,
    ) -> Result<(), ValidateError> {
        report.rows += 1;
        let id = row.row.id_json.as_deref().unwrap_or_default();
        self.ids.push(Duplicates::hash(id), 0, row.line).map_err(ValidateError::Temporary)?;
        self.control.rows.store(report.rows, Ordering::Relaxed);
        if !report.errors.is_empty() {
            return Ok(());
        }
        match each(row) {
            Ok(()) => Ok(()),
            Err(NotTaken::Stopped) => Err(ValidateError::Stopped),
            Err(NotTaken::Invalid(message)) => {
                report.errors.push(invalid(LineCode::InvalidJsonLine, message, Some(row.line)));
                Ok(())
            }
        }
    }

    /// What is known only at the end of the file.
    fn end(self, mut report: Report) -> Result<Report, ValidateError> {
        let limits = self.limits;
        if report.bytes > limits.bytes {
            // Of a file over the limit, only that is reported: its last line was cut.
            let message =
                format!("the file has more than {} bytes, the most of a batch", limits.bytes);
            report.errors = vec![invalid(LineCode::FileTooLarge, message, None)];
            return Ok(report);
        }
        let (repeated, _) = self.ids.finish(ERRORS_MAX).map_err(ValidateError::Temporary)?;
        report.errors.extend(repeated.into_iter().map(|repeat| Invalid {
            fault: LineFault::new(LineCode::DuplicateCustomId, "custom_id"),
            message: format!("line {} has the same \"custom_id\"", repeat.first.1),
            line: Some(repeat.row.1),
        }));
        report.errors.sort_by_key(|error| error.line);
        report.errors.truncate(ERRORS_MAX);
        if report.errors.is_empty() && report.rows == 0 {
            let message = "the file has no request".to_owned();
            report.errors.push(invalid(LineCode::EmptyFile, message, None));
        }
        Ok(report)
    }
}

fn invalid(code: LineCode, message: String, line: Option<u64>) -> Invalid {
    Invalid { fault: LineFault::whole(code), message, line }
}
