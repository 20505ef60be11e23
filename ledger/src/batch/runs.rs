//! All runs, their indexes, and which of their records differ from the image.
//!
//! *Invariant:* the functions of this file and its folder keep the indexes: a run is found by its name; each row that
//! waits, and the end of each open incident, is listed by its time; each run with lapsed attempts is listed. So only
//! they add and remove runs, make rows wait, open incidents and let attempts lapse. Code that changes anything
//! else through [`Runs::get_mut`] must mark what the image needs; [`Runs::change`] marks the run itself.
//!
//! Absent: indexes that depend on other domains too, such as turns (`eligibility.rs`), lists of runs
//! (`run_lists.rs`), sums (`tally.rs`) and deadlines (`settle.rs`).

mod failure_records;
mod image;
mod outcomes;

use crate::batch::grant::Grant;
use crate::batch::run::Run;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SegmentNo};
use crate::kernel::rows::Rows;
use image::DirtyRuns;
use std::collections::{BTreeMap, BTreeSet};

/// All runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    by_no: BTreeMap<RunNo, Run>,
    // Derived.
    names: BTreeMap<(String, String), RunNo>,
    /// All runs that have lapsed attempts, and some that had.
    lapsed: BTreeSet<RunNo>,
    /// Rows that wait, by time.
    waiting: BTreeSet<(LedgerMs, RunNo, u64)>,
    /// When incidents of rows end. Some entries are of incidents that ended earlier.
    incident_ends: BTreeSet<(LedgerMs, RunNo, u64)>,
    dirty: DirtyRuns,
}

impl Runs {
    pub(crate) fn get(&self, no: &RunNo) -> Option<&Run> {
        self.by_no.get(no)
    }

    /// For a change. Mark what has changed.
    pub(crate) fn get_mut(&mut self, no: &RunNo) -> Option<&mut Run> {
        self.by_no.get_mut(no)
    }

    /// For a change of a run's head or of its rows in flight, which this marks.
    pub(crate) fn change(&mut self, no: &RunNo) -> Option<&mut Run> {
        let run = self.by_no.get_mut(no)?;
        self.dirty.heads.insert(*no);
        Some(run)
    }

    /// The same for all runs.
    pub(super) fn change_all(&mut self, mut act: impl FnMut(&mut Run)) {
        for (no, run) in &mut self.by_no {
            act(run);
            self.dirty.heads.insert(*no);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_no.len()
    }

    /// All of them, in the order of creation.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Run> {
        self.by_no.values()
    }

