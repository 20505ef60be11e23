//! A run: its input, its pending rows, the holders of rows, and the outcome of each row.
//!
//! *Invariant:* every row is in exactly one of these: fresh (`next_fresh ..`, except for rows with a reused result,
//! which are decided), returned, in a group that is ready, in a live grant, waiting (its failure record says until
//! when), or decided in its segment. The first three are the pending ones; groups go first, then returned rows.

use crate::batch::attempts::Attempts;
use crate::batch::avoided_rows::{Avoided, KeptRows};
use crate::batch::bisection::{BisectionGroup, GroupNo};
use crate::batch::completion_webhook::WebhookState;
use crate::batch::disjoint_attempts::DisjointAttempts;
use crate::batch::failure_record::FailureRecord;
use crate::batch::returned_rows::Returned;
use crate::batch::run_gc::Sealed;
use crate::batch::segment::{Outcome, Segment};
use crate::batch::spec::RunSpec;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SegmentNo, SlotRef};
use crate::kernel::reply::SegmentRef;
use crate::kernel::rows::Rows;
use crate::machine::command::PartDecl;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    /// Rows are granted.
    #[default]
    Running,
    /// No more rows are granted; running rows may finish.
    Paused,
    /// Ended by its user; nothing more is accepted.
    Cancelled,
    /// Its input is closed and every row has an outcome.
    Finished,
    /// Deleted by its user or its retention: its objects are being removed, and then the run.
    Deleting,
    /// Ended by its deadline; nothing more is accepted.
    DeadlineExceeded,
}

/// Counts of rows by state, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows that workers hold.
    pub running: u64,
    /// Rows that wait after a failure.
    pub waiting: u64,
    /// Rows with a result.
    pub done: u64,
    /// Rows that failed for good.
    pub failed: u64,
    /// Failed attempts that were, or will be, tried again.
    pub retries: u64,
    /// Rows that came back unfinished, without a strike.
    pub returned: u64,
    /// Rows that went unstarted from one slot to another that had nothing to do.
    pub stolen: u64,
    /// Prompt tokens of accepted parts.
    pub tokens_in: u64,
    /// Generated tokens of accepted parts.
    pub tokens_out: u64,
    /// Rows without an outcome that were dropped when their ended run was sealed or deleted.
    pub dropped: u64,
    /// Rows with a result that is reused from an earlier run.
    pub reused: u64,
    /// Rows that a second slot got while a first one ran them.
    pub speculative_rows: u64,
}

/// The state of a run without its rows: one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunHead {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) spec: RunSpec,
    /// Of the spec as it was submitted.
    pub(super) spec_digest: [u8; 32],
    pub(super) state: RunState,
    pub(super) reason: String,
    /// The log index of the last end of a pause. Reports from earlier attempts no longer matter.
    pub(super) resumed_index: u64,
    pub(super) created_wall_ms: u64,
    pub(super) finished_wall_ms: u64,
    pub(super) input_closed: bool,
    pub(super) rows: u64,
    pub(super) next_fresh: u64,
    /// Rows at or after `next_fresh` that are done with a reused result.
    pub(super) reused_ahead: u64,
    pub(super) counts: Counts,
    /// For fair sharing: its virtual time, in clusters of `SCHEDULING_VERSION` and above; below, the rows left in its
    /// turn.
    pub(super) service: u64,
    /// Whether rows after its canary may be granted.
    pub(super) canary_over: bool,
    /// The digest that the input was closed with.
    pub(super) input_digest: [u8; 32],
    /// When it ended, in ledger time.
    pub(super) ended_at: LedgerMs,
    /// The location of its rows, once they are no longer here.
    pub(super) sealed: Option<Sealed>,
    /// The log index of its latest end. A reopened run ends again, later.
    pub(super) ended_index: u64,
    /// The folder of its objects, within its namespace. No other run of its name ever has the same.
    pub(super) folder: String,
    /// When it was created, in ledger time.
    pub(super) created_at: LedgerMs,
    /// Rows that are done and have a history.
    pub(super) done_histories: u64,
    /// The state of its completion webhook.
    pub(super) webhook: WebhookState,
    /// The image has it after the rest, unless it is the default.
    #[serde(skip)]
    pub(super) pause: PauseState,
}

/// The ledger's record of a run's pauses, from cluster version 3 on. Below version 3 it is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PauseState {
    /// The first worker that the store has refused since the last end of a pause.
    pub(super) refused: Option<String>,
    /// Whether the run is paused because a slot is to blame and the ledger may cordon no more slots. The reason does
    /// not show that, because users choose the texts of their pauses.
    pub(super) at_cordon_limit: bool,
}

/// Rows in flight of one run: one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InFlight {
    pub(super) returned: Returned,
    /// The returned rows that a slot failed last. Derived.
    #[serde(skip)]
    pub(super) avoided: Avoided,
    pub(super) grants: Attempts,
    pub(super) lapsed: DisjointAttempts,
    /// Second attempts of rows that are in `grants` too.
    pub(super) speculative: DisjointAttempts,
    pub(super) groups: BTreeMap<GroupNo, BisectionGroup>,
    /// Below cluster version 3, for each group of one row whose engine died: the slot of that engine, and until when
    /// other slots come first, also while another slot holds the group. From version 3 on, the rows' incidents record
    /// it.
    pub(super) excluded: BTreeMap<GroupNo, (SlotRef, LedgerMs)>,
    /// Bisection groups made so far.
    pub(super) groups_made: GroupNo,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(super) no: RunNo,
    pub(super) head: RunHead,
    pub(super) flight: InFlight,
    pub(super) segments: Vec<Segment>,
    pub(super) parts: Vec<PartDecl>,
    pub(super) failures: BTreeMap<u64, FailureRecord>,
}

