//! Owns: which rows of an input a run already has, in bounded memory.
//!
//! Rows are joined by their own "id", or else by their item ID.
//! Invariant: a row counts as present only if all 256 bits of its item ID match. A row whose own "id" the run has
//! under another item ID is in conflict. Beyond the budget, records are in temporary files.
//! Absent: bytes of rows; where rows come from and go to.

use std::io;

use rollout_storage::{Segment, SegmentRow};

use crate::input::admission::Admission;
use crate::input::duplicates::Duplicates;
use crate::input::row::own_id_of;
use crate::input::scan::FinishedSegment;
use crate::input::spill::{Record, Spill};
use crate::input::task::Task;

const BUDGET_BYTES: usize = 64 << 20;

/// A record's value: the kind of name, the item ID, whether it is a new row's, and that row's number.
type Rest = [u8; REST_BYTES];
const REST_BYTES: usize = 1 + 32 + 1 + 8;
const KIND_AT: usize = 33;
const ROW_AT: usize = 34;
const NAMED_BY_ITEM: u8 = 0;
const NAMED_BY_ID: u8 = 1;
const THERE: u8 = 0;
const NEW: u8 = 1;

/// Rows of an input and of a run, to be joined.
#[derive(Debug)]
pub struct RowJoin {
    task: Task,
    spill: Spill<REST_BYTES>,
    rows: u64,
    digest: blake3::Hasher,
    failed: Option<io::Error>,
}

impl RowJoin {
    /// For rows of that task.
    pub fn new(task: Task) -> Self {
        let spill = Spill::new(BUDGET_BYTES, &std::env::temp_dir());
        Self { task, spill, rows: 0, digest: blake3::Hasher::new(), failed: None }
    }

    /// Records the rows of the input's next segment.
    pub fn note(&mut self, segment: &FinishedSegment) {
        let noted = Segment::decode(segment.bytes.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            .and_then(|segment| segment.rows().try_for_each(|row| self.new_row(&row)));
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
    }

    fn new_row(&mut self, row: &SegmentRow<'_>) -> io::Result<()> {
        self.digest.update(&row.item_id);
        let number = self.rows;
        self.rows += 1;
        self.push(row, NEW, number)
    }

    /// Records a segment that the run has.
    pub fn there(&mut self, segment: &Segment) -> io::Result<()> {
        segment.rows().try_for_each(|row| self.push(&row, THERE, 0))
    }

    fn push(&mut self, row: &SegmentRow<'_>, kind: u8, number: u64) -> io::Result<()> {
        // Rows in a segment were validated before.
        let own = own_id_of(row.body, self.task);
        let (named, key) = match own.as_deref() {
            Some(id) => (NAMED_BY_ID, Duplicates::hash(id)),
            None => {
                let mut half = [0; 16];
                half.copy_from_slice(&row.item_id[..16]);
                (NAMED_BY_ITEM, u128::from_be_bytes(half))
            }
        };
        let mut rest: Rest = [0; REST_BYTES];
        rest[0] = named;
        rest[1..KIND_AT].copy_from_slice(&row.item_id);
        rest[KIND_AT] = kind;
        rest[ROW_AT..].copy_from_slice(&number.to_be_bytes());
        self.spill.push(key, rest)
    }

    /// Joins them.
    pub fn join(mut self) -> io::Result<Admission> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut admission = Admission::new(self.rows, *self.digest.finalize().as_bytes());
        for records in self.spill.into_sorted() {
            let records = records?;
            for same in records.chunk_by(|a, b| (a.0, a.1[0]) == (b.0, b.1[0])) {
                judge(same, &mut admission);
            }
        }
        Ok(admission)
    }
}

/// Rows of one name, sorted by item ID and then by kind: rows that the run has come first.
fn judge(same: &[Record<REST_BYTES>], admission: &mut Admission) {
    let named_by_id = same[0].1[0] == NAMED_BY_ID;
    let any_there = same.iter().any(|record| record.1[KIND_AT] == THERE);
    for item in same.chunk_by(|a, b| a.1[1..KIND_AT] == b.1[1..KIND_AT]) {
        let there = item[0].1[KIND_AT] == THERE;
        for new in item.iter().filter(|record| record.1[KIND_AT] == NEW) {
            let mut number = [0; 8];
            number.copy_from_slice(&new.1[ROW_AT..]);
            let number = u64::from_be_bytes(number);
            match there {
                true => admission.there(number),
                false if named_by_id && any_there => admission.conflict(number),
                false => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::admission::Verdict::{Conflict, New, There};
    use crate::submission::spec;

    fn push(join: &mut RowJoin, text: &str, occurrence: u64, kind: u8) {
        let rules = spec::rules(&Default::default()).unwrap();
        let item_id = {
            let row = rules.read(text).unwrap();
            rules.clone().item_id(&row, occurrence)
        };
        let row = SegmentRow { item_id, line: 1, body: text.as_bytes() };
        match kind {
            NEW => join.new_row(&row).unwrap(),
            _ => join.push(&row, THERE, 0).unwrap(),
        }
    }

    #[test]
    fn a_row_matches_by_its_item_and_conflicts_by_its_own_id() {
        let mut join = RowJoin::new(Task::Generate);
        push(&mut join, r#"{"prompt":"a"}"#, 0, THERE);
        push(&mut join, r#"{"id":"x","prompt":"a"}"#, 0, THERE);
        push(&mut join, r#"{"id":7,"prompt":"a"}"#, 0, THERE);
        for (text, occurrence) in [
            (r#"{"prompt":"a"}"#, 0),
            (r#"{"prompt":"a"}"#, 1),
            (r#"{"prompt":"b"}"#, 0),
            (r#"{"prompt":"a","id":"x"}"#, 0),
            (r#"{"prompt":"b","id":"x"}"#, 0),
            (r#"{"prompt":"a","id":"7"}"#, 0),
            (r#"{"prompt":"b","id":7}"#, 0),
            (r#"{"prompt":"a","id":"y"}"#, 0),
        ] {
            push(&mut join, text, occurrence, NEW);
        }
        let admission = join.join().unwrap();
        let found: Vec<_> = (0..8).map(|row| admission.verdict(row)).collect();
        assert_eq!(found, [There, New, New, There, Conflict, New, Conflict, New]);
        assert_eq!(admission.lacking(), 6);
        assert!(admission.has_conflicts());
    }

    #[test]
    fn half_an_item_id_is_no_identity() {
        let mut join = RowJoin::new(Task::Generate);
        let body = br#"{"prompt":"a"}"#;
        let there = SegmentRow { item_id: [1; 32], line: 1, body };
        let mut item_id = [1; 32];
        item_id[31] = 2;
        join.push(&there, THERE, 0).unwrap();
        join.new_row(&SegmentRow { item_id, line: 1, body }).unwrap();
        assert_eq!(join.join().unwrap().lacking(), 1);
    }
}