    /// For changes of what the image does not have, or of a state that is being loaded.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.by_no.values_mut()
    }

    /// All of them with their numbers, in the order of creation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RunNo, &Run)> {
        self.by_no.iter()
    }

    /// All numbers, in the order of creation.
    pub(crate) fn numbers(&self) -> Vec<RunNo> {
        self.by_no.keys().copied().collect()
    }

    /// The run with this namespace and name.
    pub(crate) fn by_name(&self, name: &(String, String)) -> Option<RunNo> {
        self.names.get(name).copied()
    }

    /// Adds a run. No other one may have its name.
    pub(super) fn add(&mut self, run: Run) {
        let no = run.no;
        self.names.insert((run.head.namespace.clone(), run.head.name.clone()), no);
        self.dirty.heads.insert(no);
        self.by_no.insert(no, run);
    }

    /// Removes a run that keeps nothing per row, part and segment any more.
    pub(super) fn remove(&mut self, no: RunNo) {
        self.lapsed.remove(&no);
        self.dirty.heads.insert(no);
        if let Some(run) = self.by_no.remove(&no) {
            self.names.remove(&(run.head.namespace, run.head.name));
        }
    }

    /// A run's head or its rows in flight have changed.
    pub(crate) fn mark(&mut self, no: RunNo) {
        self.dirty.heads.insert(no);
    }

    /// Segments of a run have changed, or outcomes of their rows.
    pub(super) fn mark_segments(
        &mut self,
        no: RunNo,
        segments: impl IntoIterator<Item = SegmentNo>,
    ) {
        self.dirty.segments.extend(segments.into_iter().map(|segment| (no, segment)));
    }

    /// Failure records of a run's rows have changed.
    pub(super) fn mark_failures(&mut self, no: RunNo, rows: impl Iterator<Item = u64>) {
        self.dirty.failures.extend(rows.map(|row| (no, row)));
    }

    /// Takes the runs whose index entries are stale. Return the list with [`Runs::reuse`].
    pub(crate) fn take_stale(&mut self) -> Vec<RunNo> {
        self.dirty.heads.take_stale()
    }

    /// Keeps the memory of a list.
    pub(crate) fn reuse(&mut self, stale: Vec<RunNo>) {
        self.dirty.heads.reuse(stale);
    }

    /// The runs that have lapsed attempts, and some that had.
    pub(super) fn with_lapsed(&self) -> impl Iterator<Item = &Run> {
        self.lapsed.iter().filter_map(|no| self.by_no.get(no))
    }

    /// The runs that have lapsed attempts, ascending. Removes the others from the list.
    pub(super) fn list_lapsed(&mut self) -> Vec<RunNo> {
        let runs = &self.by_no;
        self.lapsed.retain(|no| runs.get(no).is_some_and(|run| !run.flight.lapsed.is_empty()));
        self.lapsed.iter().copied().collect()
    }

    /// The lease of rows has ended, but not their attempt, which starts as `empty` if none of its rows has lapsed yet.
    pub(super) fn lapse(&mut self, no: RunNo, attempt: Attempt, empty: Grant, rows: &Rows) {
        let Some(run) = self.by_no.get_mut(&no) else { return };
        run.flight.lapsed.add(attempt, empty, rows);
        self.lapsed.insert(no);
    }

    /// Ends all lapsed attempts, for good.
    pub(crate) fn end_lapsed(&mut self) {
        self.by_no.values_mut().for_each(|run| run.flight.lapsed.clear());
        self.lapsed.clear();
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (no, run) in &mut self.by_no {
            run.flight.mark_none();
            run.derive_avoided();
            self.names.insert((run.head.namespace.clone(), run.head.name.clone()), *no);
            if !run.flight.lapsed.is_empty() {
                self.lapsed.insert(*no);
            }
            self.waiting.extend(failure_records::waits_of(run));
            self.incident_ends.extend(failure_records::incident_ends_of(run));
        }
    }

    /// Compares the indexes with the runs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let named = |run: &Run| ((run.head.namespace.clone(), run.head.name.clone()), run.no);
        if !self.by_no.values().map(named).collect::<BTreeMap<_, _>>().eq(&self.names) {
            return Err("the index of runs' names differs".into());
        }
        let lapsed = |run: &&Run| !run.flight.lapsed.is_empty();
        if let Some(run) = self.values().filter(lapsed).find(|run| !self.lapsed.contains(&run.no)) {
            return Err(format!("the index of lapsed attempts lacks run {}", run.no));
        }
        if !self
            .values()
            .flat_map(failure_records::waits_of)
            .collect::<BTreeSet<_>>()
            .eq(&self.waiting)
        {
            return Err("the index of waiting rows differs from the failure records".into());
        }
        let mut ends = self.values().flat_map(failure_records::incident_ends_of);
        match ends.find(|end| !self.incident_ends.contains(end)) {
            Some((_, no, row)) => Err(format!("the incident of row {row} of run {no} never ends")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::run::{RunHead, RunState};
    use crate::kernel::id::{SessionId, SlotNo, SlotRef};
    use crate::kernel::limits;

    #[test]
    fn a_returning_worker_visits_only_runs_with_its_lapsed_attempts() {
        let mut runs = Runs::default();
        let (last, live) = (limits::RUNS_MAX as u32, RunNo(7));
        for no in (1..=last).map(RunNo) {
            let state = if no == live { RunState::Running } else { RunState::Finished };
            let head = RunHead { state, ..RunHead::default() };
            runs.by_no.insert(no, Run { no, head, ..Run::default() });
        }
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        let empty = Grant { slot, rows: Rows::default(), granted_at: LedgerMs(0), group: None };
        runs.lapse(live, Attempt::at(1, 0), empty, &Rows::range(0, 1));
        // Each had some once; most no longer exist or have ended since.
        runs.lapsed = (1..=last + 9).map(RunNo).collect();
        assert_eq!(runs.list_lapsed(), [live]);
        assert_eq!(runs.lapsed.len(), 1, "they are not looked at again");
    }
}
