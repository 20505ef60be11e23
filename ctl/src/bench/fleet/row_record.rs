//! What one process of the generator knows of rows: which its workers have started, and which were accepted.
//!
//! Invariant: each of these grants is a violation: an accepted row, a row that the worker holds, a row that the worker
//! had under a newer attempt, or a row of a run in another namespace or with another model. One thread; borrowed for
//! the time of one answer. Absent: the other processes, whose sets the parent compares.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tally::{Counts, Spreads, Tally};
use crate::bench::coverage::Bits;
use crate::bench::measurements;

/// Violations that are reported in full.
const EXAMPLES_MAX: usize = 5;
const LONG_IDLE: Duration = Duration::from_secs(1);

/// The description of a run for the processes of the generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunOf {
    pub(super) run: u32,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) folder: String,
    pub(super) model: String,
    pub(super) rows: u64,
}

/// A run, and the state of its rows in this process.
pub(super) struct RunRecord {
    pub(super) of: RunOf,
    started: Bits,
    accepted: Bits,
}

/// The rows of one run that this process has started and seen accepted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RowSets {
    pub(super) run: u32,
    pub(super) started: Vec<u64>,
    pub(super) accepted: Vec<u64>,
}

/// A slot: its worker's number and its own.
pub(super) type SlotAt = (u32, u32);

/// Everything that the workers of this process share.
pub(super) struct RowRecord {
    pub(super) counts: Counts,
    pub(super) spreads: Spreads,
    runs: BTreeMap<u32, RunRecord>,
    /// Slots with nothing to run although their model has rows, and since when.
    idle: HashMap<SlotAt, Instant>,
    idle_us: u64,
    idle_over_1s: u64,
    since: Instant,
    pub(super) connected: u64,
    examples: Vec<String>,
}

/// The record of a process.
pub(super) type Shared = Rc<RefCell<RowRecord>>;

impl RowRecord {
    pub(super) fn new() -> Shared {
        Rc::new(RefCell::new(Self {
            counts: Counts::default(),
            spreads: Spreads::new(),
            runs: BTreeMap::new(),
            idle: HashMap::new(),
            idle_us: 0,
            idle_over_1s: 0,
            since: Instant::now(),
            connected: 0,
            examples: Vec::new(),
        }))
    }

    /// Runs were declared.
    pub(super) fn learn(&mut self, runs: Vec<RunOf>) {
        for of in runs {
            let (started, accepted) = (Bits::new(of.rows), Bits::new(of.rows));
            self.runs.insert(of.run, RunRecord { of, started, accepted });
        }
    }

    /// Whether there are runs to wait for.
    pub(super) fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    pub(super) fn run(&self, run: u32) -> Option<&RunOf> {
        self.runs.get(&run).map(|run| &run.of)
    }

