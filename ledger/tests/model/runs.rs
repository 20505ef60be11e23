//! Runs as vectors of rows: their counts, their canary, and when they pause and end.

use crate::bisection::Excluded;
use crate::rows::{Lease, Row, RowState};
use rollout_ledger::id::{Attempt, RunNo, SlotRef};
use rollout_ledger::view::{Counts, RunState};
use rollout_ledger::{Rejection, Reply, RunSpec, SegmentDecl, WebhookState};
use std::collections::BTreeMap;

pub(crate) struct Run {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) spec: RunSpec,
    pub(crate) state: RunState,
    pub(crate) created_at: u64,
    /// Counted from its creation, 0 for none. The spec keeps the one that was submitted.
    pub(crate) deadline_ms: u64,
    /// Its share. As above.
    pub(crate) weight: u32,
    pub(crate) webhook: WebhookState,
    pub(crate) resumed_index: u64,
    pub(crate) closed: bool,
    pub(crate) segments: Vec<SegmentDecl>,
    pub(crate) rows: Vec<Row>,
    pub(crate) deficit: u64,
    /// Its clock, if the version shares fairly.
    pub(crate) time: u64,
    pub(crate) retries: u64,
    pub(crate) returned: u64,
    pub(crate) stolen: u64,
    pub(crate) speculative_rows: u64,
    pub(crate) tokens: u64,
    pub(crate) trials_made: u32,
    /// Slots that empty themselves for a trial.
    pub(crate) emptying: BTreeMap<u32, SlotRef>,
    /// Slots that come after others for a trial, and until when. Below version 3.
    pub(crate) excluded: BTreeMap<u32, Excluded>,
    /// Attempts that met a store that refuses, and their workers.
    pub(crate) refused: Vec<(Attempt, String)>,
    pub(crate) canary_over: bool,
    /// What is left of it once its rows are gone.
    pub(crate) gone: Option<Gone>,
    pub(crate) forgotten: bool,
    /// The index of its latest end; 0 while it continues.
    pub(crate) ended_index: u64,
    pub(crate) swept: bool,
    pub(crate) folder: String,
}

#[derive(Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) rows: u64,
    pub(crate) segments: u32,
    pub(crate) digest: [u8; 32],
    pub(crate) counts: Counts,
    pub(crate) sealed: bool,
}

impl Run {
    pub(crate) fn count(&self, is: impl Fn(&RowState) -> bool) -> u64 {
        self.rows.iter().filter(|r| is(&r.state)).count() as u64
    }

    pub(crate) fn running(&self) -> u64 {
        self.count(|s| matches!(s, RowState::Running(_)))
    }

    pub(crate) fn pending(&self) -> u64 {
        self.count(|s| matches!(s, RowState::Pending { .. }))
    }

    pub(crate) fn ended(&self) -> bool {
        !matches!(self.state, RunState::Running | RunState::Paused)
    }

    /// Whether its deadline has passed.
    pub(crate) fn is_overdue(&self, now: u64) -> bool {
        self.deadline_ms > 0 && self.created_at + self.deadline_ms <= now
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        let all: Vec<u8> = self.segments.iter().flat_map(|s| s.blob.digest).collect();
        self.gone.map_or(*blake3::hash(&all).as_bytes(), |g| g.digest)
    }

    pub(crate) fn len(&self) -> u64 {
        self.gone.map_or(self.rows.len() as u64, |g| g.rows)
    }

    pub(crate) fn drop_rows(&mut self, sealed: bool) {
        if let Some(gone) = &mut self.gone {
            gone.sealed |= sealed;
            return;
        }
        let counts = self.counts();
        let dropped = self.rows.len() as u64 - counts.done - counts.failed;
        let counts = Counts { running: 0, waiting: 0, dropped, ..counts };
        let (rows, segments) = (self.rows.len() as u64, self.segments.len() as u32);
        self.gone = Some(Gone { rows, segments, digest: self.digest(), counts, sealed });
        self.rows.clear();
        self.emptying.clear();
        self.excluded.clear();
    }

