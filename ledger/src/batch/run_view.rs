//! Runs and their segments, as services read them: small copies, never references.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to what it returns.
//! Absent: single rows (`item_view.rs`), and the rows in flight (`flight_view.rs`).

use crate::batch::completion_webhook::WebhookState;
use crate::batch::failure_record::FailureRecord;
use crate::batch::run::{Counts, Run, RunState};
use crate::batch::run_gc::Sealed;
use crate::batch::spec::RunSpec;
use crate::kernel::id::{RunNo, SegmentNo, SessionId};
use crate::kernel::reply::SegmentRef;
use crate::machine::command::PartDecl;
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// A run at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Its number.
    pub run: RunNo,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: RunState,
    /// Why, when it is paused or cancelled.
    pub reason: String,
    /// Its spec.
    pub spec: RunSpec,
    /// The digest of the spec as it was submitted: a later deadline or weight does not change it.
    pub spec_digest: [u8; 32],
    /// Rows so far.
    pub rows: u64,
    /// Rows that may be granted.
    pub pending: u64,
    /// The other counts.
    pub counts: Counts,
    /// Segments so far.
    pub segments: u32,
    /// The location of its rows, once they are no longer in the ledger.
    pub sealed: Option<Sealed>,
    /// Whether its input is closed.
    pub input_closed: bool,
    /// The canary rows that must end well before others are granted; 0 for none.
    pub canary_rows: u64,
    /// When it was created, wall time.
    pub created_wall_ms: u64,
    /// When it ended, wall time; 0 before.
    pub finished_wall_ms: u64,
    /// Workers that hold rows of it.
    pub workers: u32,
    /// The log index of its latest end; 0 before.
    pub ended_index: u64,
    /// The folder of its objects, within its namespace.
    pub folder: String,
    /// The state of its completion webhook.
    pub webhook: WebhookState,
}

/// A segment and the outcomes of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// The location of its input.
    pub segment: SegmentRef,
    /// For each row, the location of its result: an index into `parts`, and the row of that part.
    pub results: Vec<Option<(u32, u32)>>,
    /// The parts that hold them.
    pub parts: Vec<PartDecl>,
    /// Rows that failed for good, by row number.
    pub failures: Vec<(u64, FailureRecord)>,
}

/// How far a run is, for its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunProgress {
    pub(crate) state: RunState,
    pub(crate) rows: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) finished_wall_ms: u64,
    /// Ledger time from its creation to its deadline; 0 for none.
    pub(crate) deadline_ms: u64,
}

impl Ledger {
    pub(crate) fn run_progress(&self, no: RunNo) -> Option<RunProgress> {
        let head = &self.runs.get(&no)?.head;
        Some(RunProgress {
            state: head.state,
            rows: head.rows,
            done: head.counts.done,
            failed: head.counts.failed,
            finished_wall_ms: head.finished_wall_ms,
            deadline_ms: head.spec.deadline_ms,
        })
    }

    /// The run of that name.
    pub fn find_run(&self, namespace: &str, name: &str) -> Option<RunNo> {
        self.runs.by_name(&(namespace.to_owned(), name.to_owned()))
    }

    /// Namespace and name of a run. They never change.
    pub fn run_name(&self, no: RunNo) -> Option<(String, String)> {
        self.runs.get(&no).map(|r| (r.head.namespace.clone(), r.head.name.clone()))
    }

    /// Namespace of a run. It never changes.
    pub fn run_namespace(&self, no: RunNo) -> Option<&str> {
        self.runs.get(&no).map(|r| r.head.namespace.as_str())
    }

    /// Namespace of a run, and the folder of its objects within it. They never change.
    pub fn run_folder(&self, no: RunNo) -> Option<(String, String)> {
        self.runs.get(&no).map(|r| (r.head.namespace.clone(), r.head.folder.clone()))
    }

    /// Whether a run of a namespace has that folder, or a batch whose run is not created yet.
    pub fn has_folder(&self, namespace: &str, folder: &str) -> bool {
        let Some((name, _)) = folder.split_once('/') else { return false };
        let run = self.find_run(namespace, name).and_then(|no| self.runs.get(&no));
        run.is_some_and(|run| run.head.folder == folder)
            || self.awaits_run(namespace, name) && self.batch_folder(name) == Some(folder)
    }

