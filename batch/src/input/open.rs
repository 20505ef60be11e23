//! Owns: the text of one input file, local or remote, compressed or not.
//!
//! Invariant: it is streamed; memory does not grow with the file. A Parquet file that is an object is first copied to
//! a temporary file, because Parquet is read from its end.
//! Absent: lines.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::AtomicU64;

use super::csv::{self, CsvText};
use super::files::InputFile;
#[cfg(feature = "tables")]
use super::parquet::ParquetText;
use super::unpack::{Text, unpack};

/// The first bytes of a Parquet file.
const MAGIC: &[u8] = b"PAR1";

/// A file's text.
pub(super) struct Opened<'a> {
    pub(super) text: Text<'a>,
    /// Whether its lines are converted rows of a table, so that columns within a line mean nothing to the user.
    pub(super) tabular: bool,
    /// The columns of all of its rows, if the file declares them.
    pub(super) columns: Option<Vec<String>>,
}

/// Opens a file; `read` counts its own bytes as they are read.
pub(super) fn open<'a>(file: &InputFile, read: &'a AtomicU64) -> io::Result<Opened<'a>> {
    let mut source: Box<dyn Read + Send> = match &file.object {
        Some(object) => Box::new(object.reader()),
        None => Box::new(File::open(&file.path)?),
    };
    let mut first = Vec::with_capacity(MAGIC.len());
    (&mut source).take(MAGIC.len() as u64).read_to_end(&mut first)?;
    let is_table = first == MAGIC;
    // Anything but a regular file, such as a pipe, cannot be read twice.
    let whole = io::Cursor::new(first).chain(source);
    if !is_table {
        let text = unpack(&file.path, whole, read)?;
        let Some(delimiter) = csv::delimiter_of(&file.path) else {
            return Ok(Opened { text, tabular: false, columns: None });
        };
        let text = CsvText::open(text, delimiter)?;
        let columns = text.columns();
        return Ok(Opened { text: Box::new(text), tabular: true, columns });
    }
    open_table(file, whole, read)
}

/// Opens a Parquet file. `whole` are its bytes from the start.
#[cfg(feature = "tables")]
fn open_table<'a>(
    file: &InputFile,
    mut whole: impl Read,
    read: &'a AtomicU64,
) -> io::Result<Opened<'a>> {
    let table = match &file.object {
        Some(_) => {
            let mut copy = tempfile::tempfile()?;
            io::copy(&mut whole, &mut copy)?;
            copy
        }
        None => File::open(&file.path)?,
    };
    let text = ParquetText::open(table, read)?;
    let columns = Some(text.columns());
    Ok(Opened { text: Box::new(text), tabular: true, columns })
}

/// This build reads no Parquet.
#[cfg(not(feature = "tables"))]
fn open_table<'a>(_: &InputFile, _: impl Read, _: &'a AtomicU64) -> io::Result<Opened<'a>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "it is a Parquet file, which this program does not read",
    ))
}
