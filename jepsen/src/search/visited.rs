//! The visited configurations, so that the search explores none twice, and none that is no better than a visited one.
//!
//! *Invariant:* sets are compared, not their hashes: a collision costs time, never a verdict.

use super::bits;
use super::watch::Watch;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// About the cost of a key besides its words: the table's slot, the allocation, the first set.
const ENTRY_BYTES: usize = 96;

/// A fast hash for keys that no attacker chooses.
#[derive(Clone, Default)]
pub(super) struct Mix(u64);
pub(super) type FastHash = BuildHasherDefault<Mix>;

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// A set of operations, as words of bits.
type Set = Box<[u64]>;

#[derive(Default)]
pub(super) struct Visited {
    /// For each set of answered operations with its state: the sets of crashed operations that
    /// were used to get there, none a subset of another.
    visited: HashMap<Set, Vec<Set>, FastHash>,
    bytes: usize,
}

impl Visited {
    /// Remembers a configuration; false if an equivalent one with a subset of its crashed operations was seen.
    pub(super) fn admit(&mut self, key: &[u64], used: &[u64], watch: &mut Watch) -> bool {
        let words = used.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        let used = &used[..words];
        watch.spend(key.len());
        let visited = self.visited.get_mut(key);
        watch.spend(visited.as_ref().map_or(0, |sets| sets.len() * words));
        match visited {
            Some(sets) if sets.iter().any(|set| bits::subset(set, used)) => return false,
            Some(sets) => {
                sets.retain(|set| !bits::subset(used, set));
                sets.push(used.into());
                self.bytes += words * 8 + 16;
            }
            None => {
                self.visited.insert(key.into(), vec![used.into()]);
                self.bytes += (key.len() + words) * 8 + ENTRY_BYTES;
            }
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.visited.clear();
        self.bytes = 0;
    }

    /// About how many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_admitted_unless_one_with_fewer_crashed_operations_was() {
        let mut seen = Visited::default();
        let mut admit = |key, used| seen.admit(key, used, &mut Watch::default());
        assert!(admit(&[7], &[0b011, 0]));
        assert!(!admit(&[7], &[0b011, 0]));
        assert!(!admit(&[7], &[0b111, 0]));
        assert!(admit(&[7], &[0b101, 0]));
        assert!(admit(&[8], &[0b111, 0]));
        assert!(admit(&[7], &[0b001, 0]));
        assert!(!admit(&[7], &[0b101, 1]));
        assert!(!admit(&[7], &[0b001, 0]));
    }
}
