//! Owns: finding rows that have the same id, in bounded memory.
//!
//! Invariant: every repeated id is counted; the first in the order of the input are named with both places.
//! Absent: ids themselves; they are compared by 128 bits of their blake3.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::spill::{Place, Spill};

/// Memory for ids, in bytes, before they go to temporary files.
pub const BUDGET_BYTES: usize = 64 << 20;

/// A row whose id an earlier row has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// The later row: file index, line.
    pub row: (u32, u64),
    /// The first row with that id: file index, line.
    pub first: (u32, u64),
}

/// Collects ids.
#[derive(Debug)]
pub struct Duplicates {
    spill: Spill,
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

    /// Notes a row's id.
    pub fn push(&mut self, hash: u128, file: u32, line: u64) -> io::Result<()> {
        self.spill.push(hash, Place { file, line })
    }

    /// The first `max` duplicates in the order of the input, and how many there are in all.
    pub fn finish(self, max: usize) -> io::Result<(Vec<Duplicate>, u64)> {
        let mut first_ones = BTreeMap::new();
        let mut count = 0;
        self.spill.repeats(|row, first| {
            count += 1;
            first_ones.insert(row, first);
            if first_ones.len() > max {
                first_ones.pop_last();
            }
        })?;
        let duplicate = |(row, first): (Place, Place)| Duplicate {
            row: (row.file, row.line),
            first: (first.file, first.line),
        };
        Ok((first_ones.into_iter().map(duplicate).collect(), count))
    }
}
