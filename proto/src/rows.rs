//! Row numbers on the wire, as ranges.
//!
//! *Invariant:* ranges that passed [`v1::Rows::ranges`] are non-empty, ascending and disjoint, so
//! no row is named twice.
//!
//! Absent: sets with their own operations; the ledger has those.

use crate::v1;

/// Ranges that do not form a set of rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// One list is longer than the other.
    #[error("rows have {starts} starts but {lens} lengths")]
    Uneven {
        /// Number of starts.
        starts: usize,
        /// Number of lengths.
        lens: usize,
    },
    /// A range is empty, ends after the last row number, or does not follow the one before it.
    #[error("range {index} of rows is empty, out of order or too long")]
    BadRange {
        /// Position of the range, from 0.
        index: usize,
    },
}

impl v1::Rows {
    /// Rows from `(start, length)` ranges in ascending order. Adjacent ranges are joined.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let mut rows = v1::Rows::default();
        for (start, len) in ranges {
            rows.push_range(start, len);
        }
        rows
    }

    /// Rows from single row numbers in ascending order.
    pub fn from_rows(numbers: impl IntoIterator<Item = u64>) -> Self {
        Self::from_ranges(numbers.into_iter().map(|row| (row, 1)))
    }

    /// Adds a range after all others. An empty one adds nothing.
    pub fn push_range(&mut self, start: u64, len: u32) {
        if len == 0 {
            return;
        }
        if let (Some(last_start), Some(last_len)) = (self.starts.last(), self.lens.last_mut())
            && last_start.checked_add(u64::from(*last_len)) == Some(start)
            && let Some(joined) = last_len.checked_add(len)
        {
            *last_len = joined;
            return;
        }
        self.starts.push(start);
        self.lens.push(len);
    }

    /// The ranges, if they are valid: as many lengths as starts, none empty, ascending and disjoint.
    pub fn ranges(&self) -> Result<Vec<(u64, u32)>, RowsError> {
        let (starts, lens) = (self.starts.len(), self.lens.len());
        if starts != lens {
            return Err(RowsError::Uneven { starts, lens });
        }
        let mut end = 0_u64;
        for (index, (start, len)) in self.raw().enumerate() {
            let next = start.checked_add(u64::from(len));
            match next {
                Some(next) if len > 0 && start >= end => end = next,
                _ => return Err(RowsError::BadRange { index }),
            }
        }
        Ok(self.raw().collect())
    }

    /// The number of rows.
    pub fn count(&self) -> u64 {
        self.raw().fold(0, |sum, (_, len)| sum.saturating_add(u64::from(len)))
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Every row number, in order. For rows from the wire, check [`Self::ranges`] first: a
    /// malformed one may name a row twice.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.raw().flat_map(|(start, len)| start..start.saturating_add(u64::from(len)))
    }

    fn raw(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.starts.iter().copied().zip(self.lens.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_way_through_ranges() {
        let rows = v1::Rows::from_rows([0, 1, 2, 7, 9, 10]);
        assert_eq!(rows.ranges().unwrap(), vec![(0, 3), (7, 1), (9, 2)]);
        assert_eq!(rows.iter().collect::<Vec<_>>(), vec![0, 1, 2, 7, 9, 10]);
        assert_eq!(rows.count(), 6);
        assert!(v1::Rows::from_ranges([(5, 0)]).is_empty());
    }

    #[test]
    fn malformed_rows_are_refused() {
        let rows = |starts: &[u64], lens: &[u32]| v1::Rows {
            starts: starts.to_vec(),
            lens: lens.to_vec(),
        };
        assert_eq!(rows(&[1], &[]).ranges(), Err(RowsError::Uneven { starts: 1, lens: 0 }));
        let bad = |index| Err(RowsError::BadRange { index });
        assert_eq!(rows(&[1], &[0]).ranges(), bad(0));
        assert_eq!(rows(&[1, 2], &[2, 1]).ranges(), bad(1));
        assert_eq!(rows(&[5, 1], &[1, 1]).ranges(), bad(1));
        assert_eq!(rows(&[u64::MAX], &[2]).ranges(), bad(0));
    }
}
