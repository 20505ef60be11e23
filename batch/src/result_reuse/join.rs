//! Owns: matching new rows to finished rows, in bounded memory.
//!
//! Invariant: items are the same if all bits of their IDs are equal; of several results the latest revision's wins.
//! Matches come in the order of the new rows. Beyond the budgets, records are in temporary files.
//! Absent: bytes of rows and results.

use std::io;

use rollout_storage::Segment;

use crate::input::scan::{FinishedSegment, ScanError};
use crate::input::spill::{Sorted, Spill};
use crate::submission::error::BatchError;

/// Memory for each of the two sorts.
const BUDGET_BYTES: usize = 64 << 20;

/// The second half of the ID, whether it is new, and a [`RowLocation`] or a row.
type Item = [u8; 16 + 1 + LOCATION_BYTES];
const LOCATION_BYTES: usize = 18;
const FINISHED: u8 = 0;
const NEW: u8 = 1;

/// The location of a finished row's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowLocation {
    /// The source; sources are numbered with the latest first.
    pub(super) source: u16,
    /// Its row there.
    pub(super) row: u64,
    /// Which of the source's parts.
    pub(super) part: u32,
    /// The row of that part.
    pub(super) part_row: u32,
}

impl RowLocation {
    fn to_bytes(self) -> [u8; LOCATION_BYTES] {
        let mut bytes = [0; LOCATION_BYTES];
        bytes[..2].copy_from_slice(&self.source.to_be_bytes());
        bytes[2..10].copy_from_slice(&self.row.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.part.to_be_bytes());
        bytes[14..].copy_from_slice(&self.part_row.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Self {
            source: number(0, 2) as u16,
            row: number(2, 10),
            part: number(10, 14) as u32,
            part_row: number(14, 18) as u32,
        }
    }
}

/// Items of the new input and of earlier revisions, to be joined.
#[derive(Debug)]
pub struct Items {
    spill: Spill<{ 16 + 1 + LOCATION_BYTES }>,
    /// New rows so far.
    rows: u64,
    failed: Option<io::Error>,
}

impl Default for Items {
    fn default() -> Self {
        let spill = Spill::new(BUDGET_BYTES, &std::env::temp_dir());
        Self { spill, rows: 0, failed: None }
    }
}

impl Items {
    /// Records the items of the new input's next segment.
    pub fn note(&mut self, segment: &FinishedSegment) {
        let noted = Segment::decode(segment.bytes.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            .and_then(|segment| segment.rows().try_for_each(|row| self.new_row(&row.item_id)));
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
    }

    fn new_row(&mut self, item_id: &[u8; 32]) -> io::Result<()> {
        let mut rest = [0; LOCATION_BYTES];
        rest[..8].copy_from_slice(&self.rows.to_be_bytes());
        self.rows += 1;
        self.push(item_id, NEW, &rest)
    }

    /// Notes a finished row.
    pub(super) fn finished(&mut self, item_id: &[u8; 32], location: RowLocation) -> io::Result<()> {
        self.push(item_id, FINISHED, &location.to_bytes())
    }

    fn push(&mut self, item_id: &[u8; 32], kind: u8, rest: &[u8]) -> io::Result<()> {
        let mut key = [0; 16];
        key.copy_from_slice(&item_id[..16]);
        let mut item: Item = [0; 16 + 1 + LOCATION_BYTES];
        item[..16].copy_from_slice(&item_id[16..]);
        item[16] = kind;
        item[17..].copy_from_slice(rest);
        self.spill.push(u128::from_be_bytes(key), item)
    }

    /// Joins them. `rows` is the number of rows in the new input.
    pub(super) fn join(mut self, rows: u64) -> io::Result<Matches> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut found = Spill::new(BUDGET_BYTES, &std::env::temp_dir());
        for records in self.spill.into_sorted() {
            let records = records?;
            for same in records.chunk_by(|a, b| a.0 == b.0 && a.1[..16] == b.1[..16]) {
                let Some(finished) = same.first().filter(|first| first.1[16] == FINISHED) else {
                    continue;
                };
                for new in same.iter().filter(|record| record.1[16] == NEW) {
                    let mut row = [0; 8];
                    row.copy_from_slice(&new.1[17..25]);
                    let row = u64::from_be_bytes(row);
                    // The top bits choose the partition, so each gets its share of the rows.
                    let partition = u128::from(row) * 256 / u128::from(rows.max(1));
                    let mut location = [0; LOCATION_BYTES];
                    location.copy_from_slice(&finished.1[17..]);
                    found.push(partition.min(255) << 120 | u128::from(row), location)?;
                }
            }
        }
        Ok(Matches { sorted: found.into_sorted(), ready: Vec::new().into_iter().peekable() })
    }
}

/// Matches in the order of the new rows.
#[derive(Debug)]
pub(super) struct Matches {
    sorted: Sorted<LOCATION_BYTES>,
    ready: std::iter::Peekable<std::vec::IntoIter<(u128, [u8; LOCATION_BYTES])>>,
}

impl Matches {
    /// The next match of a row before `end`.
    pub(super) fn next_before(&mut self, end: u64) -> io::Result<Option<(u64, RowLocation)>> {
        while self.ready.peek().is_none() {
            match self.sorted.next() {
                Some(records) => self.ready = records?.into_iter().peekable(),
                None => return Ok(None),
            }
        }
        let found = self.ready.next_if(|record| (record.0 as u64) < end);
        Ok(found.map(|(key, location)| (key as u64, RowLocation::from_bytes(&location))))
    }
}

pub(super) fn temporary(source: io::Error) -> BatchError {
    BatchError::Scan(ScanError::Temporary { path: std::env::temp_dir(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: u64) -> [u8; 32] {
        *blake3::hash(&value.to_le_bytes()).as_bytes()
    }

    #[test]
    fn each_new_row_is_matched_with_the_latest_result_of_its_item_in_the_order_of_rows() {
        let mut items = Items::default();
        // Of 1,000 new rows, the even ones are finished in one source, every tenth in a later one too.
        for row in 0..1000u64 {
            items.new_row(&id(999 - row)).unwrap();
        }
        for (source, step) in [(1u16, 2), (0, 10)] {
            for row in (0..1000u64).step_by(step) {
                let location = RowLocation { source, row, part: 3, part_row: row as u32 % 7 };
                items.finished(&id(row), location).unwrap();
            }
        }
        items.finished(&id(5000), RowLocation { source: 0, row: 1, part: 1, part_row: 1 }).unwrap();
        let mut matches = items.join(1000).unwrap();
        let mut found = Vec::new();
        for end in [300, 1000] {
            while let Some((row, location)) = matches.next_before(end).unwrap() {
                assert!(row < end);
                found.push((row, location));
            }
        }
        assert_eq!(found.len(), 500);
        for (at, (row, location)) in found.into_iter().enumerate() {
            assert_eq!(row, 2 * at as u64 + 1);
            let old = 999 - row;
            let source = u16::from(old % 10 != 0);
            let expected = RowLocation { source, row: old, part: 3, part_row: old as u32 % 7 };
            assert_eq!(location, expected);
        }
    }

    #[test]
    fn half_an_id_is_no_identity() {
        let mut items = Items::default();
        let (mut other, one) = (id(1), id(1));
        other[31] ^= 1;
        items.new_row(&one).unwrap();
        items.finished(&other, RowLocation { source: 0, row: 0, part: 0, part_row: 0 }).unwrap();
        assert_eq!(items.join(1).unwrap().next_before(1).unwrap(), None);
    }
}
