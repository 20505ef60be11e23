//! Owns: the occurrence numbers of equal rows without an id.
//!
//! Rows are told apart by 64 bits of the id that they would have as a first occurrence. Should two different rows ever
//! share those, the second counts as a repetition: its id is another one, and still its own.
//! Invariant: the same rows in the same order get the same numbers. Memory: 8 bytes a distinct row at a load of at
//! most 7/8, so 9 to 19 bytes; 10^7 rows take 128 MiB; and 32 bytes for each that repeats.
//! Absent: an order of rows with an id; they need no number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Counts rows.
#[derive(Debug, Default)]
pub struct Occurrences {
    /// Open addressing; 0 is an empty place.
    seen: Vec<u64>,
    len: usize,
    /// How often a fingerprint came, where more than once.
    repeated: HashMap<u64, u64, BuildHasherDefault<Fingerprint>>,
}

impl Occurrences {
    /// None seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many rows with this first-occurrence id came before.
    pub fn next(&mut self, item_id: &[u8; 32]) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&item_id[..8]);
        let fingerprint = u64::from_le_bytes(first).max(1);
        if self.len + 1 > self.seen.len() / 8 * 7 {
            self.grow();
        }
        if insert(&mut self.seen, fingerprint) {
            self.len += 1;
            return 0;
        }
        let count = self.repeated.entry(fingerprint).or_insert(0);
        *count += 1;
        *count
    }

    fn grow(&mut self) {
        let mut seen = vec![0; (self.seen.len() * 2).max(1024)];
        for fingerprint in self.seen.drain(..).filter(|fingerprint| *fingerprint != 0) {
            insert(&mut seen, fingerprint);
        }
        self.seen = seen;
    }
}

/// Adds a fingerprint; false where it is there already. The table has an empty place and a length of a power of 2.
fn insert(seen: &mut [u64], fingerprint: u64) -> bool {
    let mask = seen.len() - 1;
    let mut at = fingerprint as usize & mask;
    loop {
        match seen[at] {
            0 => {
                seen[at] = fingerprint;
                return true;
            }
            found if found == fingerprint => return false,
            _ => at = (at + 1) & mask,
        }
    }
}

/// Fingerprints are hashes already.
#[derive(Debug, Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_are_numbered_in_their_order() {
        let mut occurrences = Occurrences::new();
        let mut model: HashMap<u64, u64> = HashMap::new();
        for n in 0..50_000u64 {
            let value = n * n % 30_011;
            let expected = model.entry(value).or_insert(0);
            let id = *blake3::hash(&value.to_le_bytes()).as_bytes();
            assert_eq!(occurrences.next(&id), *expected, "row {n}");
            *expected += 1;
        }
        assert_eq!(occurrences.next(&[0; 32]), 0, "an id of zeros is no empty place");
        assert_eq!(occurrences.next(&[0; 32]), 1);
    }
}
