//! Owns: Parquet files as lines of JSON, one for each row.
//!
//! Invariant: at most a page of each column and a buffer of lines are in memory; any defect of a file is an error.
//! Absent: the conversion of a value (`value`), and remote files.

mod bounded;
mod value;

use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::TypePtr;

use self::bounded::Bounded;

/// Lines are converted until the buffer has this many bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// The rows of a file, as text.
pub(super) struct ParquetText<'a> {
    rows: RowIter<'static>,
    schema: TypePtr,
    lines: Vec<u8>,
    taken: usize,
    ended: bool,
    progress: Progress<'a>,
}

/// The progress, as bytes of the file.
struct Progress<'a> {
    read: &'a AtomicU64,
    file_bytes: u64,
    rows: u64,
    rows_total: u64,
    reported: u64,
}

impl<'a> ParquetText<'a> {
    pub(super) fn open(file: File, read: &'a AtomicU64) -> io::Result<Self> {
        let file_bytes = file.metadata()?.len();
        let reader = guarded(|| SerializedFileReader::new(file))?.map_err(broken)?;
        let metadata = reader.metadata().file_metadata();
        let rows_total = u64::try_from(metadata.num_rows()).unwrap_or(0);
        let schema = metadata.schema_descr().root_schema_ptr();
        let rows = RowIter::from_file_into(Box::new(Bounded(reader)));
        let progress = Progress { read, file_bytes, rows: 0, rows_total, reported: 0 };
        Ok(Self { rows, schema, lines: Vec::new(), taken: 0, ended: false, progress })
    }

    /// The names of its columns.
    pub(super) fn columns(&self) -> Vec<String> {
        self.schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
    }

    /// Converts the next lines.
    fn fill(&mut self) -> io::Result<()> {
        self.lines.clear();
        self.taken = 0;
        while self.lines.len() < BUFFER_BYTES {
            let Some(row) = guarded(|| self.rows.next())? else {
                self.ended = true;
                break;
            };
            let row = row.map_err(broken)?;
            let line = guarded(|| value::line(&row, &self.schema))?;
            self.lines.extend_from_slice(line.as_bytes());
            self.lines.push(b'\n');
            self.progress.rows += 1;
        }
        self.progress.report();
        Ok(())
    }
}

impl Progress<'_> {
    fn report(&mut self) {
        let share = u128::from(self.rows.min(self.rows_total)) * u128::from(self.file_bytes);
        let now = (share / u128::from(self.rows_total.max(1))) as u64;
        self.read.fetch_add(now.saturating_sub(self.reported), Ordering::Relaxed);
        self.reported = now.max(self.reported);
    }
}

impl Read for ParquetText<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.lines.len() && !self.ended {
            self.fill()?;
        }
        let rest = &self.lines[self.taken..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// The record reader panics at input that it does not support.
fn guarded<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let message = "the parquet file is broken, or has a type that is not known here";
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn broken(error: ParquetError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is not a valid Parquet file: {error}"))
}

#[cfg(test)]
mod tests;
