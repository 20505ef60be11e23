//! Owns: finding rows that have the same ID, in bounded memory.
//!
//! Invariant: every repeated ID is counted; the first in the order of the input are reported with both positions.
//! Absent: the IDs themselves; they are compared by 128 bits of their blake3.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::spill::Spill;

/// Memory for IDs, in bytes, before they go to temporary files.
pub const BUDGET_BYTES: usize = 64 << 20;

/// A row with the ID of an earlier row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// The later row: file index, line.
    pub row: (u32, u64),
    /// The first row with that id: file index, line.
    pub first: (u32, u64),
}

/// File and line, big-endian, so that positions sort in the order of the input.
type LinePosition = [u8; 12];

fn position(file: u32, line: u64) -> LinePosition {
    let mut position = [0; 12];
    position[..4].copy_from_slice(&file.to_be_bytes());
    position[4..].copy_from_slice(&line.to_be_bytes());
    position
}

fn file_and_line(position: LinePosition) -> (u32, u64) {
    let (mut file, mut line) = ([0; 4], [0; 8]);
    file.copy_from_slice(&position[..4]);
    line.copy_from_slice(&position[4..]);
    (u32::from_be_bytes(file), u64::from_be_bytes(line))
}

/// Collects ids.
#[derive(Debug)]
pub struct Duplicates {
    spill: Spill<12>,
}

impl Duplicates {
    /// Uses up to `budget_bytes` of memory, then files in `temp_dir`.
    pub fn new(budget_bytes: usize, temp_dir: &Path) -> Self {
        Self { spill: Spill::new(budget_bytes, temp_dir) }
    }

    /// The hash of an id's canonical JSON.
    pub fn hash(id_json: &str) -> u128 {
        let mut half = [0; 16];
        half.copy_from_slice(&blake3::hash(id_json.as_bytes()).as_bytes()[..16]);
        u128::from_le_bytes(half)
    }

    /// Records a row's ID.
    pub fn push(&mut self, hash: u128, file: u32, line: u64) -> io::Result<()> {
        self.spill.push(hash, position(file, line))
    }

    /// The first `max` duplicates in the order of the input, and the number of all.
    pub fn finish(self, max: usize) -> io::Result<(Vec<Duplicate>, u64)> {
        let mut first_ones = BTreeMap::new();
        let mut count = 0;
        for records in self.spill.into_sorted() {
            for equal in records?.chunk_by(|a, b| a.0 == b.0) {
                for repeat in &equal[1..] {
                    count += 1;
                    first_ones.insert(repeat.1, equal[0].1);
                    if first_ones.len() > max {
                        first_ones.pop_last();
                    }
                }
            }
        }
        let duplicate = |(row, first): (LinePosition, LinePosition)| Duplicate {
            row: file_and_line(row),
            first: file_and_line(first),
        };
        Ok((first_ones.into_iter().map(duplicate).collect(), count))
    }
}
