//! The failure records of rows: their failures, their waits and their incidents, with the indexes by time and the
//! marks.
//!
//! *Invariant:* a row waits if and only if its failure record has a `not_before`; it is then in the index of waits and
//! counted as waiting. Each incident that is open is in the index of their ends.
//! Absent: what a failure means for its row (`failure_record.rs`), and where a row last failed (`incident.rs`).

use super::Runs;
use crate::batch::failure_record::{DoneTry, FailedTry, Verdict};
use crate::batch::incident::Incident;
use crate::batch::run::Run;
use crate::kernel::id::{LedgerMs, RunNo};
use crate::kernel::limits;
use crate::kernel::rows::Rows;

/// The rows of a run that wait, as in the index.
pub(super) fn waits_of(run: &Run) -> impl Iterator<Item = (LedgerMs, RunNo, u64)> {
    run.failures.iter().filter_map(move |(row, t)| Some((t.not_before?, run.no, *row)))
}

/// The ends of the open incidents of a run's rows, as in the index.
pub(super) fn incident_ends_of(run: &Run) -> impl Iterator<Item = (LedgerMs, RunNo, u64)> {
    run.failures.iter().filter_map(move |(row, t)| Some((t.open_incident()?.until?, run.no, *row)))
}

impl Runs {
    /// Adds a failure of a row that is in nothing else, and returns the verdict, on which the caller acts. A slot that
    /// may not decide gives a strike and no verdict.
    pub(crate) fn add_failure(
        &mut self,
        (no, row): (RunNo, u64),
        failed: FailedTry,
        decides: bool,
        now: LedgerMs,
    ) -> Option<Verdict> {
        let run = self.by_no.get_mut(&no)?;
        let attempts_max = run.head.spec.attempts_max;
        self.dirty.failures.insert((no, row));
        Some(run.failures.entry(row).or_default().add(failed, (attempts_max, decides), now))
    }

    /// Rows that are in nothing else, or in one group that waits as long, wait until then.
    pub(crate) fn wait(&mut self, no: RunNo, rows: impl Iterator<Item = u64>, until: LedgerMs) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        for row in rows {
            run.head.counts.waiting += 1;
            run.failures.entry(row).or_default().not_before = Some(until);
            self.waiting.insert((until, no, row));
            self.dirty.failures.insert((no, row));
        }
    }

    /// The first row whose wait ends, and when it does.
    pub(crate) fn first_wait(&self) -> Option<(LedgerMs, RunNo, u64)> {
        self.waiting.first().copied()
    }

    /// Ends the wait of [`first_wait`](Self::first_wait). The caller brings the row back, or its group.
    pub(crate) fn end_first_wait(&mut self) {
        let Some((_, no, row)) = self.waiting.pop_first() else { return };
        let Some(run) = self.by_no.get_mut(&no) else { return };
        run.head.counts.waiting -= 1;
        if let Some(record) = run.failures.get_mut(&row) {
            record.not_before = None;
            self.dirty.failures.insert((no, row));
        }
    }

    /// Brings back all rows of a run that wait.
    pub(crate) fn end_all_waits(&mut self, no: RunNo) {
        self.waiting.retain(|wait| wait.1 != no);
        let Some(run) = self.by_no.get_mut(&no) else { return };
        let mut waited = Rows::default();
        for (&row, record) in run.failures.iter_mut().filter(|t| t.1.not_before.is_some()) {
            record.not_before = None;
            self.dirty.failures.insert((no, row));
            waited.push(row, 1);
        }
        run.bring_back(&waited);
        run.head.counts.waiting = 0;
    }

    /// Records an open incident of a row that has a failure record.
    pub(crate) fn open_incident(&mut self, (no, row): (RunNo, u64), incident: Incident) {
        let record = self.by_no.get_mut(&no).and_then(|run| run.failures.get_mut(&row));
        let Some(record) = record else { return };
        self.incident_ends.extend(incident.until.map(|until| (until, no, row)));
        record.incident = Some(incident);
        self.dirty.failures.insert((no, row));
    }

    /// When the next incident ends, or would have ended.
    pub(crate) fn first_incident_end(&self) -> Option<LedgerMs> {
        self.incident_ends.first().map(|end| end.0)
    }

    /// Ends the incident of [`first_incident_end`](Self::first_incident_end). Returns whether it was still open.
    pub(crate) fn end_first_incident(&mut self) -> bool {
        let Some((at, no, row)) = self.incident_ends.pop_first() else { return false };
        let run = self.by_no.get_mut(&no);
        let was_open = run.is_some_and(|run| run.end_incident(row, at));
        if was_open {
            self.dirty.failures.insert((no, row));
        }
        was_open
    }

    /// Records in the failure history of each row which attempt completed it. The history no longer affects the row.
    pub(crate) fn settle_failures(&mut self, no: RunNo, rows: &Rows, done: &DoneTry) {
        let run = self.by_no.get_mut(&no).filter(|run| !run.failures.is_empty());
        let Some(run) = run else { return };
        for &(start, len) in rows.ranges() {
            let range = start..start + u64::from(len);
            let settled: Vec<u64> = run.failures.range(range).map(|t| *t.0).collect();
            for row in settled {
                self.dirty.failures.insert((no, row));
                if run.head.done_histories >= limits::DONE_HISTORIES_MAX {
                    run.failures.remove(&row);
                    continue;
                }
                run.head.done_histories += 1;
                if let Some(record) = run.failures.get_mut(&row) {
                    record.done = Some(done.clone());
                    record.incident = None;
                }
            }
        }
    }
}
