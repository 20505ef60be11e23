//! Owns: what happens to a row that has ended: it goes into a part, is reported failed, or returns to the leader.
//!
//! Invariant: every ended row stays in the lease table until the leader has answered for it, and a finished one in the
//! spool. Finished rows go to the combiner; this slot stores and reports the parts that it closes, with rows of any
//! slot. A store that refuses costs the run one row's execution each time that the run is resumed. If the store refuses
//! a part for `timing.store_refused_ms`, the part is dropped and its rows go back, so their run does not wait for this
//! worker.
//! Absent: sending.

use std::time::{Duration, Instant};

use rollout_proto::v1::{self, FailureClass};

use super::failure_report::FailureReport;
use super::shorten::shortened;
use super::{Event, Slot, Uploaded};
use crate::combiner::SlotLoad;
use crate::engine::{Completion, EngineFailure, RowEnd};
use crate::leased_rows::{Lease, LeasedRows, NamedRows, ranges};
use crate::part::{BODY_BYTES_MAX, Finished, OpenPart, PartId};
use crate::run::RunInfo;

/// How often an upload to a refusing store is retried.
const REFUSED_RETRY: Duration = Duration::from_secs(2);
/// A pull that is unanswered for this long is waiting for rows at the leader.
const PARKED_AFTER: Duration = Duration::from_millis(100);
/// A part whose rows the leader may take back soon, or whose run may end soon, still waits this long.
const HURRIED: Duration = Duration::from_secs(1);
/// A run with a deadline loses at most this fraction of its time to unreported results.
const DEADLINE_PART: u32 = 64;
/// Bytes of a failure's message that the ledger keeps.
pub(super) const MESSAGE_BYTES_MAX: usize = 512;

impl Slot {
    pub(super) async fn ran(
        &mut self,
        lease: Lease,
        row: u64,
        outcome: Option<Result<Completion, EngineFailure>>,
    ) {
        let running = self.running.remove(&(lease, row));
        // Revoked meanwhile, so its result does not count.
        if !self.lease_table.lock().is_running(lease, row) {
            return;
        }
        match outcome {
            None => self.give_back(lease, vec![row]),
            // The death report covers it, with all rows that the engine took with it.
            Some(Err(failure)) if failure.end == RowEnd::Died => {}
            Some(Err(failure)) if failure.end == RowEnd::NotStarted => {
                self.give_back(lease, vec![row]);
            }
            // None of it was sent, so this is not an execution and not a failure.
            Some(Err(failure)) if failure.unreachable => {
                self.engine_is_gone(&failure.message);
                self.give_back(lease, vec![row]);
            }
            Some(Err(failure)) => {
                if failure.class == FailureClass::OutOfMemory
                    && let Some(running) = running
                {
                    self.out_of_memory(running.generation);
                }
                self.fail(lease, vec![row], &failure);
                if failure.class == FailureClass::Transient && !failure.by_request {
                    self.row_failed(&failure);
                }
            }
            Some(Ok(completion)) => match Finished::new(lease.1, row, &completion) {
                Ok(finished) if finished.body.len() <= BODY_BYTES_MAX => {
                    let patience = self.patience(lease, running.as_ref().map(|r| &*r.row.run));
                    if let Some(running) = running {
                        self.row_durations.record(lease.0, running.since.elapsed());
                        let (prompt, all) =
                            (completion.prompt_tokens, completion.completion_tokens);
                        self.tokens.ended(running.row.body.len(), prompt, all);
                        self.failing.succeeded(running.row);
                    }
                    self.feed.ended(Instant::now());
                    self.row_succeeded();
                    self.finished(lease, finished, patience).await;
                    self.stop_what_cannot_end();
                }
                Ok(finished) => {
                    let message = format!("a result of {} bytes is too large", finished.body.len());
                    self.fail(
                        lease,
                        vec![row],
                        &EngineFailure::invalid("RESULT_TOO_LARGE", message),
                    );
                }
                Err(error) => {
                    let message = format!("the result cannot be written as JSON: {error}");
                    self.fail(lease, vec![row], &EngineFailure::invalid("RESULT_JSON", message));
                }
            },
        }
    }

