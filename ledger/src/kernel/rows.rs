//! Sets of row numbers as ranges, as used in claims, results and refusals.
//!
//! *Invariant:* ranges are ascending, disjoint, not adjacent and not empty, so equal sets have equal bytes (digests
//! depend on it).

use serde::{Deserialize, Serialize};
use std::fmt;

/// A set of rows of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rows(Vec<(u64, u32)>);

impl Rows {
    /// The rows `start .. start + len`.
    pub fn range(start: u64, len: u32) -> Self {
        Self(if len == 0 { Vec::new() } else { vec![(start, len)] })
    }

    /// The set of these ranges, or `None` if they are empty, unsorted or overlap. Adjacent ranges are merged.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u64, u32)>) -> Option<Self> {
        let mut rows = Self::default();
        for (start, len) in ranges {
            if len == 0 || start.checked_add(u64::from(len))? > crate::kernel::limits::RUN_ROWS_MAX
            {
                return None;
            }
            if rows.0.last().is_some_and(|&(s, l)| start < s + u64::from(l)) {
                return None;
            }
            rows.push(start, len);
        }
        Some(rows)
    }

    /// Appends a range that begins at or after the end of the last one.
    pub(crate) fn push(&mut self, start: u64, len: u32) {
        if len == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last)
                if last.0 + u64::from(last.1) == start && last.1.checked_add(len).is_some() =>
            {
                last.1 += len;
            }
            _ => self.0.push((start, len)),
        }
    }

    /// The ranges, as (first row, count).
    pub fn ranges(&self) -> &[(u64, u32)] {
        &self.0
    }

    /// Every row, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(start, len)| start..start + u64::from(len))
    }

    /// Every row at or after `from`, ascending.
    pub fn from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let at = self.0.partition_point(|r| r.0 + u64::from(r.1) <= from);
        self.0[at..].iter().flat_map(move |&(s, l)| s.max(from)..s + u64::from(l))
    }

    /// How many rows.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|r| u64::from(r.1)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `row` is among them.
    pub fn contains(&self, row: u64) -> bool {
        let at = self.0.partition_point(|r| r.0 <= row);
        at > 0 && row < self.0[at - 1].0 + u64::from(self.0[at - 1].1)
    }

    /// The row after the last.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(s, l)| s + u64::from(l))
    }

    /// Splits `self` into the rows in `other` and the rest.
    pub fn partition(&self, other: &Rows) -> (Rows, Rows) {
        if self == other {
            return (self.clone(), Rows::default()); // The usual case: a whole grant at once.
        }
        let (mut inside, mut outside) = (Rows::default(), Rows::default());
        for &(start, len) in &self.0 {
            let (mut at, end) = (start, start + u64::from(len));
            let mut i = other.0.partition_point(|r| r.0 + u64::from(r.1) <= at);
            while at < end {
                match other.0.get(i) {
                    Some(&(s, l)) if s < end => {
                        if at < s {
                            outside.push(at, (s - at) as u32);
                            at = s;
                        }
                        let stop = end.min(s + u64::from(l));
                        inside.push(at, (stop - at) as u32);
                        at = stop;
                        i += 1;
                    }
                    _ => {
                        outside.push(at, (end - at) as u32);
                        at = end;
                    }
                }
            }
        }
        (inside, outside)
    }

    /// Takes the rows of `other` away.
    pub fn subtract(&mut self, other: &Rows) {
        *self = self.partition(other).1;
    }

    /// Adds the rows of `other`, which may overlap.
    pub fn unite(&mut self, other: &Rows) {
        if other.is_empty() {
            return;
        }
        if other.0[0].0 >= self.end() {
            other.0.iter().for_each(|&(s, l)| self.push(s, l)); // The usual case: behind.
            return;
        }
        let mut joined = Self(Vec::with_capacity(self.0.len() + other.0.len()));
        let (mut a, mut b) = (&self.0[..], &other.0[..]);
        loop {
            let next = match (a.first(), b.first()) {
                (Some(x), Some(y)) if x.0 <= y.0 => &mut a,
                (_, Some(_)) => &mut b,
                (Some(_), None) => &mut a,
                (None, None) => break,
            };
            let (start, len) = next[0];
            *next = &next[1..];
            // The part that the last range has not covered already.
            let (end, from) = (start + u64::from(len), start.max(joined.end()));
            joined.push(from, end.saturating_sub(from) as u32);
        }
        *self = joined;
    }

    /// Removes and returns up to `count` of the lowest rows.
    pub fn take_first(&mut self, count: u32) -> Rows {
        let mut taken = Rows::default();
        let mut left = count;
        let mut whole = 0;
        for range in &mut self.0 {
            if left == 0 {
                break;
            }
            let n = range.1.min(left);
            taken.push(range.0, n);
            left -= n;
            if n == range.1 {
                whole += 1;
            } else {
                range.0 += u64::from(n);
                range.1 -= n;
            }
        }
        self.0.drain(..whole);
        taken
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(s, l)) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match l {
                1 => write!(f, "{s}")?,
                _ => write!(f, "{s}-{}", s + u64::from(l) - 1)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn rows(set: &BTreeSet<u64>) -> Rows {
        Rows::from_ranges(set.iter().map(|&r| (r, 1))).expect("sorted")
    }

    proptest! {
        #[test]
        fn ranges_behave_as_a_set(
            a in prop::collection::btree_set(0u64..200, 0..80),
            b in prop::collection::btree_set(0u64..200, 0..80),
            n in 0u32..100,
        ) {
            let (ra, rb) = (rows(&a), rows(&b));
            let (inside, outside) = ra.partition(&rb);
            prop_assert_eq!(inside, rows(&a.intersection(&b).copied().collect()));
            prop_assert_eq!(&outside, &rows(&a.difference(&b).copied().collect()));
            let mut u = ra.clone();
            u.unite(&rb);
            prop_assert_eq!(&u, &rows(&a.union(&b).copied().collect()));
            prop_assert!((0..200).all(|r| ra.contains(r) == a.contains(&r)));
            let mut rest = ra.clone();
            let first = rest.take_first(n);
            prop_assert_eq!(first, rows(&a.iter().copied().take(n as usize).collect()));
            prop_assert_eq!(rest, rows(&a.iter().copied().skip(n as usize).collect()));
            prop_assert_eq!(ra.len(), a.len() as u64);
            let above: Vec<u64> = a.iter().copied().filter(|r| *r >= u64::from(n)).collect();
            prop_assert_eq!(ra.from(u64::from(n)).collect::<Vec<_>>(), above);
        }
    }

    #[test]
    fn ranges_that_are_unsorted_empty_or_overlap_are_refused() {
        for bad in [vec![(5, 0)], vec![(5, 2), (1, 1)], vec![(1, 3), (2, 1)], vec![(u64::MAX, 2)]] {
            assert_eq!(Rows::from_ranges(bad), None);
        }
        assert_eq!(Rows::from_ranges([(1, 2), (3, 1)]).unwrap().to_string(), "1-3");
    }
}