    pub(crate) fn counts(&self) -> Counts {
        if let Some(gone) = self.gone {
            return gone.counts;
        }
        Counts {
            dropped: 0,
            running: self.running(),
            waiting: self.count(|s| matches!(s, RowState::Waiting { .. })),
            done: self.count(|s| matches!(s, RowState::Done { .. })),
            failed: self.count(|s| *s == RowState::Failed),
            retries: self.retries,
            returned: self.returned,
            stolen: self.stolen,
            speculative_rows: self.speculative_rows,
            tokens_in: self.tokens,
            tokens_out: 2 * self.tokens,
            reused: self.rows.iter().filter(|r| r.reused).count() as u64,
        }
    }

    /// Ends the leases that `which` names; late results stay welcome.
    pub(crate) fn lapse(&mut self, which: impl Fn(&Lease) -> bool) {
        for row in &mut self.rows {
            let ended: Vec<Lease> = row.leases().filter(|l| which(l)).collect();
            for lease in ended {
                if !row.release_shared_rows(lease.attempt) {
                    row.state = RowState::Pending { late: Some(lease) };
                    self.returned += 1;
                }
            }
        }
    }

    /// Pauses a run that cannot continue.
    pub(crate) fn stops(&mut self, store: bool, failed_now: bool) -> bool {
        let failed = self.count(|s| *s == RowState::Failed);
        let hopeless = store || failed_now && failed > self.spec.failures_max;
        let pauses = hopeless && self.state == RunState::Running;
        if pauses {
            self.state = RunState::Paused;
        }
        pauses
    }

    pub(crate) fn in_canary(&self) -> bool {
        self.spec.canary_rows > 0 && !self.canary_over && !self.ended()
    }

    /// The first of such rows that a canary does not hold back.
    pub(crate) fn first(&self, such: impl Fn(&Row) -> bool) -> Option<usize> {
        let end = if self.in_canary() { self.spec.canary_rows as usize } else { usize::MAX };
        self.rows.iter().take(end).position(such)
    }

    /// The one with the least key of these.
    pub(crate) fn first_by<K: Ord>(
        &self,
        such: impl Fn(&Row) -> bool,
        key: impl Fn(&Row) -> K,
    ) -> Option<usize> {
        let end = if self.in_canary() { self.spec.canary_rows as usize } else { usize::MAX };
        let rows = self.rows.iter().enumerate().take(end).filter(|(_, row)| such(row));
        rows.min_by_key(|(_, row)| key(row)).map(|(at, _)| at)
    }

    pub(crate) fn canary_failures(&self) -> u64 {
        self.rows
            .iter()
            .take(self.spec.canary_rows as usize)
            .filter(|r| r.state == RowState::Failed)
            .count() as u64
    }

    fn settle_canary(&mut self) {
        if !self.in_canary() {
            return;
        }
        let first = self.spec.canary_rows as usize;
        let decided = self
            .rows
            .iter()
            .take(first)
            .all(|r| matches!(r.state, RowState::Done { .. } | RowState::Failed));
        if self.canary_failures() > self.spec.canary_failures_max {
            self.state = RunState::Paused;
        } else if decided && (self.rows.len() >= first || self.closed) {
            self.canary_over = true;
        }
    }

    pub(crate) fn finish_if_done(&mut self) {
        self.settle_canary();
        let decided = self.count(|s| matches!(s, RowState::Done { .. } | RowState::Failed));
        if self.closed && decided == self.rows.len() as u64 && !self.ended() {
            self.state = RunState::Finished;
        }
    }

    /// Why nothing more is done with it.
    pub(crate) fn over(&self) -> Rejection {
        match self.state {
            RunState::DeadlineExceeded => Rejection::DeadlineExceeded,
            _ => Rejection::RunEnded,
        }
    }

    pub(crate) fn end_early(&mut self, state: RunState) {
        self.lapse(|_| true);
        for row in &mut self.rows {
            if !matches!(row.state, RowState::Done { .. } | RowState::Failed) {
                row.state = RowState::Pending { late: None };
                row.trial = None;
            }
        }
        self.state = state;
    }

    pub(crate) fn reply(&self, no: usize, created: bool) -> Reply {
        Reply::Run {
            run: RunNo(no as u32),
            created,
            segments: match self.gone {
                Some(gone) if !gone.sealed => 0,
                Some(gone) => gone.segments,
                None => self.segments.len() as u32,
            },
            rows: self.len(),
            input_closed: self.closed,
            folder: self.folder.clone(),
        }
    }
}
