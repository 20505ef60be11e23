//! Owns: sets of rows by attempt, and their form on the wire.
//!
//! Invariant: a set made from a message is bounded; ranges that do not fit into 64 bits are cut off, never wrapped.
//! Absent: what state a row is in.

use std::collections::{BTreeMap, BTreeSet};

use rollout_proto::v1;

/// Rows that one grant may carry: the ledger's own bound.
pub(crate) const GRANT_ROWS_MAX: usize = 4096;

/// A run's number and an attempt.
pub(crate) type Lease = (u32, u64);

/// Rows, each under the attempt that holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeasedRows {
    sets: BTreeMap<Lease, BTreeSet<u64>>,
}

impl LeasedRows {
    pub(crate) fn insert(&mut self, lease: Lease, row: u64) -> bool {
        self.sets.entry(lease).or_default().insert(row)
    }

    pub(crate) fn remove(&mut self, lease: Lease, row: u64) -> bool {
        let Some(rows) = self.sets.get_mut(&lease) else { return false };
        let removed = rows.remove(&row);
        if rows.is_empty() {
            self.sets.remove(&lease);
        }
        removed
    }

    pub(crate) fn contains(&self, lease: Lease, row: u64) -> bool {
        self.sets.get(&lease).is_some_and(|rows| rows.contains(&row))
    }

    pub(crate) fn has(&self, lease: Lease) -> bool {
        self.sets.contains_key(&lease)
    }

    pub(crate) fn has_run(&self, run: u32) -> bool {
        self.sets.range((run, 0)..=(run, u64::MAX)).next().is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.sets.values().map(BTreeSet::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        for (lease, rows) in &other.sets {
            self.sets.entry(*lease).or_default().extend(rows);
        }
    }

    /// Every row in order of run, attempt and number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Lease, u64)> {
        self.sets.iter().flat_map(|(lease, rows)| rows.iter().map(|row| (*lease, *row)))
    }

    pub(crate) fn leases(&self) -> Vec<Lease> {
        self.sets.keys().copied().collect()
    }

    pub(crate) fn rows_of(&self, lease: Lease) -> Vec<u64> {
        self.sets.get(&lease).map(|rows| rows.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn to_wire(&self) -> Vec<v1::HeldRows> {
        let held = |((run, attempt), rows): (&Lease, &BTreeSet<u64>)| v1::HeldRows {
            run: *run,
            attempt: *attempt,
            rows: Some(ranges(rows.iter().copied())),
        };
        self.sets.iter().map(held).collect()
    }
}

impl FromIterator<(Lease, u64)> for LeasedRows {
    fn from_iter<I: IntoIterator<Item = (Lease, u64)>>(rows: I) -> Self {
        let mut held = Self::default();
        for (lease, row) in rows {
            held.insert(lease, row);
        }
        held
    }
}

/// Ascending row numbers as ranges.
pub(crate) fn ranges(rows: impl Iterator<Item = u64>) -> v1::Rows {
    let mut ranges = v1::Rows::default();
    for row in rows {
        match (ranges.starts.last(), ranges.lens.last_mut()) {
            (Some(start), Some(len)) if start + u64::from(*len) == row && *len < u32::MAX => {
                *len += 1;
            }
            _ => {
                ranges.starts.push(row);
                ranges.lens.push(1);
            }
        }
    }
    ranges
}

/// The first rows, in at most `max` ranges.
pub(crate) fn first_ranges(mut held: Vec<v1::HeldRows>, max: usize) -> Vec<v1::HeldRows> {
    let mut room = max;
    held.retain_mut(|set| {
        let Some(rows) = &mut set.rows else { return false };
        rows.starts.truncate(room);
        rows.lens.truncate(room);
        room -= rows.starts.len();
        !rows.starts.is_empty()
    });
    held
}

/// The rows of a message, each under its attempt, without listing them.
#[derive(Debug, Default)]
pub(crate) struct NamedRows {
    sets: BTreeMap<Lease, Vec<v1::Rows>>,
}

impl NamedRows {
    pub(crate) fn new(held: impl IntoIterator<Item = v1::HeldRows>) -> Self {
        let mut sets: BTreeMap<Lease, Vec<v1::Rows>> = BTreeMap::new();
        for set in held {
            sets.entry((set.run, set.attempt)).or_default().extend(set.rows);
        }
        Self { sets }
    }

    pub(crate) fn contains(&self, lease: Lease, row: u64) -> bool {
        let among = |rows: &v1::Rows| {
            let mut ranges = rows.starts.iter().zip(&rows.lens);
            ranges.any(|(start, len)| row >= *start && row - start < u64::from(*len))
        };
        self.sets.get(&lease).is_some_and(|sets| sets.iter().any(among))
    }
}

/// The row numbers of a grant; `None` if there are more than a grant may have.
pub(crate) fn listed(rows: &v1::Rows) -> Option<Vec<u64>> {
    let total: u64 = rows.lens.iter().map(|len| u64::from(*len)).sum();
    if total > GRANT_ROWS_MAX as u64 || rows.starts.len() != rows.lens.len() {
        return None;
    }
    let range = |(start, len): (&u64, &u32)| *start..start.saturating_add(u64::from(*len));
    Some(rows.starts.iter().zip(&rows.lens).flat_map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_over_the_wire_as_ranges_and_come_back() {
        let held: LeasedRows = [1, 2, 3, 7, 9, 10].map(|row| ((4, 5), row)).into_iter().collect();
        let wire = held.to_wire();
        assert_eq!(wire.len(), 1);
        let rows = wire[0].rows.clone().unwrap();
        assert_eq!(
            (rows.starts.as_slice(), rows.lens.as_slice()),
            (&[1, 7, 9][..], &[3, 1, 2][..])
        );
        assert_eq!(listed(&rows).unwrap(), [1, 2, 3, 7, 9, 10]);
        let named = NamedRows::new(wire);
        assert!(held.iter().all(|(lease, row)| named.contains(lease, row)));
        assert!(
            !named.contains((4, 5), 8) && !named.contains((4, 6), 1) && !named.contains((4, 5), 0)
        );
    }

    #[test]
    fn rows_in_too_many_ranges_for_a_message_are_named_from_the_first_on() {
        let rows = [((4, 5), 1), ((4, 5), 3), ((4, 5), 4), ((4, 6), 8), ((4, 6), 10)];
        let held: LeasedRows = rows.into_iter().collect();
        let named = |max| -> Vec<(Lease, u64)> {
            let named = NamedRows::new(first_ranges(held.to_wire(), max));
            held.iter().filter(|(lease, row)| named.contains(*lease, *row)).collect()
        };
        for (max, expected) in [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5), (9, 5)] {
            assert_eq!(named(max), rows[..expected], "{max}");
        }
        assert_eq!(first_ranges(held.to_wire(), 2).len(), 1, "no empty set");
    }

    #[test]
    fn a_monstrous_range_is_refused_without_listing_it() {
        let rows = v1::Rows { starts: vec![u64::MAX - 1, 0], lens: vec![u32::MAX, 1] };
        assert_eq!(listed(&rows), None);
        let named = NamedRows::new([v1::HeldRows { run: 1, attempt: 1, rows: Some(rows) }]);
        assert!(named.contains((1, 1), u64::MAX) && named.contains((1, 1), 0));
    }
}
