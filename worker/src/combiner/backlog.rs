//! Owns: the closed parts that await an answer, and their total size.
//!
//! Invariant: the sums always match the parts, so reading them costs the same however many parts there are. Every slot
//! reads them before it starts a row.
//! Absent: the fate of a part, and reports about it.

use std::collections::{BTreeMap, BTreeSet};

use crate::leased_rows::LeasedRows;
use crate::part::{OpenPart, PartId};

/// Bytes and rows of closed parts without an answer; above either, slots start no more rows.
const BACKLOG_BYTES: usize = 256 << 20;
pub(super) const BACKLOG_ROWS: usize = 65_536;
/// The same for their number, for each slot, because each part has files in the spool and an upload. The bound is high
/// because parts of a few rows from a hundred runs close within seconds, and a short outage of the store must not stop
/// the slots.
pub(super) const BACKLOG_PARTS_PER_SLOT: usize = 1024;

/// A part in flight, or of an earlier process.
pub(super) struct Closed {
    pub(super) rows: BTreeMap<u32, LeasedRows>,
    pub(super) files: BTreeSet<(u32, PartId)>,
    bytes: usize,
    count: usize,
}

impl Closed {
    fn of(part: &OpenPart) -> Self {
        let mut rows: BTreeMap<u32, LeasedRows> = BTreeMap::new();
        for row in &part.rows {
            rows.entry(row.slot).or_default().insert((part.id.run, row.attempt), row.row);
        }
        Self { rows, files: part.files.clone(), bytes: part.bytes, count: part.rows.len() }
    }
}

/// The closed parts.
#[derive(Default)]
pub(super) struct Backlog {
    parts: BTreeMap<PartId, Closed>,
    rows: usize,
    bytes: usize,
}

impl Backlog {
    pub(super) fn insert(&mut self, part: &OpenPart) {
        self.remove(part.id);
        let closed = Closed::of(part);
        self.rows += closed.count;
        self.bytes += closed.bytes;
        self.parts.insert(part.id, closed);
    }

    pub(super) fn remove(&mut self, id: PartId) -> Option<Closed> {
        let closed = self.parts.remove(&id)?;
        self.rows -= closed.count;
        self.bytes -= closed.bytes;
        Some(closed)
    }

    /// A part lost some of its rows.
    pub(super) fn shrunk(&mut self, part: &OpenPart) {
        if self.parts.contains_key(&part.id) {
            self.insert(part);
        }
    }

    /// Takes the rows of a part, which another report now covers. The part counts as before until it is removed.
    pub(super) fn take_rows(&mut self, id: PartId) -> BTreeMap<u32, LeasedRows> {
        self.parts.get_mut(&id).map(|closed| std::mem::take(&mut closed.rows)).unwrap_or_default()
    }

    pub(super) fn get(&self, id: PartId) -> Option<&Closed> {
        self.parts.get(&id)
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Closed> {
        self.parts.values()
    }

    /// Whether a worker with this many slots must start no more rows for now.
    pub(super) fn is_full(&self, slots: usize) -> bool {
        self.rows >= BACKLOG_ROWS
            || self.bytes >= BACKLOG_BYTES
            || self.parts.len() >= BACKLOG_PARTS_PER_SLOT * slots.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Completion;
    use crate::part::Finished;

    fn part(number: u64, rows: u64) -> OpenPart {
        let mut part = OpenPart::new(PartId { run: 1, number });
        for row in 0..rows {
            let completion = Completion { text: "t".into(), ..Completion::default() };
            part.push(Finished::new(7, row, &completion).unwrap());
        }
        part
    }

    #[test]
    fn the_sums_always_equal_those_of_the_parts() {
        let mut backlog = Backlog::default();
        let check = |backlog: &Backlog| {
            let sum = |of: fn(&Closed) -> usize| backlog.parts().map(of).sum::<usize>();
            assert_eq!(backlog.rows, sum(|closed| closed.count));
            assert_eq!(backlog.bytes, sum(|closed| closed.bytes));
        };
        for number in 0..10 {
            backlog.insert(&part(number, number + 1));
            check(&backlog);
        }
        assert_eq!(backlog.rows, 55);
        backlog.shrunk(&part(9, 4));
        check(&backlog);
        assert_eq!(backlog.rows, 49);
        backlog.shrunk(&part(99, 4));
        assert!(!backlog.take_rows(PartId { run: 1, number: 3 }).is_empty());
        check(&backlog);
        assert_eq!(backlog.rows, 49, "the part is still on its way");
        for number in 0..10 {
            assert!(backlog.remove(PartId { run: 1, number }).is_some());
            assert!(backlog.remove(PartId { run: 1, number }).is_none());
            check(&backlog);
        }
        assert_eq!((backlog.rows, backlog.bytes), (0, 0));
    }
}
