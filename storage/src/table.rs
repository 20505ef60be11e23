//! Owns: the byte layout that segments and parts share: a header, one fixed-size head per row, then the bodies.
//!
//! Layout: magic (4 bytes), format version u8, three zero bytes, row count u32 LE; per row a head and the end
//! offset of its body, u32 LE, within the bodies; then the bodies without gaps, to the end of the object.
//! Invariant: equal rows give equal bytes, and a table that decodes has consistent offsets, so reading a row of
//! it can neither fail nor copy. Decoding allocates nothing.
//! Absent: a checksum. The object's name and reference carry its blake3, checked on every read.

use bytes::Bytes;

use crate::error::FormatError;

const VERSION: u8 = 1;
const HEADER: usize = 12;
const END: usize = 4;

/// The parameters of one format.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    pub(crate) magic: [u8; 4],
    /// Bytes of a row's head, without the end offset.
    pub(crate) head: usize,
    pub(crate) rows_max: usize,
    /// Bytes of the whole object.
    pub(crate) bytes_max: usize,
}

/// Why a row was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The object has its maximum number of rows; the row belongs into the next one.
    #[error("the object has its maximum number of rows")]
    Rows,
    /// The object has no room for this row; the row belongs into the next one.
    #[error("the object has no room for this row")]
    Bytes,
    /// The row fits into no object.
    #[error("a row of {len} bytes fits into no object, the most is {max}")]
    RowTooLarge {
        /// Bytes of the row's body.
        len: usize,
        /// The most that a row's body may have.
        max: usize,
    },
}

#[derive(Debug, Default)]
pub(crate) struct TableWriter {
    heads: Vec<u8>,
    bodies: Vec<u8>,
    rows: usize,
}

impl TableWriter {
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Bytes of the object so far.
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.heads.len() + self.bodies.len()
    }

    /// Adds a row; `head` consists of pieces whose lengths sum up to the format's head.
    pub(crate) fn push(
        &mut self,
        format: &Format,
        head: &[&[u8]],
        body: &[u8],
    ) -> Result<(), Full> {
        let row = format.head + END;
        let max = format.bytes_max - HEADER - row;
        if body.len() > max {
            return Err(Full::RowTooLarge { len: body.len(), max });
        }
        if self.rows >= format.rows_max {
            return Err(Full::Rows);
        }
        if self.bytes() + row + body.len() > format.bytes_max {
            return Err(Full::Bytes);
        }
        for piece in head {
            self.heads.extend_from_slice(piece);
        }
        self.bodies.extend_from_slice(body);
        // The bound on bytes keeps the offset far below u32::MAX.
        self.heads.extend_from_slice(&(self.bodies.len() as u32).to_le_bytes());
        self.rows += 1;
        Ok(())
    }

    pub(crate) fn finish(self, format: &Format) -> Bytes {
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.extend_from_slice(&format.magic);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
        bytes.extend_from_slice(&(self.rows as u32).to_le_bytes());
        bytes.extend_from_slice(&self.heads);
        bytes.extend_from_slice(&self.bodies);
        bytes.into()
    }
}

/// A decoded table. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    bytes: Bytes,
    rows: usize,
    head: usize,
}

impl Table {
    /// Checks the whole layout; any bytes are allowed.
    pub(crate) fn decode(format: &Format, bytes: Bytes) -> Result<Self, FormatError> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(FormatError::Malformed("shorter than its header"));
        };
        let [m0, m1, m2, m3, version, z0, z1, z2, rows @ ..] = *header;
        if [m0, m1, m2, m3] != format.magic {
            return Err(FormatError::Magic { expected: format.name });
        }
        if version != VERSION {
            return Err(FormatError::Version { found: version, supported: VERSION });
        }
        if [z0, z1, z2] != [0; 3] {
            return Err(FormatError::Malformed("reserved bytes are set"));
        }
        if bytes.len() > format.bytes_max {
            return Err(FormatError::Malformed("longer than the format allows"));
        }
        let rows = u32::from_le_bytes(rows) as usize;
        if rows > format.rows_max {
            return Err(FormatError::Malformed("more rows than the format allows"));
        }
        let table = Self { rows, head: format.head, bytes };
        if table.bodies_at() > table.bytes.len() {
            return Err(FormatError::Malformed("shorter than its row heads"));
        }
        let mut previous = 0;
        for row in 0..rows {
            let end = table.end(row);
            if end < previous {
                return Err(FormatError::Malformed("row offsets go backward"));
            }
            previous = end;
        }
        if table.bodies_at() + previous != table.bytes.len() {
            return Err(FormatError::Malformed("length differs from the last row's end"));
        }
        Ok(table)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// A row's head and body; `None` after the last row.
    pub(crate) fn row(&self, row: usize) -> Option<(&[u8], &[u8])> {
        if row >= self.rows {
            return None;
        }
        let at = HEADER + row * (self.head + END);
        let start = if row == 0 { 0 } else { self.end(row - 1) };
        let bodies = &self.bytes[self.bodies_at()..];
        // invariant: `decode` checked that the offsets grow and end with the object.
        Some((&self.bytes[at..at + self.head], &bodies[start..self.end(row)]))
    }

    pub(crate) fn slice(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    fn bodies_at(&self) -> usize {
        HEADER + self.rows * (self.head + END)
    }

    fn end(&self, row: usize) -> usize {
        let at = HEADER + row * (self.head + END) + self.head;
        u32_at(&self.bytes, at) as usize
    }
}

/// Reads a u32 LE. The caller has checked that the bytes are there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

/// Reads a u64 LE. The caller has checked that the bytes are there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}
