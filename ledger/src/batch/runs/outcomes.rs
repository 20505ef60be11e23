//! The outcomes of rows, the parts with their results, and the marks of both.
//!
//! *Invariant:* a change of an outcome marks its segment, and a new part marks the parts that share its record.
//! Absent: which attempt may decide a row (`complete.rs`, `fail.rs`).

use super::Runs;
use super::image::PARTS_PER_RECORD;
use crate::batch::segment::Outcome;
use crate::kernel::id::{PartNo, RunNo};
use crate::kernel::rows::Rows;
use crate::machine::command::PartDecl;

impl Runs {
    /// Rows are done: `place` says where their results are in the part that [`add_part`](Self::add_part) adds next.
    pub(crate) fn finish(&mut self, no: RunNo, rows: &Rows, mut place: impl FnMut(u64) -> u32) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        run.head.counts.done += rows.len();
        let part = PartNo(run.parts.len() as u32);
        let dirty = &mut self.dirty.segments;
        run.decide(
            rows,
            |row| Outcome::done(part, place(row)),
            |segment| {
                dirty.insert((no, segment));
            },
        );
    }

    /// Adds a part, and marks the run too.
    pub(crate) fn add_part(&mut self, no: RunNo, part: PartDecl) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        // Workers report these numbers: even absurd ones must not crash a member.
        let counts = &mut run.head.counts;
        counts.tokens_in = counts.tokens_in.saturating_add(part.tokens_in);
        counts.tokens_out = counts.tokens_out.saturating_add(part.tokens_out);
        let chunk = run.parts.len() as u32 / PARTS_PER_RECORD;
        run.parts.push(part);
        self.dirty.parts.insert((no, chunk));
        self.dirty.heads.insert(no);
    }

    /// A row that is in nothing else has failed for good; its failure record says why.
    pub(crate) fn fail_for_good(&mut self, no: RunNo, row: u64) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        run.head.counts.failed += 1;
        let dirty = &mut self.dirty.segments;
        run.decide(
            &Rows::range(row, 1),
            |_| Outcome::FAILED,
            |segment| {
                dirty.insert((no, segment));
            },
        );
    }

    /// Drops everything that is kept per row, part and segment of a run that has ended.
    pub(crate) fn drop_rows(&mut self, no: RunNo) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        run.drop_rows();
        self.dirty.segments.retain(|d| d.0 != no);
        self.dirty.parts.retain(|d| d.0 != no);
        self.dirty.failures.retain(|d| d.0 != no);
        self.dirty.emptied.insert(no);
        self.dirty.heads.insert(no);
    }
}