    /// How many runs are running, paused, and ended. Takes the same time for any number of runs.
    pub fn run_states(&self) -> (u32, u32, u32) {
        let (live, paused) = (self.tally.live_runs(), self.run_lists.paused_count());
        let ended = self.runs.len() - live - self.tally.deleting_runs();
        ((live - paused) as u32, paused as u32, ended as u32)
    }

    /// Rows done over all runs.
    pub fn rows_done(&self) -> u64 {
        self.runs.values().map(|r| r.head.counts.done).sum()
    }

    /// One run.
    pub fn run_view(&self, no: RunNo) -> Option<RunView> {
        self.runs.get(&no).map(view_of)
    }

    /// All runs of a namespace, or of all when it is empty, in the order of creation.
    pub fn run_views(&self, namespace: &str) -> Vec<RunView> {
        let mine = |r: &&Run| namespace.is_empty() || r.head.namespace == namespace;
        self.runs.values().filter(mine).map(view_of).collect()
    }

    /// The first rows that failed for good, at most `max`.
    pub fn failures(&self, no: RunNo, max: usize) -> Vec<(u64, FailureRecord)> {
        let failures = self.runs.get(&no).into_iter().flat_map(|r| &r.failures);
        failures.filter(|t| t.1.failed).take(max).map(|(row, t)| (*row, t.clone())).collect()
    }

    /// One segment with the outcomes of its rows.
    pub fn segment_view(&self, no: RunNo, SegmentNo(number): SegmentNo) -> Option<SegmentView> {
        let run = self.runs.get(&no)?;
        let segment = run.segments.get(number as usize)?;
        let mut table: BTreeMap<u32, u32> = BTreeMap::new();
        let mut parts = Vec::new();
        let results = (segment.first_row..segment.end())
            .map(|row| {
                let (part, part_row) = segment.outcome(row).part()?;
                let at = *table.entry(part.0).or_insert_with(|| {
                    parts.push(run.parts[part.0 as usize].clone());
                    parts.len() as u32 - 1
                });
                Some((at, part_row))
            })
            .collect();
        let failures = run.failures.range(segment.first_row..segment.end());
        Some(SegmentView {
            segment: SegmentRef {
                number: SegmentNo(number),
                first_row: segment.first_row,
                rows: segment.rows,
                blob: segment.blob.clone(),
            },
            results,
            parts,
            failures: failures.filter(|t| t.1.failed).map(|(r, t)| (*r, t.clone())).collect(),
        })
    }

    /// The location of one segment of a run's input.
    pub fn segment_ref(&self, no: RunNo, SegmentNo(number): SegmentNo) -> Option<SegmentRef> {
        let segment = self.runs.get(&no)?.segments.get(number as usize)?;
        Some(SegmentRef {
            number: SegmentNo(number),
            first_row: segment.first_row,
            rows: segment.rows,
            blob: segment.blob.clone(),
        })
    }
}

fn view_of(run: &Run) -> RunView {
    let holders = run.flight.grants.values().chain(run.flight.speculative.values());
    let workers: BTreeSet<SessionId> = holders.map(|grant| grant.slot.session).collect();
    RunView {
        run: run.no,
        namespace: run.head.namespace.clone(),
        name: run.head.name.clone(),
        state: run.head.state,
        reason: run.head.reason.clone(),
        spec: run.head.spec.clone(),
        spec_digest: run.head.spec_digest,
        rows: run.head.rows,
        pending: run.pending(),
        canary_rows: if run.in_canary() { run.head.spec.canary_rows } else { 0 },
        counts: run.head.counts,
        segments: run.segment_count(),
        sealed: run.head.sealed.clone(),
        input_closed: run.head.input_closed,
        created_wall_ms: run.head.created_wall_ms,
        finished_wall_ms: run.head.finished_wall_ms,
        webhook: run.head.webhook,
        workers: workers.len() as u32,
        ended_index: run.head.ended_index,
        folder: run.head.folder.clone(),
    }
}
