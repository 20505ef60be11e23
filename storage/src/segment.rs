//! Owns: segments, immutable objects of consecutive input rows.
//!
//! Invariant: at most [`SEGMENT_ROWS_MAX`] rows and [`SEGMENT_BYTES_MAX`] bytes; independent of the run, so that
//! equal rows give the same object. Decoding never panics and does not copy.
//! Absent: how item ids are computed, and what a body means.

use bytes::Bytes;

use crate::error::FormatError;
use crate::table::{Format, Full, Table, TableWriter, u64_at};

/// The most rows of a segment.
pub const SEGMENT_ROWS_MAX: usize = 4096;
/// The most bytes of an encoded segment.
pub const SEGMENT_BYTES_MAX: usize = 8 << 20;

const ID: usize = 32;
const FORMAT: Format = Format {
    name: "segment",
    magic: *b"RSEG",
    head: ID + 8,
    rows_max: SEGMENT_ROWS_MAX,
    bytes_max: SEGMENT_BYTES_MAX,
};

/// One input row, borrowed from its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRow<'a> {
    /// The item's identity.
    pub item_id: [u8; 32],
    /// The number of the line in the source, for messages to people.
    pub line: u64,
    /// The row's JSON object, verbatim.
    pub body: &'a [u8],
}

/// Collects rows into a segment.
#[derive(Debug, Default)]
pub struct SegmentWriter {
    table: TableWriter,
}

impl SegmentWriter {
    /// An empty segment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row, or leaves the segment unchanged.
    pub fn push(&mut self, item_id: [u8; 32], line: u64, body: &[u8]) -> Result<(), Full> {
        self.table.push(&FORMAT, &[&item_id, &line.to_le_bytes()], body)
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True before the first row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the encoded segment so far.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The encoded segment.
    pub fn finish(self) -> Bytes {
        self.table.finish(&FORMAT)
    }
}

/// A decoded segment. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    table: Table,
}

impl Segment {
    /// Checks and wraps an encoded segment; any bytes are allowed.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        Table::decode(&FORMAT, bytes).map(|table| Self { table })
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A row by its place in the segment; `None` after the last.
    pub fn row(&self, index: usize) -> Option<SegmentRow<'_>> {
        let (head, body) = self.table.row(index)?;
        let mut item_id = [0; ID];
        item_id.copy_from_slice(&head[..ID]);
        Some(SegmentRow { item_id, line: u64_at(head, ID), body })
    }

    /// A row's body as a shared slice of the segment's bytes.
    pub fn body(&self, index: usize) -> Option<Bytes> {
        self.table.row(index).map(|(_, body)| self.table.slice(body))
    }

    /// All rows in order.
    pub fn rows(&self) -> impl Iterator<Item = SegmentRow<'_>> {
        (0..self.len()).filter_map(|index| self.row(index))
    }
}
