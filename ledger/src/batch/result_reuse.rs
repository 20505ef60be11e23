//! Result reuse: rows of a new revision that an earlier run has finished are done at once.
//!
//! *Invariant:* only a row that was never granted gets a reused result, so no row has both a reused result and a
//! computed one. The operation names the segment by its digest: if another input has taken that number, nothing is
//! reused, and no result ends up with another row's prompt.
//!
//! Absent: matching results to rows. The submitter compares item ids and writes the part; the ledger sees
//! only digests and row numbers.

use crate::batch::run::{Run, RunState};
use crate::batch::segment::Outcome;
use crate::kernel::id::{Attempt, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{RefusedRows, Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{HeldRows, PartDecl};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Marks rows that were never granted as done: their results are reused from an earlier run
/// of the same items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReuseResults {
    /// The run.
    pub run: RunNo,
    /// The segment that holds the rows.
    pub segment: SegmentNo,
    /// The digest of that segment: results for another one are refused.
    pub segment_digest: [u8; 32],
    /// The part, durable under this run.
    pub part: PartDecl,
    /// Its rows in its order.
    pub rows: Rows,
}

impl Operation for ReuseResults {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        self.rows.len()
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_run(self.run)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.reuse_results(
            ctx,
            self.run,
            (self.segment, self.segment_digest),
            self.part,
            &self.rows,
        )
    }
}

/// Stands in events for the slot of a row with a reused result, which no slot ran.
const NOBODY: SlotRef = SlotRef { session: SessionId(0), slot: SlotNo(0) };

impl Ledger {
    pub(crate) fn reuse_results(
        &mut self,
        ctx: &Context,
        no: RunNo,
        (SegmentNo(number), digest): (SegmentNo, [u8; 32]),
        part: PartDecl,
        rows: &Rows,
    ) -> Result<Reply, Rejection> {
        if rows.len() > limits::PART_ROWS_MAX {
            let max = limits::PART_ROWS_MAX;
            return Err(Rejection::Limit { what: "rows in a part".into(), max });
        }
        let run = self.run_mut(no)?;
        let stopped = matches!(run.head.state, RunState::Cancelled | RunState::DeadlineExceeded);
        if stopped || !run.has_rows() {
            return Err(run.over());
        }
        let have = run.segments.len() as u32;
        let segment = run.segments.get(number as usize).filter(|s| s.blob.digest == digest);
        let Some(segment) = segment else {
            return Err(Rejection::SegmentConflict { number, have });
        };
        let first = rows.ranges().first().map_or(segment.first_row, |r| r.0);
        if first < segment.first_row || rows.end() > segment.end() {
            return Err(Rejection::Invalid("carried rows lie outside of their segment".into()));
        }
        let (free, refused) = run.reusable(rows, &part);
        if !free.is_empty() {
            self.take_reused(ctx, no, rows, free, part);
        }
        Ok(Reply::Taken { refused })
    }

    fn take_reused(&mut self, ctx: &Context, no: RunNo, rows: &Rows, free: Rows, part: PartDecl) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        let count = free.len();
        run.head.counts.reused += count;
        run.head.reused_ahead += count;
        let places: Vec<(u64, u32)> = rows.iter().zip(0..).collect();
        let mut at = 0;
        let place = |row: u64| {
            while places[at].0 < row {
                at += 1; // invariant: `free` is a subset of `rows`, and `place` is called in ascending order.
            }
            places[at].1
        };
        self.runs.finish(no, &free, place);
        self.runs.add_part(no, part);
        let held = HeldRows { run: no, attempt: Attempt(0), rows: free };
        self.emit(ctx, EventKind::Completed { slot: NOBODY, held });
        self.refresh_active(no);
        self.finish_if_done(ctx, no);
    }
}

impl Run {
    /// The rows that may get a reused result, and why the others may not. Rows that this very part decided are in
    /// neither set: this is a repeat.
    fn reusable(&self, rows: &Rows, part: &PartDecl) -> (Rows, Vec<RefusedRows>) {
        let (mut free, mut stale, mut decided) =
            (Rows::default(), Rows::default(), Rows::default());
        for row in rows.iter() {
            let outcome = self.outcome(row);
            let by = outcome.part().and_then(|(no, _)| self.parts.get(no.0 as usize));
            match outcome == Outcome::NONE {
                true if row >= self.head.next_fresh => free.push(row, 1),
                true => stale.push(row, 1),
                false if by.is_some_and(|p| p.blob.digest == part.blob.digest) => {}
                false => decided.push(row, 1),
            }
        }
        let refused = [(stale, Rejection::AttemptStale), (decided, Rejection::AlreadyDecided)]
            .into_iter()
            .filter(|(rows, _)| !rows.is_empty())
            .map(|(rows, why)| RefusedRows { run: self.no, attempt: Attempt(0), rows, why });
        let refused = refused.collect();
        (free, refused)
    }

    /// Whether the counters in the head fit the number of rows.
    pub(crate) fn counts_fit(&self) -> bool {
        let (head, end) = (&self.head, self.fresh_end());
        let taken = head.next_fresh.checked_add(head.reused_ahead);
        let held_back = head.next_fresh.checked_add(self.reused_before(end));
        taken.is_some_and(|taken| taken <= head.rows) && held_back.is_some_and(|held| held <= end)
    }

    /// Rows that were never granted, without those that have a reused result or that a canary holds back.
    pub(crate) fn grantable_fresh(&self) -> u64 {
        let end = self.fresh_end();
        end - self.head.next_fresh - self.reused_before(end)
    }

    /// Rows with a reused result, from the first that was never granted up to `end`.
    fn reused_before(&self, end: u64) -> u64 {
        let next = self.head.next_fresh;
        if self.head.reused_ahead == 0 || end >= self.head.rows {
            return self.head.reused_ahead;
        }
        let segments = self.segments.iter().skip(self.segment_at(next));
        let reused = segments.take_while(|s| s.first_row < end).map(|segment| {
            if segment.first_row >= next && segment.end() <= end {
                return u64::from(segment.decided);
            }
            let inside = segment.first_row.max(next)..segment.end().min(end);
            inside.filter(|row| segment.outcome(*row) != Outcome::NONE).count() as u64
        });
        reused.sum()
    }

    /// Takes up to `count` fresh rows, skipping those with a reused result.
    pub(crate) fn take_fresh(&mut self, count: u64) -> Rows {
        let (mut rows, end) = (Rows::default(), self.fresh_end());
        let mut left = count;
        while left > 0 && self.head.next_fresh < end {
            let row = self.head.next_fresh;
            if self.head.reused_ahead == 0 {
                let len = left.min(end - row);
                rows.push(row, len as u32);
                self.head.next_fresh += len;
                break;
            }
            let segment = &self.segments[self.segment_at(row)];
            let whole = segment.first_row == row && segment.end() <= end;
            if whole && segment.decided == segment.rows {
                self.head.next_fresh = segment.end();
                self.head.reused_ahead -= u64::from(segment.rows);
                continue;
            }
            if segment.outcome(row) == Outcome::NONE {
                rows.push(row, 1);
                left -= 1;
            } else {
                self.head.reused_ahead -= 1;
            }
            self.head.next_fresh += 1;
        }
        rows
    }
}