    async fn finished(&mut self, lease: Lease, finished: Finished, patience: Duration) {
        metrics::counter!("rollout_worker_rows_total", "outcome" => "finished").increment(1);
        let room = self.spool.room().await;
        self.lease_table.lock().end(lease, finished.row);
        let now = Instant::now();
        let place = (self.index, lease.0);
        let closed = self.combiner.add(place, finished, room, now + patience, now);
        closed.into_iter().for_each(|part| self.spawn_upload(part, Duration::ZERO));
    }

    /// How long a row's result may wait for others. The leader takes a grant back after twice the time of an attempt,
    /// and results do not count after their run's deadline.
    fn patience(&self, lease: Lease, run: Option<&RunInfo>) -> Duration {
        let full = Duration::from_millis(self.part.linger_ms);
        let deadline = run.and_then(|run| run.deadline).map(|time| time / DEADLINE_PART);
        let attempt = run.and_then(|run| run.attempt_timeout).zip(self.granted.get(&lease));
        let grant =
            attempt.map(|(time, granted)| time.mul_f64(1.5).saturating_sub(granted.elapsed()));
        let hurried = deadline.into_iter().chain(grant).map(|time| time.max(HURRIED));
        hurried.fold(full, Duration::min)
    }

    /// The leader has said which rows count: what is left of the recovered parts is uploaded.
    pub(super) fn release_recovered(&mut self) {
        for part in std::mem::take(&mut self.recovered) {
            self.spawn_upload(part, Duration::ZERO);
        }
    }

    /// Closes the parts that are due.
    pub(super) fn close_parts(&mut self) {
        let now = Instant::now();
        for part in self.combiner.due(self.index, self.load(now), now) {
            self.spawn_upload(part, Duration::ZERO);
        }
    }

    /// When the next part is due, if nothing else happens.
    pub(super) fn next_part_due(&self, now: Instant) -> Option<Instant> {
        let next = |load| self.combiner.next_due(self.index, load);
        let starved = self.starved_at().filter(|at| *at > now);
        let then = starved.and_then(|at| Some(next(SlotLoad::Starved)?.max(at)));
        next(self.load(now)).into_iter().chain(then).min()
    }

    fn load(&self, now: Instant) -> SlotLoad {
        let idle = self.lease_table.lock().busy() == 0;
        match (self.drain.is_some(), idle) {
            (true, true) => SlotLoad::Leaving,
            (false, true) => SlotLoad::Idle,
            // It requests nothing, and its end is near.
            (true, false) => SlotLoad::Starved,
            (false, false) if self.starved_at().is_some_and(|at| now >= at) => SlotLoad::Starved,
            (false, false) => SlotLoad::Busy,
        }
    }

    /// When the slot, with its free places, counts as getting no rows.
    fn starved_at(&self) -> Option<Instant> {
        let places = self.running.len() < self.concurrency.limit()
            && self.lease_table.lock().queued().is_empty();
        let asks = places && self.exchanges.may_be_parked();
        self.last_exchange_at
            .filter(|_| asks)
            .map(|last_exchange_at| last_exchange_at + PARKED_AFTER)
    }

    fn spawn_upload(&mut self, part: OpenPart, delay: Duration) {
        let uploader = self.uploader.clone();
        self.uploads += 1;
        self.tasks.spawn(async move { Event::Uploaded(uploader.upload(part, delay).await) });
    }

    pub(super) async fn uploaded(&mut self, uploaded: Uploaded) {
        self.uploads -= 1;
        match uploaded {
            Uploaded::Done { part, result } => {
                metrics::counter!("rollout_worker_parts_total").increment(1);
                self.refusals.over(part.id.run);
                self.exchanges.part(part.id, result);
            }
            Uploaded::Gone { part } => {
                tracing::warn!(
                    run = part.id.run,
                    rows = self.combiner.rows_in(part.id),
                    "these results are no longer needed; dropped"
                );
                self.combiner.settle(part.id).await;
            }
            Uploaded::Unusable { part, reason } => self.give_part_back(part.id, &reason).await,
            Uploaded::Refused { part, reason } => self.store_refuses(part, &reason).await,
        }
    }

    /// Drops a closed part and gives its rows back. The leader ends their attempts, so no later result of these counts.
    async fn give_part_back(&mut self, id: PartId, reason: &str) {
        let rows = self.combiner.give_up_rows(id);
        tracing::warn!(run = id.run, rows = rows.len(), reason, "returning results");
        // Without this report the leader would consider these rows held forever.
        self.exchanges.nack(&rows);
        self.combiner.settle(id).await;
    }