    /// The product did something that it must never do.
    pub(super) fn violation(&mut self, text: impl FnOnce() -> String) {
        self.counts.violations += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text());
        }
    }

    /// A row was granted to a slot of this process.
    pub(super) fn granted(&mut self, run: u32, row: u64) {
        self.counts.rows_granted += 1;
        let accepted = self.runs.get(&run).is_some_and(|run| run.accepted.has(row));
        if accepted {
            self.violation(|| format!("row {row} of run {run} was granted after it was accepted"));
        }
    }

    pub(super) fn started(&mut self, run: u32, row: u64) {
        self.counts.rows_started += 1;
        if let Some(record) = self.runs.get_mut(&run) {
            self.counts.rows_started_again += u64::from(record.started.set(row, 1));
        }
    }

    /// The result of a row was accepted.
    pub(super) fn accepted(&mut self, run: u32, row: u64) {
        self.counts.rows_accepted += 1;
        let again = self.runs.get_mut(&run).is_some_and(|record| record.accepted.set(row, 1) > 0);
        if again {
            self.violation(|| format!("row {row} of run {run} was accepted twice"));
        }
    }

    /// A slot has nothing to run although its model has rows.
    pub(super) fn idles(&mut self, slot: SlotAt, now: Instant) {
        self.idle.entry(slot).or_insert(now);
    }

    /// The slot has something to run.
    pub(super) fn works(&mut self, slot: SlotAt, now: Instant) {
        if let Some(since) = self.idle.remove(&slot) {
            let time = now.saturating_duration_since(since.max(self.since));
            self.idled(time);
        }
    }

    /// The slot's worker is absent, so it no longer counts as idle.
    pub(super) fn absent(&mut self, slot: SlotAt) {
        self.idle.remove(&slot);
    }

    fn idled(&mut self, time: Duration) {
        let us = time.as_micros() as u64;
        self.spreads.idle.record_us(us);
        self.idle_us += us;
        self.idle_over_1s += u64::from(time > LONG_IDLE);
    }

    /// Starts a new window for times.
    pub(super) fn reset(&mut self) {
        self.spreads = Spreads::new();
        (self.idle_us, self.idle_over_1s) = (0, 0);
        self.since = Instant::now();
    }

    /// The counters; slots that are idle now count as idle until now.
    pub(super) fn report(&self) -> Tally {
        let (now, mut spreads) = (Instant::now(), self.spreads.clone());
        let (mut idle_us, mut idle_over_1s) = (self.idle_us, self.idle_over_1s);
        for since in self.idle.values() {
            let time = now.saturating_duration_since((*since).max(self.since));
            spreads.idle.record_us(time.as_micros() as u64);
            idle_us += time.as_micros() as u64;
            idle_over_1s += u64::from(time > LONG_IDLE);
        }
        Tally {
            connected: self.connected,
            idle_us,
            idle_over_1s,
            cpu_us: measurements::own_cpu_us(),
            resident_bytes: measurements::own_resident_bytes(),
            examples: self.examples.clone(),
            ..Tally::of(&self.counts, &spreads)
        }
    }

    /// The rows of every run, for the comparison with other processes.
    pub(super) fn row_sets(&self) -> impl Iterator<Item = RowSets> + '_ {
        self.runs.iter().map(|(run, record)| RowSets {
            run: *run,
            started: record.started.words().to_vec(),
            accepted: record.accepted.words().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Shared {
        let record = RowRecord::new();
        let (namespace, name, folder) = ("default".into(), "r".into(), "r/1".into());
        let of = RunOf { run: 1, namespace, name, folder, model: "m".into(), rows: 100 };
        record.borrow_mut().learn(vec![of]);
        record
    }

    #[test]
    fn a_row_granted_after_it_was_accepted_and_one_accepted_twice_are_violations() {
        let record = record();
        let mut record = record.borrow_mut();
        record.granted(1, 7);
        record.started(1, 7);
        record.accepted(1, 7);
        assert_eq!(record.counts.violations, 0);
        record.granted(1, 7);
        assert_eq!(record.counts.violations, 1);
        record.accepted(1, 7);
        assert_eq!(record.counts.violations, 2);
        record.started(1, 7);
        assert_eq!((record.counts.rows_started, record.counts.rows_started_again), (2, 1));
        let report = record.report();
        assert!(report.examples[0].contains("after it was accepted"), "{:?}", report.examples);
        let sets: Vec<RowSets> = record.row_sets().collect();
        assert_eq!(sets[0].accepted, [1 << 7, 0]);
    }

    #[test]
    fn a_slot_that_is_still_idle_counts_and_time_before_the_window_does_not() {
        let record = record();
        let mut record = record.borrow_mut();
        let long_ago = Instant::now() - Duration::from_secs(30);
        record.idles((1, 0), long_ago);
        record.idles((2, 0), long_ago);
        assert_eq!(record.report().idle_over_1s, 0, "the window has just begun");
        record.since = long_ago;
        record.works((1, 0), long_ago + Duration::from_millis(500));
        let report = record.report();
        assert_eq!(report.idle_over_1s, 1, "the one that idles still");
        assert!(report.idle_us > 30_000_000, "{}", report.idle_us);
    }
}
