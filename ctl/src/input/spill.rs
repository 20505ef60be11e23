//! Owns: fixed-size records by a 128-bit hash, in memory up to a budget and in temporary files beyond it.
//!
//! Invariant: records of one hash are in one partition, so that a partition by itself answers which hashes repeat. At
//! most the budget, or one partition and a buffer for each, is in memory: with 2^32 records 470 MiB, with 10^8 11 MiB.
//! Absent: what a hash is of. 128 bits are never compared further.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

const PARTITIONS: usize = 256;
const BUFFER_BYTES: usize = 32 << 10;
/// Bytes of a record: hash, place.
const RECORD_BYTES: usize = 16 + PLACE_BYTES;
const PLACE_BYTES: usize = 12;

/// Where a hash was seen: file, line. Ordered as the input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Index of the file.
    pub(super) file: u32,
    /// Line, from 1.
    pub(super) line: u64,
}

type Record = (u128, Place);

/// Records on their way.
#[derive(Debug)]
pub(super) struct Spill {
    budget_records: usize,
    temp_dir: PathBuf,
    memory: Vec<Record>,
    partitions: Vec<BufWriter<File>>,
}

impl Spill {
    pub(super) fn new(budget_bytes: usize, temp_dir: &Path) -> Self {
        let budget_records = (budget_bytes / size_of::<Record>()).max(1);
        let temp_dir = temp_dir.to_owned();
        Self { budget_records, temp_dir, memory: Vec::new(), partitions: Vec::new() }
    }

    pub(super) fn push(&mut self, hash: u128, place: Place) -> io::Result<()> {
        if self.partitions.is_empty() {
            if self.memory.len() < self.budget_records {
                self.memory.push((hash, place));
                return Ok(());
            }
            for _ in 0..PARTITIONS {
                // Without a name: it goes with this process, however that ends.
                let file = tempfile::tempfile_in(&self.temp_dir)?;
                self.partitions.push(BufWriter::with_capacity(BUFFER_BYTES, file));
            }
            for (hash, place) in std::mem::take(&mut self.memory) {
                write(&mut self.partitions, hash, place)?;
            }
        }
        write(&mut self.partitions, hash, place)
    }

    /// Calls `visit` with each record whose hash an earlier one has, and the first one of that hash.
    pub(super) fn repeats(self, mut visit: impl FnMut(Place, Place)) -> io::Result<()> {
        let mut records = self.memory;
        repeats_of(&mut records, &mut visit);
        for partition in self.partitions {
            let mut file = partition.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            records.clear();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            drop(file);
            records.extend(bytes.chunks_exact(RECORD_BYTES).map(record));
            drop(bytes);
            repeats_of(&mut records, &mut visit);
        }
        Ok(())
    }
}

fn write(partitions: &mut [BufWriter<File>], hash: u128, place: Place) -> io::Result<()> {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..16].copy_from_slice(&hash.to_le_bytes());
    bytes[16..20].copy_from_slice(&place.file.to_le_bytes());
    bytes[20..].copy_from_slice(&place.line.to_le_bytes());
    // The top bits choose the partition, so it is always one of them.
    partitions[(hash >> 120) as usize].write_all(&bytes)
}

fn record(bytes: &[u8]) -> Record {
    let (mut hash, mut file, mut line) = ([0; 16], [0; 4], [0; 8]);
    hash.copy_from_slice(&bytes[..16]);
    file.copy_from_slice(&bytes[16..20]);
    line.copy_from_slice(&bytes[20..RECORD_BYTES]);
    let place = Place { file: u32::from_le_bytes(file), line: u64::from_le_bytes(line) };
    (u128::from_le_bytes(hash), place)
}

fn repeats_of(records: &mut [Record], visit: &mut impl FnMut(Place, Place)) {
    records.sort_unstable();
    for equal in records.chunk_by(|a, b| a.0 == b.0) {
        for repeat in &equal[1..] {
            visit(repeat.1, equal[0].1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_found_alike_in_memory_and_in_files() {
        let dir = tempfile::tempdir().unwrap();
        let found = |budget: usize| {
            let mut spill = Spill::new(budget, dir.path());
            for line in 0..10_000u64 {
                let digest = blake3::hash(&(line % 9_900).to_le_bytes());
                let hash = u128::from_le_bytes(digest.as_bytes()[..16].try_into().unwrap());
                spill.push(hash, Place { file: (line / 5_000) as u32, line }).unwrap();
            }
            assert_eq!(spill.partitions.is_empty(), budget > 1000);
            let mut found = Vec::new();
            spill.repeats(|repeat, first| found.push((repeat, first))).unwrap();
            found.sort_unstable();
            found
        };
        let (memory, files) = (found(1 << 20), found(100));
        assert_eq!(memory.len(), 100);
        assert_eq!(memory, files);
        let first = (Place { file: 1, line: 9_900 }, Place { file: 0, line: 0 });
        assert_eq!(memory[0], first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was left behind");
    }
}
