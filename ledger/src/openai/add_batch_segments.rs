//! Appends validated segments to a batch in validation.
//!
//! *Invariant:* the position in the file is committed with the segments before it, in one operation. So the next owner
//! continues after the last segment, and repeats at most the work on one segment.
//! Absent: rows, which exist only once the whole file is valid (`start_batch.rs`).

use crate::kernel::id::{BatchFence, SegmentNo};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::SegmentDecl;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{BatchCursor, Stage};
use serde::{Deserialize, Serialize};

/// Appends segments to a batch in validation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddBatchSegments {
    /// The batch.
    pub batch: String,
    /// The fence of its owner.
    pub fence: BatchFence,
    /// The segments that follow those that it has, each already durable in the store.
    pub segments: Vec<SegmentDecl>,
    /// The first byte of the file after them.
    pub offset: u64,
    /// Lines of the file before that byte, blank ones included.
    pub lines: u64,
}

impl Operation for AddBatchSegments {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_batch(&self.batch)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.add_batch_segments(self)
    }
}

impl Ledger {
    fn add_batch_segments(&mut self, op: AddBatchSegments) -> Result<Reply, Rejection> {
        let batch = self.fenced_batch(&op.batch, op.fence)?;
        let Stage::Validating(cursor) = batch.stage else { return Err(self.stale(batch)) };
        let have = self.batches.segments_of(&op.batch);
        let at = (cursor.offset, cursor.lines) == (op.offset, op.lines);
        if at && !op.segments.is_empty() && have.ends_with(&op.segments) {
            return Ok(Reply::Ok); // A repeat.
        }
        self.check_owned(batch)?;
        let rows = cursor.rows + check_next(have.len(), &op.segments)?;
        if rows > limits::BATCH_ROWS_MAX {
            let max = limits::BATCH_ROWS_MAX;
            return Err(Rejection::Limit { what: "rows in a batch".into(), max });
        }
        if op.offset <= cursor.offset || op.lines < cursor.lines + (rows - cursor.rows) {
            return Err(Rejection::Invalid("the position in the file does not advance".into()));
        }
        self.admit_batch_rows(batch, rows)?;
        let cursor = BatchCursor { offset: op.offset, lines: op.lines, rows };
        self.batches.append(&op.batch, op.segments, Stage::Validating(cursor));
        Ok(Reply::Ok)
    }
}

/// Checks segments that follow `have` others, and returns how many rows they have.
fn check_next(have: usize, segments: &[SegmentDecl]) -> Result<u64, Rejection> {
    if segments.is_empty() || segments.len() > limits::SEGMENTS_PER_OP_MAX {
        let max = limits::SEGMENTS_PER_OP_MAX;
        return Err(Rejection::Invalid(format!("a request adds 1 to {max} segments")));
    }
    if have + segments.len() > limits::BATCH_SEGMENTS_MAX {
        let max = limits::BATCH_SEGMENTS_MAX as u64;
        return Err(Rejection::Limit { what: "segments in a batch".into(), max });
    }
    let mut rows = 0;
    for (next, decl) in (have as u32..).zip(segments) {
        if decl.number != SegmentNo(next) {
            return Err(Rejection::SegmentConflict { number: decl.number.0, have: have as u32 });
        }
        if decl.rows == 0 || decl.rows > limits::SEGMENT_ROWS_MAX {
            let max = limits::SEGMENT_ROWS_MAX;
            return Err(Rejection::Invalid(format!("a segment has 1 to {max} rows")));
        }
        rows += u64::from(decl.rows);
    }
    Ok(rows)
}
