//! Rebuilds state from events alone and compares it with the ledger: which worker holds which row, which rows are
//! done and failed, which workers exist, and the state of each run.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::{Attempt, RunNo, SegmentNo, SessionId};
use rollout_ledger::view::RunState;
use rollout_ledger::{Event, EventKind, HeldRows, Ledger};
use std::collections::{BTreeMap, BTreeSet};

/// What follows from the events so far.
#[derive(Debug, Default)]
pub(crate) struct EventState {
    last: (u64, u32),
    held: BTreeMap<(u32, u64), Attempt>,
    /// Second attempts.
    speculative: BTreeMap<(u32, u64), Attempt>,
    done: BTreeSet<(u32, u64)>,
    failed: BTreeSet<(u32, u64)>,
    workers: BTreeSet<SessionId>,
    runs: BTreeMap<u32, &'static str>,
}

fn each(held: &HeldRows) -> impl Iterator<Item = (u32, u64)> + '_ {
    held.rows.iter().map(|row| (held.run.0, row))
}

impl EventState {
    pub(crate) fn hear(&mut self, events: &[Event], index: u64) -> TestCaseResult {
        for (position, event) in (0..).zip(events) {
            prop_assert_eq!((event.index, event.position), (index, position));
            prop_assert!(self.last < (index, position) || self.last == (0, 0));
            self.last = (index, position);
            self.one(&event.kind)?;
        }
        Ok(())
    }

    fn one(&mut self, kind: &EventKind) -> TestCaseResult {
        match kind {
            EventKind::WorkerRegistered { session, resumed } => {
                prop_assert_eq!(self.workers.insert(*session), !resumed);
            }
            EventKind::WorkerDrained { session, .. } | EventKind::WorkerLost { session, .. } => {
                prop_assert!(self.workers.remove(session), "{session} went twice");
            }
            EventKind::RunCreated { run } => {
                prop_assert!(self.runs.insert(run.0, "resumed").is_none());
            }
            // Its canary passed: its state does not change.
            EventKind::RunChanged { to: "canary_passed", .. } => {}
            // Its completion was notified, or the notification was given up.
            EventKind::RunChanged { to: "notified" | "notice_given_up", .. } => {}
            EventKind::RunChanged { run, to, .. } => {
                self.runs.insert(run.0, to);
                if matches!(*to, "sealed" | "deleted") {
                    // Its rows are not in the ledger any more.
                    self.done.retain(|row| row.0 != run.0);
                    self.failed.retain(|row| row.0 != run.0);
                }
            }
            EventKind::Granted { held, how: "duplicate", .. } => {
                for row in each(held) {
                    prop_assert!(self.held.contains_key(&row), "{row:?} is nobody's");
                    let before = self.speculative.insert(row, held.attempt);
                    prop_assert_eq!(before, None, "{:?} has two duplicates", row);
                }
            }
            EventKind::Granted { held, .. } | EventKind::Stolen { held, .. } => {
                self.held.extend(each(held).map(|row| (row, held.attempt)));
            }
            EventKind::Returned { held, why, .. } => {
                for row in each(held) {
                    prop_assert!(self.leave(row, held.attempt), "{:?} returned ({})", row, why);
                }
            }
            EventKind::Completed { held, .. } => {
                for row in each(held) {
                    self.held.remove(&row);
                    prop_assert!(
                        !self.speculative.contains_key(&row),
                        "{row:?} still runs elsewhere"
                    );
                    prop_assert!(self.done.insert(row), "{row:?} completed twice");
                }
            }
            EventKind::Failed { held, for_good, .. } => {
                for row in each(held) {
                    prop_assert!(self.leave(row, held.attempt), "{:?} failed", row);
                }
                let run = held.run.0;
                self.failed.extend(for_good.iter().map(|row| (run, row)));
            }
            EventKind::Retried { run, rows } => {
                for row in rows.iter() {
                    prop_assert!(self.failed.remove(&(run.0, row)), "{row} had not failed");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// An attempt no longer has a row; if two attempts had it, the other continues.
    fn leave(&mut self, row: (u32, u64), attempt: Attempt) -> bool {
        let other = match (self.speculative.remove(&row), self.held.get(&row)) {
            (Some(speculative), _) if speculative == attempt => return true,
            (speculative, Some(held)) if *held == attempt => speculative,
            _ => return false,
        };
        match other {
            Some(speculative) => self.held.insert(row, speculative),
            None => self.held.remove(&row),
        };
        true
    }

    /// Checks that a reader of all events knows what the ledger knows.
    pub(crate) fn same(&self, ledger: &Ledger) -> TestCaseResult {
        let (mut held, mut speculative) = (BTreeMap::new(), BTreeMap::new());
        let (mut done, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for view in ledger.run_views("") {
            let RunNo(no) = view.run;
            let flight = ledger.flight_view(view.run).expect("there");
            for (_, grant) in &flight.live {
                held.extend(each(grant).map(|row| (row, grant.attempt)));
            }
            for (_, grant) in &flight.speculative {
                speculative.extend(each(grant).map(|row| (row, grant.attempt)));
            }
            let there = if view.sealed.is_some() { 0 } else { view.segments };
            for number in 0..there {
                let segment = ledger.segment_view(view.run, SegmentNo(number)).expect("there");
                let rows = (segment.segment.first_row..).zip(&segment.results);
                done.extend(rows.filter(|r| r.1.is_some()).map(|r| (no, r.0)));
                failed.extend(segment.failures.iter().map(|f| (no, f.0)));
            }
            let told = self.runs.get(&no).copied();
            let expected = match view.state {
                RunState::Deleting => "deleted",
                _ if view.sealed.is_some() => "sealed",
                RunState::Running => "resumed",
                RunState::Paused => "paused",
                RunState::Cancelled => "cancelled",
                RunState::Finished => "finished",
                RunState::DeadlineExceeded => "deadline_exceeded",
            };
            prop_assert_eq!(told, Some(expected), "run {}", no);
        }
        prop_assert_eq!(&self.held, &held, "who holds what");
        prop_assert_eq!(&self.speculative, &speculative, "who runs what, too");
        prop_assert_eq!(&self.done, &done, "rows done");
        prop_assert_eq!(&self.failed, &failed, "rows failed");
        let sessions: BTreeSet<SessionId> = ledger.worker_sessions().into_iter().collect();
        prop_assert_eq!(&self.workers, &sessions);
        Ok(())
    }
}
