//! Owns: a row's way from a grant to the engine.
//!
//! Invariant: a row is started at most once per attempt, only while the fence is open, and at most `concurrency` rows
//! run at a time.
//! Absent: what happens to it afterward (`results`).

use std::time::{Duration, Instant};

use futures::FutureExt;
use rollout_proto::v1::{self, FailureClass};
use tokio_util::sync::CancellationToken;

use super::load::Loaded;
use super::{Event, Running, Slot};
use crate::engine::run_caught;
use crate::leased_rows::{Lease, listed};
use crate::offer;
use crate::run::RunInfo;

impl Slot {
    pub(super) fn granted(&mut self, mut grant: v1::Grant) {
        let lease = (grant.run, grant.attempt);
        let Some(rows) = grant.rows.as_ref().and_then(listed) else {
            tracing::error!(run = grant.run, attempt = grant.attempt, "invalid grant, ignored");
            return;
        };
        let new: Vec<u64> = {
            let mut lease_table = self.lease_table.lock();
            rows.into_iter().filter(|row| lease_table.queue(lease, *row)).collect()
        };
        if new.is_empty() {
            return;
        }
        metrics::counter!("rollout_worker_rows_granted_total").increment(new.len() as u64);
        self.combiner.granted(grant.run);
        let lease_table = self.lease_table.lock();
        self.granted.retain(|lease, _| lease_table.has(*lease));
        drop(lease_table);
        self.granted.insert(lease, Instant::now());
        if self.drain.is_some() || self.ineligible.borrow().is_some() {
            self.give_back(lease, new);
            return;
        }
        grant.rows = Some(crate::leased_rows::ranges(new.into_iter()));
        let loader = self.loader.clone();
        if grant.alone {
            self.alone.insert(lease);
        }
        self.tasks.spawn(loader.load(grant).map(Event::Loaded));
    }

    pub(super) fn loaded(&mut self, loaded: Loaded) {
        let lease = loaded.lease;
        for mut row in loaded.ready {
            // Revoked or given back while it was loading?
            if self.lease_table.lock().is_queued(lease, row.row) {
                row.tokens = self.tokens.guess(&row);
                self.queue.push_back(row);
            }
        }
        let held = |slot: &Self, rows: Vec<u64>| -> Vec<u64> {
            let lease_table = slot.lease_table.lock();
            rows.into_iter().filter(|row| lease_table.is_queued(lease, *row)).collect()
        };
        for (rows, failure) in loaded.failed {
            let rows = held(self, rows);
            if failure.class == FailureClass::StoreRefused {
                tracing::error!(
                    run = lease.0,
                    rows = rows.len(),
                    reason = failure.message,
                    "the store refuses a segment"
                );
                // If it is the cluster's store and refuses everything here, the next registration detects and reports
                // that.
                self.eligibility.notify_one();
            }
            self.fail(lease, rows, &failure);
        }
        let rows = held(self, loaded.give_back);
        self.give_back(lease, rows);
    }

    /// Starts every row that may start at `now`.
    pub(super) fn start_rows(&mut self, now: Instant) {
        while self.running.len() < self.room()
            && self.engine_up
            && !self.queue.is_empty()
            && self.drain.is_none()
            && !self.combiner.is_backlogged()
            && self.fence.open()
            && self.may_try(now)
            && self.may_run_beside()
        {
            let Some(row) = self.queue.pop_front() else { break };
            let (lease, number) = ((row.run.number, row.attempt), row.row);
            // Granted before another revision was loaded.
            let other = |run: &RunInfo| {
                !offer::serves(&self.block, self.loaded.as_ref(), &run.model, &run.revision)
            };
            if other(&row.run) || self.waited_too_long(lease, row.run.attempt_timeout) {
                self.give_back(lease, vec![number]);
                continue;
            }
            let cancel = CancellationToken::new();
            self.lease_table.lock().start(lease, number);
            let generation = self.concurrency.generation();
            let since = Instant::now();
            let running = Running { cancel: cancel.clone(), since, generation, row: row.clone() };
            self.running.insert((lease, number), running);
            let engine = self.engine.clone();
            self.tasks.spawn(async move {
                let outcome = tokio::select! {
                    () = cancel.cancelled() => None,
                    outcome = run_caught(&*engine, row) => Some(outcome),
                };
                Event::Ran { lease, row: number, outcome }
            });
        }
    }

    /// Rows that may be in the engine: those that it runs at once, and those that wait in it so that none of its steps
    /// waits for this slot. After memory ran out none may wait, because the engine would run all of them.
    fn room(&self) -> usize {
        let ahead = if self.concurrency.is_full() { self.feed.ahead() } else { 0 };
        self.concurrency.limit() + ahead
    }

    pub(super) fn watch_progress(&mut self) {
        let engine = self.engine.clone();
        self.tasks.spawn(async move {
            engine.progressed().await;
            Event::Progressed
        });
    }

    /// The engine's counters have changed.
    pub(super) fn engine_progressed(&mut self) {
        self.watch_progress();
        if let Some(totals) = self.engine.process_totals() {
            let more_here = !self.queue.is_empty() && self.alone.is_empty() && self.drain.is_none();
            self.feed.progressed(totals, more_here);
        }
    }

    /// Logs how well the engine was fed, once it has nothing left to do.
    pub(super) fn notice_idle(&mut self) {
        let (steps, starved) = self.feed.starved();
        if steps > self.logged_steps && self.running.is_empty() && self.queue.is_empty() {
            self.logged_steps = steps;
            let percent = 100.0 * starved as f64 / steps as f64;
            let percent = format!("{percent:.2}");
            tracing::info!(slot = self.index, steps, starved, percent, "starved engine steps");
        }
    }

    /// Whether a row started now might be taken away while it runs: the leader takes a grant back after twice the time
    /// of an attempt, even if rows of it run.
    fn waited_too_long(&self, lease: Lease, attempt_timeout: Option<Duration>) -> bool {
        let waited = self.granted.get(&lease).map(Instant::elapsed);
        waited.zip(attempt_timeout).is_some_and(|(waited, limit)| waited >= limit.mul_f64(0.9))
    }

    /// Whether the next row may run beside the running ones: a row of a trial only beside rows of its own lease,
    /// others only if no trial runs. Trials are forgotten once all of their rows have ended.
    fn may_run_beside(&mut self) -> bool {
        if self.alone.is_empty() {
            return true;
        }
        let lease_table = self.lease_table.lock();
        self.alone.retain(|lease| lease_table.has(*lease));
        let Some(next) = self.queue.front().map(|row| (row.run.number, row.attempt)) else {
            return false;
        };
        let trial = self.alone.contains(&next);
        let beside = |lease: Lease| lease == next || !(trial || self.alone.contains(&lease));
        lease_table.running_leases().into_iter().all(beside)
    }
}
