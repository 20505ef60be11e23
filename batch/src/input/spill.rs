//! Owns: fixed-size records by a 128-bit key, in memory up to a budget and in temporary files beyond it.
//!
//! Invariant: records of one key are in one partition, and partitions are in key order, so sorting each partition
//! sorts all records. Memory holds at most the budget, or one partition and a buffer for each: 470 MiB with 2^32
//! records of 12 bytes beside their keys, 11 MiB with 10^8.
//! Absent: the meaning of a key. Only 128 bits of a hash are compared here.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

const PARTITIONS: usize = 256;
const BUFFER_BYTES: usize = 32 << 10;
const KEY_BYTES: usize = 16;

/// A key and its value.
pub(crate) type Record<const N: usize> = (u128, [u8; N]);

/// A collection of records.
#[derive(Debug)]
pub(crate) struct Spill<const N: usize> {
    budget_records: usize,
    temp_dir: PathBuf,
    memory: Vec<Record<N>>,
    partitions: Vec<BufWriter<File>>,
}

impl<const N: usize> Spill<N> {
    pub(crate) fn new(budget_bytes: usize, temp_dir: &Path) -> Self {
        let budget_records = (budget_bytes / size_of::<Record<N>>()).max(1);
        let temp_dir = temp_dir.to_owned();
        Self { budget_records, temp_dir, memory: Vec::new(), partitions: Vec::new() }
    }

    pub(crate) fn push(&mut self, key: u128, payload: [u8; N]) -> io::Result<()> {
        if self.partitions.is_empty() {
            if self.memory.len() < self.budget_records {
                self.memory.push((key, payload));
                return Ok(());
            }
            for _ in 0..PARTITIONS {
                // Without a name: it is removed with this process, however the process ends.
                let file = tempfile::tempfile_in(&self.temp_dir)?;
                self.partitions.push(BufWriter::with_capacity(BUFFER_BYTES, file));
            }
            for record in std::mem::take(&mut self.memory) {
                write(&mut self.partitions, record)?;
            }
        }
        write(&mut self.partitions, (key, payload))
    }

    /// All records in ascending order, one sorted partition at a time.
    pub(crate) fn into_sorted(self) -> Sorted<N> {
        Sorted { memory: Some(self.memory), partitions: self.partitions.into_iter() }
    }
}

/// Sorted partitions.
#[derive(Debug)]
pub(crate) struct Sorted<const N: usize> {
    memory: Option<Vec<Record<N>>>,
    partitions: std::vec::IntoIter<BufWriter<File>>,
}

impl<const N: usize> Iterator for Sorted<N> {
    type Item = io::Result<Vec<Record<N>>>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = match self.memory.take().filter(|records| !records.is_empty()) {
            Some(records) => Ok(records),
            None => read(self.partitions.next()?),
        };
        Some(read.map(|mut records| {
            records.sort_unstable();
            records
        }))
    }
}

fn read<const N: usize>(partition: BufWriter<File>) -> io::Result<Vec<Record<N>>> {
    let mut file = partition.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.chunks_exact(KEY_BYTES + N).map(record).collect())
}

fn write<const N: usize>(
    partitions: &mut [BufWriter<File>],
    (key, payload): Record<N>,
) -> io::Result<()> {
    // The top bits choose the partition, so the index is valid.
    let partition = &mut partitions[(key >> 120) as usize];
    partition.write_all(&key.to_le_bytes())?;
    partition.write_all(&payload)
}

fn record<const N: usize>(bytes: &[u8]) -> Record<N> {
    let (mut key, mut payload) = ([0; KEY_BYTES], [0; N]);
    key.copy_from_slice(&bytes[..KEY_BYTES]);
    payload.copy_from_slice(&bytes[KEY_BYTES..]);
    (u128::from_le_bytes(key), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_sorted_alike_from_memory_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let sorted = |budget: usize| {
            let mut spill = Spill::<8>::new(budget, dir.path());
            for line in 0..10_000u64 {
                let digest = blake3::hash(&(line % 9_900).to_le_bytes());
                let key = u128::from_le_bytes(digest.as_bytes()[..16].try_into().unwrap());
                spill.push(key, line.to_be_bytes()).unwrap();
            }
            assert_eq!(spill.partitions.is_empty(), budget > 1000);
            spill.into_sorted().flat_map(Result::unwrap).collect::<Vec<_>>()
        };
        let (memory, files) = (sorted(1 << 20), sorted(100));
        assert_eq!(memory.len(), 10_000);
        assert!(memory.is_sorted());
        assert_eq!(memory, files);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was left behind");
    }
}
