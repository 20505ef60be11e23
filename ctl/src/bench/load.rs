//! The load as a whole: what all workers together were granted and have completed.
//!
//! Invariant: one thread. The record is borrowed for the time of one answer and never across an await.
//! Absent: the workers themselves.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

use rollout_proto::v1;

use super::coverage::Coverage;
use super::measurements::Times;
use super::pauses::Pauses;

/// The namespace of everything that the benchmark creates.
pub(in crate::bench) const NAMESPACE: &str = "default";

/// One run of the load.
pub(super) struct LoadRun {
    /// Where its objects are.
    pub(super) folder: String,
    pub(super) name: String,
    pub(super) coverage: Coverage,
}

/// The record of requests and answers so far.
pub(super) struct LoadRecord {
    pub(super) runs: BTreeMap<u32, LoadRun>,
    pub(super) created_rows: u64,
    pub(super) granted_rows: u64,
    pub(super) done_rows: u64,
    pub(super) refused_rows: u64,
    pub(super) empty_answers: u64,
    pub(super) exchange: Times,
    pub(super) register: Times,
    pub(super) create_run: Times,
    pub(super) add_segments: Times,
    pub(super) close_input: Times,
    pub(super) watch: Option<Watch>,
    pub(super) pauses: Option<Pauses>,
    stop: bool,
}

/// Waits for the first claim that a newer leader grants.
pub(super) struct Watch {
    after_epoch: u64,
    pub(super) seen: Option<(Instant, u64)>,
}

impl LoadRecord {
    pub(super) fn add_run(&mut self, run: u32, run_of: (String, String), coverage: Coverage) {
        let (name, folder) = run_of;
        self.runs.insert(run, LoadRun { folder, name, coverage });
    }

    /// Rows were granted to a worker by the leader of `epoch`.
    pub(super) fn granted(&mut self, worker: u64, grants: &[v1::Grant], epoch: u64) {
        for grant in grants {
            let Some(rows) = &grant.rows else { continue };
            self.granted_rows += rows.count();
            if let Some(run) = self.runs.get_mut(&grant.run) {
                each_range(rows, |start, len| run.coverage.grant(start, len));
            }
        }
        if grants.is_empty() {
            self.empty_answers += 1;
            return;
        }
        if let Some(pauses) = &mut self.pauses {
            pauses.claimed(worker, epoch, Instant::now());
        }
        if let Some(watch) = &mut self.watch
            && watch.seen.is_none()
            && epoch > watch.after_epoch
        {
            watch.seen = Some((Instant::now(), epoch));
        }
    }

    /// The completion of these parts was answered; the rows in `refused` were not accepted.
    pub(super) fn completed(&mut self, parts: &[v1::PartResult], refused: &[v1::Refused]) {
        for part in parts {
            let Some(run) = self.runs.get_mut(&part.run) else { continue };
            for set in &part.sets {
                let Some(rows) = &set.rows else { continue };
                let lost = refused.iter().filter(|r| r.run == part.run && r.attempt == set.attempt);
                let lost: Vec<(u64, u32)> = lost.flat_map(|r| &r.rows).flat_map(ranges).collect();
                if lost.is_empty() {
                    self.done_rows += rows.count();
                    each_range(rows, |start, len| run.coverage.complete(start, len));
                    continue;
                }
                for row in rows.iter() {
                    if lost
                        .iter()
                        .any(|(start, len)| (*start..start + u64::from(*len)).contains(&row))
                    {
                        self.refused_rows += 1;
                    } else {
                        self.done_rows += 1;
                        run.coverage.complete(row, 1);
                    }
                }
            }
        }
    }

    /// The worker that held these rows no longer does.
    pub(super) fn released(&mut self, held: &[v1::HeldRows]) {
        for set in held {
            let (Some(rows), Some(run)) = (&set.rows, self.runs.get_mut(&set.run)) else {
                continue;
            };
            each_range(rows, |start, len| run.coverage.release(start, len));
        }
    }

