//! Rows of a run that came back and are pending.
//!
//! After the loss of many workers a run has many thousands of separate ranges here, and each command adds or takes a
//! few. *Invariant:* as in [`Rows`]: ranges are disjoint, not adjacent and not empty, and the encoding is that of
//! [`Rows`]. The cost of a change depends on the ranges that it touches, not on how many there are.
//!
//! The image stores them in chunks of [`ROWS_PER_RECORD`] rows, so that a record changes only where rows do.

use crate::kernel::rows::Rows;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that share a record of the image.
pub(crate) const ROWS_PER_RECORD: u64 = 4096;

/// Pending rows that a slot had before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returned {
    /// Length by first row.
    ranges: BTreeMap<u64, u32>,
    rows: u64,
    /// Chunks that differ from the image. No part of the state.
    changed: BTreeSet<u64>,
}

impl PartialEq for Returned {
    fn eq(&self, other: &Self) -> bool {
        self.ranges == other.ranges
    }
}

impl Eq for Returned {}

impl Serialize for Returned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.ranges)
    }
}

impl<'de> Deserialize<'de> for Returned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut returned = Self::default();
        returned.unite(&Rows::deserialize(deserializer)?);
        returned.changed.clear();
        Ok(returned)
    }
}

fn end((start, len): (u64, u32)) -> u64 {
    start + u64::from(len)
}

impl Returned {
    /// How many rows.
    pub(crate) fn len(&self) -> u64 {
        self.rows
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    #[cfg(any(test, feature = "seeded-bugs"))]
    pub(crate) fn contains(&self, row: u64) -> bool {
        self.at_or_before(row).is_some_and(|range| row < end(range))
    }

    /// Every row at or after `from`, ascending.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let first = self.at_or_before(from).map_or(from, |range| range.0);
        self.ranges.range(first..).flat_map(move |(&s, &l)| s.max(from)..end((s, l)).max(from))
    }

    /// All of them as a set of their own. Takes time in proportion to its ranges.
    pub(crate) fn to_rows(&self) -> Rows {
        let mut rows = Rows::default();
        self.ranges.iter().for_each(|(&start, &len)| rows.push(start, len));
        rows
    }

    /// Those of `rows` that are among them.
    pub(crate) fn common(&self, rows: &Rows) -> Rows {
        let mut common = Rows::default();
        for &range in rows.ranges() {
            self.overlaps(range).for_each(|(start, len)| common.push(start, len));
        }
        common
    }

    /// Adds rows, which may overlap.
    pub(crate) fn unite(&mut self, rows: &Rows) {
        for &range in rows.ranges() {
            self.touch(range);
            // Ranges that it overlaps or touches merge with it.
            let (mut first, mut last) = (range.0, end(range));
            let before = self.at_or_before(first).filter(|before| end(*before) >= first);
            first = before.map_or(first, |before| before.0);
            while let Some((&start, &len)) =
                self.ranges.range(first..).next().filter(|next| *next.0 <= last)
            {
                self.ranges.remove(&start);
                self.rows -= u64::from(len);
                last = last.max(end((start, len)));
            }
            // The number of rows of a run fits: `RUN_ROWS_MAX`.
            let len = (last - first) as u32;
            self.ranges.insert(first, len);
            self.rows += u64::from(len);
        }
    }

    /// Removes the rows that are present.
    pub(crate) fn subtract(&mut self, rows: &Rows) {
        for &range in rows.ranges() {
            let found: Vec<(u64, u32)> = self.overlaps(range).collect();
            for hole in found {
                self.cut(hole);
            }
        }
    }

    /// Removes and returns up to `count` of the lowest rows.
    pub(crate) fn take_first(&mut self, count: u32) -> Rows {
        let (mut taken, mut left) = (Rows::default(), count);
        while left > 0
            && let Some((&start, &len)) = self.ranges.first_key_value()
        {
            let some = len.min(left);
            self.cut((start, some));
            taken.push(start, some);
            left -= some;
        }
        taken
    }

    /// The range that begins at or before a row, the nearest one.
    fn at_or_before(&self, row: u64) -> Option<(u64, u32)> {
        self.ranges.range(..=row).next_back().map(|(start, len)| (*start, *len))
    }