    /// Reports a refusing store with one row. All other rows are kept and retried, but not forever: the leader may
    /// rely on this worker for them while others could run them.
    async fn store_refuses(&mut self, mut part: OpenPart, reason: &str) {
        let run = part.id.run;
        let latest = part.rows.iter().map(|row| (row.attempt, row.row)).max();
        if let Some((attempt, row)) = latest
            && self.refusals.should_report(run, attempt, Instant::now())
        {
            tracing::error!(run, rows = part.rows.len(), reason, "the store refuses a part");
            part.retain(|kept| (kept.attempt, kept.row) != (attempt, row));
            let failure = EngineFailure::new(
                FailureClass::StoreRefused,
                rollout_proto::ErrorCode::StoreRefused.code(),
                reason,
            );
            self.report_failure(&[((run, attempt), row)].into_iter().collect(), &failure);
            self.combiner.shrunk(&part);
            // If it is the cluster's store, the next registration detects that, and this worker takes no more rows.
            self.eligibility.notify_one();
        }
        let since = *part.refused_since.get_or_insert_with(Instant::now);
        if part.rows.is_empty() {
            self.combiner.settle(part.id).await;
        } else if since.elapsed() >= self.store_refused {
            self.give_part_back(part.id, reason).await;
        } else {
            self.spawn_upload(part, REFUSED_RETRY);
        }
    }

    /// Reports rows of a lease as failed.
    pub(super) fn fail(&mut self, lease: Lease, rows: Vec<u64>, failure: &EngineFailure) {
        let held: LeasedRows = rows.into_iter().map(|row| (lease, row)).collect();
        self.end_all(&held);
        self.report_failure(&held, failure);
    }

    /// Reports rows of one lease, which have ended in any slot, as failed.
    fn report_failure(&mut self, held: &LeasedRows, failure: &EngineFailure) {
        let Some(lease) = held.leases().first().copied() else { return };
        metrics::counter!("rollout_worker_rows_total", "outcome" => "failed")
            .increment(held.len() as u64);
        let message = shortened(&failure.message, MESSAGE_BYTES_MAX);
        let cut = message != failure.message;
        let text = if cut { failure.message.clone() } else { String::new() };
        let report = v1::FailedAttempt {
            run: lease.0,
            attempt: lease.1,
            rows: Some(ranges(held.iter().map(|(_, row)| row))),
            class: failure.class.into(),
            code: failure.code.to_string(),
            message,
            evidence: None,
        };
        self.report(FailureReport::Failure(report), held.clone(), text);
    }

    /// Gives rows back unfinished.
    pub(super) fn give_back(&mut self, lease: Lease, rows: Vec<u64>) {
        if rows.is_empty() {
            return;
        }
        metrics::counter!("rollout_worker_rows_total", "outcome" => "given_back")
            .increment(rows.len() as u64);
        let held: LeasedRows = rows.into_iter().map(|row| (lease, row)).collect();
        self.end_all(&held);
        self.exchanges.nack(&held);
    }

    pub(super) fn end_all(&self, held: &LeasedRows) {
        {
            let mut lease_table = self.lease_table.lock();
            held.iter().for_each(|(lease, row)| lease_table.end(lease, row));
        }
        self.combiner.rows_left(Instant::now());
    }

    /// Rows were revoked: running ones are stopped, and results of the others dropped. A part that is being written
    /// continues, and the leader refuses those rows of it; a part that is to be retried omits them.
    pub(super) fn take_away(&mut self, named: &NamedRows) {
        let taken = self.lease_table.lock().take(named);
        if taken == 0 {
            return;
        }
        tracing::info!(slot = self.index, rows = taken, "rows were revoked");
        metrics::counter!("rollout_worker_rows_total", "outcome" => "revoked")
            .increment(taken as u64);
        self.queue.retain(|row| !named.contains((row.run.number, row.attempt), row.row));
        for ((lease, row), running) in &self.running {
            if named.contains(*lease, *row) {
                running.cancel.cancel();
            }
        }
        for file in self.combiner.take_away(self.index, named) {
            let spool = self.spool.clone();
            tokio::spawn(async move { spool.remove(file).await });
        }
        self.combiner.rows_left(Instant::now());
    }
}
