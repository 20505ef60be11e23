//! Owns: the occurrence numbers of equal rows without an ID.
//!
//! The table compares rows by 64 bits of the ID that each would have as a first occurrence. If two different rows share
//! those bits, the second counts as a repetition: its ID is another one, but still unique.
//! Invariant: the same rows in the same order get the same numbers, in at most 800 MiB: 8 bytes a distinct row at a
//! load of at most 7/8 (10^7 rows take 128 MiB), at most [`DISTINCT_MAX`] rows, of which [`REPEATED_MAX`] may repeat.
//! Absent: rows with their own ID; they need no number, and there is no bound for them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Distinct rows without an ID in one input.
pub const DISTINCT_MAX: usize = (1 << 26) / 8 * 7;
/// Distinct rows without an ID that occur more than once.
pub const REPEATED_MAX: usize = 1 << 23;

/// There are more rows without an ID than can be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// Different ones.
    #[error(
        "this is one more than {max} different rows without an \"id\", the most that one run may have: give rows an \
         \"id\", or make several runs of them"
    )]
    Distinct { max: usize },
    /// Those that occur more than once.
    #[error(
        "this is one more than {max} different rows without an \"id\" that come again, the most that one run may have: \
         give rows an \"id\", or make several runs of them"
    )]
    Repeated { max: usize },
}

/// Counts rows.
#[derive(Debug)]
pub struct Occurrences {
    /// Open addressing; 0 is a free place.
    seen: Vec<u64>,
    len: usize,
    /// How often a fingerprint occurred, if more than once.
    repeated: HashMap<u64, u64, BuildHasherDefault<Fingerprint>>,
    distinct_max: usize,
    repeated_max: usize,
}

impl Default for Occurrences {
    fn default() -> Self {
        Self::new()
    }
}

impl Occurrences {
    /// None seen.
    pub fn new() -> Self {
        Self::with_bounds(DISTINCT_MAX, REPEATED_MAX)
    }

    /// None seen yet, with custom bounds.
    pub(crate) fn with_bounds(distinct_max: usize, repeated_max: usize) -> Self {
        let (seen, repeated) = (Vec::new(), HashMap::default());
        Self { seen, len: 0, repeated, distinct_max, repeated_max }
    }

    /// How many earlier rows have this first-occurrence ID.
    pub fn next(&mut self, item_id: &[u8; 32]) -> Result<u64, TooMany> {
        let mut first = [0; 8];
        first.copy_from_slice(&item_id[..8]);
        let fingerprint = u64::from_le_bytes(first).max(1);
        if self.len + 1 > self.seen.len() / 8 * 7 {
            self.grow();
        }
        if insert(&mut self.seen, fingerprint) {
            self.len += 1;
            let max = self.distinct_max;
            return if self.len > max { Err(TooMany::Distinct { max }) } else { Ok(0) };
        }
        let max = self.repeated_max;
        let full = self.repeated.len() >= max;
        match self.repeated.get_mut(&fingerprint) {
            Some(count) => {
                *count += 1;
                Ok(*count)
            }
            None if full => Err(TooMany::Repeated { max }),
            None => {
                self.repeated.insert(fingerprint, 1);
                Ok(1)
            }
        }
    }

    fn grow(&mut self) {
        let mut seen = vec![0; (self.seen.len() * 2).max(1024)];
        for fingerprint in self.seen.drain(..).filter(|fingerprint| *fingerprint != 0) {
            insert(&mut seen, fingerprint);
        }
        self.seen = seen;
    }
}

/// Adds a fingerprint; false if it already exists. The table must have a free place, and its length must be a power of
/// 2.
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

    fn id(value: u64) -> [u8; 32] {
        *blake3::hash(&value.to_le_bytes()).as_bytes()
    }

    #[test]
    fn equal_rows_are_numbered_in_their_order() {
        let mut occurrences = Occurrences::new();
        let mut model: HashMap<u64, u64> = HashMap::new();
        for n in 0..50_000u64 {
            let value = n * n % 30_011;
            let expected = model.entry(value).or_insert(0);
            assert_eq!(occurrences.next(&id(value)), Ok(*expected), "row {n}");
            *expected += 1;
        }
        assert_eq!(occurrences.next(&[0; 32]), Ok(0), "an id of zeros is no empty place");
        assert_eq!(occurrences.next(&[0; 32]), Ok(1));
    }

    #[test]
    fn over_a_bound_is_a_refusal() {
        let mut occurrences = Occurrences::with_bounds(3, 1);
        assert!((0..3).all(|n| occurrences.next(&id(n)) == Ok(0)));
        assert_eq!((occurrences.next(&id(1)), occurrences.next(&id(1))), (Ok(1), Ok(2)));
        assert_eq!(occurrences.next(&id(2)), Err(TooMany::Repeated { max: 1 }));
        let distinct = occurrences.next(&id(3)).unwrap_err();
        assert_eq!(distinct, TooMany::Distinct { max: 3 });
        for (error, bound) in [(TooMany::Repeated { max: 1 }, "than 1 "), (distinct, "than 3 ")] {
            let text = error.to_string();
            assert!(text.contains(bound) && text.contains("give rows an \"id\""), "{text}");
        }
    }
}
