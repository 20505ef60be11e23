//! A segment of a run's input and the outcome of each of its rows.
//!
//! *Invariant:* an outcome, once set, never changes, except that a failed row may be retried. `decided` counts the
//! outcomes that are set.
//!
//! This is the dense part of the state: one word per row, allocated when the first row of the segment is decided. All
//! other per-row state is for rows in flight or with a failure record.

use crate::batch::outcome_image::ROWS_PER_RECORD;
use crate::kernel::id::PartNo;
use crate::kernel::limits::SEGMENT_ROWS_MAX;
use crate::machine::command::BlobRef;
use serde::{Deserialize, Serialize};

/// The outcome of one row, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Outcome(u64);

impl Outcome {
    /// No outcome yet.
    pub(crate) const NONE: Self = Self(0);
    /// Failed for good; the row's failure record says why.
    pub(crate) const FAILED: Self = Self(u64::MAX);

    /// Its result is row `row` of `part`.
    pub(crate) fn done(part: PartNo, row: u32) -> Self {
        debug_assert!(row < 1 << 16);
        Self((u64::from(part.0) + 1) << 16 | u64::from(row))
    }

    /// The part and the row in it, for a row that is done.
    pub(crate) fn part(self) -> Option<(PartNo, u32)> {
        match self {
            Self::NONE | Self::FAILED => None,
            Self(word) => Some((PartNo(((word >> 16) - 1) as u32), (word & 0xffff) as u32)),
        }
    }
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) first_row: u64,
    pub(crate) rows: u32,
    pub(crate) blob: BlobRef,
    /// Rows with an outcome.
    pub(crate) decided: u32,
    /// Empty until the first row is decided, then one per row.
    pub(crate) outcomes: Box<[Outcome]>,
    /// Whether the image has its outcomes in records of their own. Follows from the record that it was loaded from.
    #[serde(skip)]
    pub(crate) split: bool,
    /// The outcome records that differ from the image, one bit each. Not part of the state.
    #[serde(skip)]
    changed: u16,
}

const _: () = assert!(SEGMENT_ROWS_MAX as usize / ROWS_PER_RECORD <= u16::BITS as usize);

impl Segment {
    pub(crate) fn new(first_row: u64, rows: u32, blob: BlobRef) -> Self {
        let outcomes = Box::default();
        Self { first_row, rows, blob, decided: 0, outcomes, split: false, changed: 0 }
    }

    pub(crate) fn end(&self) -> u64 {
        self.first_row + u64::from(self.rows)
    }

    pub(crate) fn outcome(&self, row: u64) -> Outcome {
        let at = (row - self.first_row) as usize;
        self.outcomes.get(at).copied().unwrap_or(Outcome::NONE)
    }

    /// Decides consecutive rows that had no outcome.
    pub(crate) fn decide(&mut self, row: u64, outcomes: impl ExactSizeIterator<Item = Outcome>) {
        if self.outcomes.is_empty() {
            self.outcomes = vec![Outcome::NONE; self.rows as usize].into_boxed_slice();
        }
        let at = (row - self.first_row) as usize;
        let count = outcomes.len();
        self.mark(at, count);
        for (place, outcome) in self.outcomes[at..at + count].iter_mut().zip(outcomes) {
            let changes = *place != Outcome::NONE && !cfg!(feature = "seeded-bugs");
            debug_assert!(!changes, "an outcome never changes");
            *place = outcome;
        }
        self.decided += count as u32;
    }

    /// Makes a row that is done undecided.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn forget(&mut self, row: u64) {
        let at = (row - self.first_row) as usize;
        self.mark(at, 1);
        if let Some(place) = self.outcomes.get_mut(at) {
            *place = Outcome::NONE;
            self.decided -= 1;
        }
    }

    fn mark(&mut self, at: usize, count: usize) {
        for block in at / ROWS_PER_RECORD..(at + count).div_ceil(ROWS_PER_RECORD) {
            self.changed |= 1 << block;
        }
    }

    /// The number of its outcome records, if its outcomes have separate records.
    pub(crate) fn blocks(&self) -> u8 {
        self.outcomes.len().div_ceil(ROWS_PER_RECORD) as u8
    }

    /// The outcome records that changed since the last call.
    pub(crate) fn take_changed(&mut self) -> impl Iterator<Item = u8> + use<> {
        let changed = std::mem::take(&mut self.changed);
        let split = self.split;
        (0..u16::BITS as u8).filter(move |block| split && changed & (1 << block) != 0)
    }

    /// Makes a row that failed undecided.
    pub(crate) fn reopen(&mut self, row: u64) {
        let at = (row - self.first_row) as usize;
        self.mark(at, 1);
        if let Some(place) = self.outcomes.get_mut(at).filter(|o| **o == Outcome::FAILED) {
            *place = Outcome::NONE;
            self.decided -= 1;
        }
    }
}
