//! Owns: which rows of an input a run lacks, by position in the input.
//!
//! It is built by a first reading and used by a second one.
//! Invariant: it applies to one input alone: the digest of its item IDs, in order, tells whether the second reading
//! saw the same rows. Memory is two bits a row.
//! Absent: how the run's rows are known (`batch::row_join`).

use std::sync::Arc;

/// The decision about one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The run lacks it.
    New,
    /// The run has it.
    There,
    /// The run has its "id" with another prompt.
    Conflict,
}

/// The verdicts on an input's rows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admission {
    there: Arc<Vec<u64>>,
    conflicts: Arc<Vec<u64>>,
    rows: u64,
    digest: [u8; 32],
}

impl Admission {
    /// All `rows` rows are new; `digest` covers their item IDs, in order.
    pub fn new(rows: u64, digest: [u8; 32]) -> Self {
        // invariant: an input has fewer rows than a process can address.
        let words = rows.div_ceil(64) as usize;
        Self { there: Arc::new(vec![0; words]), conflicts: Arc::default(), rows, digest }
    }

    /// Records that the run has a row.
    pub fn there(&mut self, row: u64) {
        let there: &mut Vec<u64> = Arc::make_mut(&mut self.there);
        set(there, row);
    }

    /// Records that the run has a row's "id" with another prompt.
    pub fn conflict(&mut self, row: u64) {
        let conflicts = Arc::make_mut(&mut self.conflicts);
        conflicts.resize(self.there.len(), 0);
        set(conflicts, row);
    }

    /// The decision about a row. A row after the last counts as new: the digest shows the difference.
    pub fn verdict(&self, row: u64) -> Verdict {
        match (is_set(&self.conflicts, row), is_set(&self.there, row)) {
            (true, _) => Verdict::Conflict,
            (false, true) => Verdict::There,
            (false, false) => Verdict::New,
        }
    }

    /// Rows that the run lacks.
    pub fn lacking(&self) -> u64 {
        let there: u64 = self.there.iter().map(|word| u64::from(word.count_ones())).sum();
        self.rows - there
    }

    /// Whether there are rows that can be neither admitted nor omitted.
    pub fn has_conflicts(&self) -> bool {
        !self.conflicts.is_empty()
    }

    /// Whether a reading saw the rows that this admission is about.
    pub fn is_of(&self, digest: Option<[u8; 32]>) -> bool {
        digest == Some(self.digest)
    }
}

fn set(bits: &mut [u64], row: u64) {
    if let Some(word) = bits.get_mut((row / 64) as usize) {
        *word |= 1 << (row % 64);
    }
}

fn is_set(bits: &[u64], row: u64) -> bool {
    bits.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_new_existing_or_in_conflict_and_new_ones_are_counted() {
        let mut admission = Admission::new(130, [7; 32]);
        [0, 63, 64, 129].into_iter().for_each(|row| admission.there(row));
        admission.there(5000);
        assert_eq!(admission.lacking(), 126);
        assert!(!admission.has_conflicts());
        admission.conflict(65);
        let found = [0, 1, 63, 64, 65, 128, 129, 130, 5000].map(|row| admission.verdict(row));
        use Verdict::{Conflict, New, There};
        assert_eq!(found, [There, New, There, There, Conflict, New, There, New, New]);
        assert!(admission.has_conflicts());
        assert!(admission.is_of(Some([7; 32])) && !admission.is_of(None));
    }
}
