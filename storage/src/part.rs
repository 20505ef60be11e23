//! Owns: parts, immutable objects of result rows.
//!
//! Invariant: at most [`PART_ROWS_MAX`] rows and [`PART_BYTES_MAX`] bytes. Decoding never panics and does not copy.
//! Absent: which rows count. A part may hold rows whose attempt was refused; readers follow the ledger.

use bytes::Bytes;

use crate::error::FormatError;
use crate::table::{Format, Full, Table, TableWriter, u64_at};

/// The most rows of a part.
pub const PART_ROWS_MAX: usize = 4096;
/// The most bytes of an encoded part. One large row fits into a part that has almost reached [`PART_BYTES_CLOSE`].
pub const PART_BYTES_MAX: usize = 16 << 20;
/// Rows at which a worker closes a part by default.
pub const PART_ROWS_CLOSE: usize = 1000;
/// Bytes at which a worker closes a part by default.
pub const PART_BYTES_CLOSE: usize = 8 << 20;

const FORMAT: Format = Format {
    name: "part",
    magic: *b"RPRT",
    head: 8 + 8 + 1,
    rows_max: PART_ROWS_MAX,
    bytes_max: PART_BYTES_MAX,
};

/// What a result row reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartRowKind {
    /// A completion.
    Completed,
    /// A failure's text and evidence.
    Failed,
}

impl PartRowKind {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::Completed => 1,
            Self::Failed => 2,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Result<Self, FormatError> {
        match byte {
            1 => Ok(Self::Completed),
            2 => Ok(Self::Failed),
            _ => Err(FormatError::Malformed("unknown kind of result row")),
        }
    }
}

/// One result row, borrowed from its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartRow<'a> {
    /// The row's number in its run.
    pub row: u64,
    /// The attempt that produced it.
    pub attempt: u64,
    /// What it reports.
    pub kind: PartRowKind,
    /// The result's JSON object.
    pub body: &'a [u8],
}

/// Collects rows into a part.
#[derive(Debug, Default)]
pub struct PartWriter {
    table: TableWriter,
}

impl PartWriter {
    /// An empty part.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row, or leaves the part unchanged.
    pub fn push(&mut self, row: PartRow<'_>) -> Result<(), Full> {
        let (number, attempt) = (row.row.to_le_bytes(), row.attempt.to_le_bytes());
        self.table.push(&FORMAT, &[&number, &attempt, &[row.kind.to_byte()]], row.body)
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True before the first row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the encoded part so far.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The encoded part.
    pub fn finish(self) -> Bytes {
        self.table.finish(&FORMAT)
    }
}

/// A decoded part. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    table: Table,
}

impl Part {
    /// Checks and wraps an encoded part; any bytes are allowed.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let table = Table::decode(&FORMAT, bytes)?;
        for index in 0..table.len() {
            if let Some((head, _)) = table.row(index) {
                PartRowKind::from_byte(head[16])?;
            }
        }
        Ok(Self { table })
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A row by its place in the part; `None` after the last.
    pub fn row(&self, index: usize) -> Option<PartRow<'_>> {
        let (head, body) = self.table.row(index)?;
        // `decode` has checked every kind.
        let kind = PartRowKind::from_byte(head[16]).ok()?;
        Some(PartRow { row: u64_at(head, 0), attempt: u64_at(head, 8), kind, body })
    }

    /// A row's body as a shared slice of the part's bytes.
    pub fn body(&self, index: usize) -> Option<Bytes> {
        self.table.row(index).map(|(_, body)| self.table.slice(body))
    }

    /// All rows in order.
    pub fn rows(&self) -> impl Iterator<Item = PartRow<'_>> {
        (0..self.len()).filter_map(|index| self.row(index))
    }
}