impl Run {
    pub(crate) fn namespace(&self) -> &str {
        &self.head.namespace
    }

    /// Rows that workers hold.
    pub(crate) fn running(&self) -> u64 {
        self.head.counts.running
    }

    pub(crate) fn pending(&self) -> u64 {
        self.pending_beside_groups() + self.ready_groups().map(|t| t.1.rows.len()).sum::<u64>()
    }

    /// Pending rows that may be granted beside other rows.
    pub(crate) fn pending_beside_groups(&self) -> u64 {
        self.fresh() + self.flight.returned.len()
    }

    /// Pending rows that are no group's and may be granted now: a canary holds back the others.
    pub(crate) fn grantable_beside_groups(&self) -> u64 {
        self.grantable_fresh() + self.flight.returned.len()
    }

    /// Whether it has rows to give.
    pub(crate) fn gives(&self) -> bool {
        self.head.state == RunState::Running && self.has_grantable() && self.room() > 0
    }

    pub(crate) fn has_grantable(&self) -> bool {
        self.grantable_beside_groups() > 0 || self.ready_groups().next().is_some()
    }

    /// Rows that were never granted and have no outcome.
    fn fresh(&self) -> u64 {
        self.head.rows - self.head.next_fresh - self.head.reused_ahead
    }

    pub(crate) fn ended(&self) -> bool {
        !matches!(self.head.state, RunState::Running | RunState::Paused)
    }

    /// Rows that may still be granted under the run's own cap.
    pub(crate) fn room(&self) -> u64 {
        match self.head.spec.running_rows_max {
            0 => u64::MAX,
            max => max.saturating_sub(self.head.counts.running),
        }
    }

    /// The segment that holds `row`, which must exist.
    pub(crate) fn segment_at(&self, row: u64) -> usize {
        self.segments.partition_point(|s| s.end() <= row)
    }

    pub(crate) fn outcome(&self, row: u64) -> Outcome {
        match self.segments.get(self.segment_at(row)) {
            Some(segment) => segment.outcome(row),
            None => Outcome::NONE,
        }
    }

    /// The segments that `rows` touch, in order.
    pub(crate) fn segments_of(&self, rows: &Rows) -> Vec<SegmentRef> {
        let mut refs: Vec<SegmentRef> = Vec::new();
        for &(start, len) in rows.ranges() {
            let end = start + u64::from(len);
            let mut at = self.segment_at(start);
            while let Some(segment) = self.segments.get(at).filter(|s| s.first_row < end) {
                if refs.last().is_none_or(|r| r.number.0 < at as u32) {
                    refs.push(SegmentRef {
                        number: SegmentNo(at as u32),
                        first_row: segment.first_row,
                        rows: segment.rows,
                        blob: segment.blob.clone(),
                    });
                }
                at += 1;
            }
        }
        refs
    }

    /// Rows get a new last attempt: a late result under the old one is refused from now on.
    pub(crate) fn outdate_lapsed(&mut self, rows: &Rows) {
        self.flight.lapsed.outdate(rows);
    }

    /// Takes up to `count` pending rows outside of groups, returned ones first, except those that are kept from a
    /// worker.
    pub(crate) fn take_pending(&mut self, count: u32, kept_from: Option<&KeptRows<'_>>) -> Rows {
        let mut rows = self.take_returned(count, kept_from);
        self.outdate_lapsed(&rows);
        let fresh = self.take_fresh(u64::from(count) - rows.len());
        rows.unite(&fresh);
        rows
    }

    fn take_returned(&mut self, count: u32, kept_from: Option<&KeptRows<'_>>) -> Rows {
        #[cfg(feature = "seeded-bugs")]
        if let Some(rows) = self.take_wrongly(count) {
            return rows;
        }
        if let Some(kept) = kept_from {
            return self.take_returned_beside(count, kept);
        }
        let rows = self.flight.returned.take_first(count);
        self.flight.avoided.forget(&rows);
        rows
    }

    /// Removes pending rows from an attempt's lapsed part, and returns how many.
    pub(crate) fn release_lapsed(&mut self, attempt: Attempt, rows: &Rows) -> u64 {
        let Some(lapsed) = self.flight.lapsed.get(&attempt) else { return 0 };
        let (late, _) = rows.partition(&lapsed.rows);
        let group = lapsed.group;
        self.flight.lapsed.take(&attempt, &late);
        self.take_back(group, &late);
        late.len()
    }

    /// Clears the outcome of failed rows, and returns the segments that changed.
    pub(crate) fn reopen(&mut self, rows: &Rows) -> BTreeSet<SegmentNo> {
        let mut touched = BTreeSet::new();
        for row in rows.iter() {
            let at = self.segment_at(row);
            if let Some(segment) = self.segments.get_mut(at) {
                segment.reopen(row);
                touched.insert(SegmentNo(at as u32));
            }
        }
        touched
    }

    /// Sets the outcomes of `rows` one after another and returns the segments that changed.
    pub(crate) fn decide(
        &mut self,
        rows: &Rows,
        mut outcome: impl FnMut(u64) -> Outcome,
        mut touched: impl FnMut(SegmentNo),
    ) {
        for &(start, len) in rows.ranges() {
            let (mut row, end) = (start, start + u64::from(len));
            while row < end {
                let at = self.segment_at(row);
                let segment = &mut self.segments[at];
                let stop = end.min(segment.end());
                let outcomes = (0..(stop - row) as usize).map(|i| outcome(row + i as u64));
                segment.decide(row, outcomes);
                touched(SegmentNo(at as u32));
                row = stop;
            }
        }
    }
}