    /// The parts of a range that are present.
    fn overlaps(&self, range: (u64, u32)) -> impl Iterator<Item = (u64, u32)> + '_ {
        let (start, stop) = (range.0, end(range));
        let first = self.at_or_before(start).map_or(start, |before| before.0);
        self.ranges.range(first..stop).filter_map(move |(&s, &l)| {
            let (from, to) = (s.max(start), end((s, l)).min(stop));
            (from < to).then_some((from, (to.saturating_sub(from)) as u32))
        })
    }

    /// Removes a range that lies within a present one.
    fn cut(&mut self, hole: (u64, u32)) {
        let Some(whole) = self.at_or_before(hole.0) else { return };
        self.touch(hole);
        self.rows -= u64::from(hole.1);
        if whole.0 < hole.0 {
            self.ranges.insert(whole.0, (hole.0 - whole.0) as u32);
        } else {
            self.ranges.remove(&whole.0);
        }
        if end(hole) < end(whole) {
            self.ranges.insert(end(hole), (end(whole) - end(hole)) as u32);
        }
    }

    fn touch(&mut self, range: (u64, u32)) {
        if range.1 > 0 {
            let last = (end(range) - 1) / ROWS_PER_RECORD;
            self.changed.extend(range.0 / ROWS_PER_RECORD..=last);
        }
    }

    /// The rows of one chunk, for its record.
    pub(crate) fn chunk(&self, chunk: u64) -> Option<Rows> {
        let mut rows = Rows::default();
        let whole = (chunk * ROWS_PER_RECORD, ROWS_PER_RECORD as u32);
        self.overlaps(whole).for_each(|(start, len)| rows.push(start, len));
        (!rows.is_empty()).then_some(rows)
    }

    /// The chunks that have rows, ascending.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let row = self.from(next * ROWS_PER_RECORD).next()?;
            let chunk = row / ROWS_PER_RECORD;
            next = chunk + 1;
            Some(chunk)
        })
    }

    /// The chunks that changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.changed)
    }

    /// The image has them in another layout so far.
    pub(crate) fn mark_all(&mut self) {
        let all: Vec<u64> = self.chunks().collect();
        self.changed.extend(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::codec;
    use proptest::prelude::*;

    fn rows(set: &BTreeSet<u64>) -> Rows {
        Rows::from_ranges(set.iter().map(|&r| (r, 1))).expect("sorted")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Unite(BTreeSet<u64>),
        Subtract(BTreeSet<u64>),
        Take(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Around the border of two chunks, in runs of rows and alone.
        let row = || (0..120u64).prop_map(|row| ROWS_PER_RECORD - 60 + row);
        let some = || prop::collection::btree_set(row(), 0..40);
        let block = (row(), 0..50u64).prop_map(|(from, len)| (from..from + len).collect());
        prop_oneof![
            3 => some().prop_map(Step::Unite),
            2 => block.prop_map(Step::Unite),
            3 => some().prop_map(Step::Subtract),
            2 => (0..30u32).prop_map(Step::Take),
        ]
    }

    proptest! {
        #[test]
        fn they_behave_as_a_set_and_have_the_bytes_of_one(
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let (mut returned, mut model) = (Returned::default(), BTreeSet::new());
            let mut image: BTreeMap<u64, Rows> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Unite(some) => {
                        returned.unite(&rows(&some));
                        model.extend(some);
                    }
                    Step::Subtract(some) => {
                        let common = model.intersection(&some).copied().collect();
                        prop_assert_eq!(returned.common(&rows(&some)), rows(&common));
                        returned.subtract(&rows(&some));
                        model.retain(|row| !some.contains(row));
                    }
                    Step::Take(count) => {
                        let first: BTreeSet<u64> =
                            model.iter().copied().take(count as usize).collect();
                        prop_assert_eq!(returned.take_first(count), rows(&first));
                        model.retain(|row| !first.contains(row));
                    }
                }
                let all = rows(&model);
                prop_assert_eq!(&returned.to_rows(), &all);
                prop_assert_eq!(returned.len(), model.len() as u64);
                prop_assert_eq!(returned.is_empty(), model.is_empty());
                prop_assert_eq!(codec::encode(&returned), codec::encode(&all));
                let again: Returned = codec::decode(&codec::encode(&all)).expect("the same bytes");
                prop_assert_eq!(&again, &returned);
                prop_assert_eq!(again.len(), returned.len());
                let from = ROWS_PER_RECORD - 7;
                let behind: Vec<u64> = model.range(from..).copied().collect();
                prop_assert_eq!(returned.from(from).collect::<Vec<_>>(), behind);
                prop_assert_eq!(returned.contains(from), model.contains(&from));
                // The chunks that were marked bring the image up to date.
                for chunk in returned.take_changed() {
                    match returned.chunk(chunk) {
                        Some(rows) => drop(image.insert(chunk, rows)),
                        None => drop(image.remove(&chunk)),
                    }
                }
                prop_assert!(image.keys().copied().eq(returned.chunks()));
                let mut joined = Returned::default();
                image.values().for_each(|rows| joined.unite(rows));
                prop_assert_eq!(&joined, &returned);
            }
        }
    }
}