    /// Rows that were created and not granted yet.
    pub(super) fn pending_rows(&self) -> u64 {
        self.created_rows.saturating_sub(self.granted_rows)
    }
}

fn ranges(rows: &v1::Rows) -> impl Iterator<Item = (u64, u32)> + '_ {
    rows.starts.iter().copied().zip(rows.lens.iter().copied())
}

fn each_range(rows: &v1::Rows, mut f: impl FnMut(u64, u32)) {
    ranges(rows).for_each(|(start, len)| f(start, len));
}

/// Shared by the workers, which all run on one thread.
#[derive(Clone)]
pub(super) struct Load {
    record: Rc<RefCell<LoadRecord>>,
    label: Option<String>,
}

/// The label that binds the load's runs to its own workers.
pub(in crate::bench) const LABEL: &str = "bench";

impl Load {
    /// A load without work. In a cluster with other workers a `label` separates its rows from theirs.
    pub(super) fn new(label: Option<String>) -> Self {
        let record = LoadRecord {
            runs: BTreeMap::new(),
            created_rows: 0,
            granted_rows: 0,
            done_rows: 0,
            refused_rows: 0,
            empty_answers: 0,
            exchange: Times::new(),
            register: Times::new(),
            create_run: Times::new(),
            add_segments: Times::new(),
            close_input: Times::new(),
            watch: None,
            pauses: None,
            stop: false,
        };
        Self { record: Rc::new(RefCell::new(record)), label }
    }

    /// The labels of its slots, which its runs select.
    pub(super) fn labels(&self) -> HashMap<String, String> {
        self.label.iter().map(|label| (LABEL.to_owned(), label.clone())).collect()
    }

    /// Reads or changes the record.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut LoadRecord) -> T) -> T {
        f(&mut self.record.borrow_mut())
    }

    /// Asks the workers to finish the rows that they hold and request no more.
    pub(super) fn stop(&self) {
        self.with(|record| record.stop = true);
    }

    /// Whether they were asked to.
    pub(super) fn stopping(&self) -> bool {
        self.with(|record| record.stop)
    }

    /// From now on watches for a claim granted in an epoch after this one.
    pub(super) fn watch(&self, after_epoch: u64) {
        self.with(|record| record.watch = Some(Watch { after_epoch, seen: None }));
    }

    /// When that claim was seen, and its epoch.
    pub(super) fn watched(&self) -> Option<(Instant, u64)> {
        self.with(|record| record.watch.as_ref().and_then(|watch| watch.seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(start: u64, len: u32) -> Option<v1::Rows> {
        Some(v1::Rows::from_ranges([(start, len)]))
    }

    #[test]
    fn a_refused_row_is_not_done() {
        let load = Load::new(None);
        load.with(|record| {
            record.add_run(1, ("r".into(), "r/1".into()), Coverage::new(100));
            let grant = v1::Grant { run: 1, attempt: 7, rows: rows(0, 10), ..Default::default() };
            record.granted(1, &[grant], 1);
            let set = v1::HeldRows { run: 1, attempt: 7, rows: rows(0, 10) };
            let part = v1::PartResult { run: 1, sets: vec![set], ..v1::PartResult::default() };
            let refused =
                v1::Refused { run: 1, attempt: 7, rows: rows(3, 2), code: "RO-2009".into() };
            record.completed(&[part], &[refused]);
            assert_eq!((record.done_rows, record.refused_rows), (8, 2));
            assert_eq!(record.runs[&1].coverage.done_rows, 8);
        });
    }

    #[test]
    fn only_a_claim_of_a_newer_leader_ends_the_watch() {
        let load = Load::new(None);
        load.watch(4);
        let grant = v1::Grant { run: 1, attempt: 7, rows: rows(0, 1), ..Default::default() };
        load.with(|record| record.granted(1, std::slice::from_ref(&grant), 4));
        assert!(load.watched().is_none());
        load.with(|record| record.granted(1, &[], 5));
        assert!(load.watched().is_none());
        load.with(|record| record.granted(1, &[grant], 5));
        assert_eq!(load.watched().map(|(_, epoch)| epoch), Some(5));
    }
}
