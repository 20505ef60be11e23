//! Owns: what becomes of a row that has ended: part, failure, or back to the leader.
//!
//! Invariant: every ended row stays in the book until the leader has answered for it, and a finished one in the
//! spool. A store that refuses costs the run one row's execution each time that it is resumed, and no finished one else.
//! Absent: sending.

use std::time::{Duration, Instant};

use rollout_proto::v1::{self, FailureClass};

use super::shorten::shortened;
use super::telling::Telling;
use super::{BACKLOG_BYTES, BACKLOG_PARTS, Event, Slot, Uploaded};
use crate::engine::{Completion, EngineFailure, RowEnd};
use crate::held::{Held, Lease, Named, ranges};
use crate::part::{BODY_BYTES_MAX, Finished, OpenPart, PartId};

/// A refusing store is tried so often.
const REFUSED_RETRY: Duration = Duration::from_secs(2);
/// With nothing left to do a part does not wait for its full time.
const IDLE_LINGER: Duration = Duration::from_millis(100);
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
        // Revoked meanwhile: its result is nobody's.
        if !self.book.lock().is_running(lease, row) {
            return;
        }
        match outcome {
            None => self.give_back(lease, vec![row]),
            // Told of with all that the engine took with it.
            Some(Err(failure)) if failure.end == RowEnd::Died => {}
            Some(Err(failure)) if failure.end == RowEnd::NotStarted => {
                self.give_back(lease, vec![row]);
            }
            // Nothing of it was sent: no execution, and so none that failed.
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
            }
            Some(Ok(completion)) => match Finished::new(lease.1, row, &completion) {
                Ok(finished) if finished.body.len() <= BODY_BYTES_MAX => {
                    if let Some(running) = running {
                        self.fitting.took(lease.0, running.since.elapsed());
                        let (prompt, all) =
                            (completion.prompt_tokens, completion.completion_tokens);
                        self.tokens.ended(running.bytes, prompt, all);
                    }
                    self.feed.ended(Instant::now());
                    self.row_succeeded();
                    self.finished(lease, finished).await;
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

    async fn finished(&mut self, lease: Lease, finished: Finished) {
        metrics::counter!("rollout_worker_rows_total", "outcome" => "finished").increment(1);
        self.book.lock().end(lease, finished.row);
        let run = lease.0;
        if self.open.get(&run).is_some_and(|part| !part.fits(&finished)) {
            self.close_part(run);
        }
        if !self.open.contains_key(&run) {
            let id = PartId { run, number: self.next_part };
            self.next_part += 1;
            self.open.insert(run, OpenPart::new(id));
        }
        let Some(part) = self.open.get_mut(&run) else { return };
        let id = part.id;
        part.push(finished.clone());
        let full = part.is_full(&self.part);
        self.uploader.spool.append(id, vec![finished]).await;
        if full {
            self.close_part(run);
        }
    }

    /// A part of an earlier process: already spooled, and closed as it is.
    pub(super) fn open_recovered(&mut self, part: OpenPart) {
        let id = part.id;
        self.closed_bytes.insert(id, part.bytes);
        self.closed.insert(id, rows_of(&part));
        self.recovered.push(part);
    }

    /// The leader has said which rows count: what is left of the recovered parts goes on its way.
    pub(super) fn release_recovered(&mut self) {
        for part in std::mem::take(&mut self.recovered) {
            self.spawn_upload(part, Duration::ZERO);
        }
    }

    /// Closes the parts whose time has come.
    pub(super) fn close_parts(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (now, linger) = (Instant::now(), self.linger());
        let due = self.open.iter().filter(|(_, part)| now >= part.opened + linger);
        let due: Vec<u32> = due.map(|(run, _)| *run).collect();
        due.into_iter().for_each(|run| self.close_part(run));
    }

    pub(super) fn linger(&self) -> Duration {
        let full = Duration::from_millis(self.part.linger_ms);
        let idle = self.running.is_empty() && self.queue.is_empty();
        match (self.drain.is_some() && idle, idle) {
            (true, _) => Duration::ZERO,
            (false, true) => full.min(IDLE_LINGER),
            (false, false) => full,
        }
    }

    fn close_part(&mut self, run: u32) {
        let Some(part) = self.open.remove(&run) else { return };
        self.closed.insert(part.id, rows_of(&part));
        self.closed_bytes.insert(part.id, part.bytes);
        self.spawn_upload(part, Duration::ZERO);
    }

    fn spawn_upload(&mut self, part: OpenPart, delay: Duration) {
        let uploader = self.uploader.clone();
        self.tasks.spawn(async move { Event::Uploaded(uploader.upload(part, delay).await) });
    }

    pub(super) async fn uploaded(&mut self, uploaded: Uploaded) {
        match uploaded {
            Uploaded::Done { part, result } => {
                metrics::counter!("rollout_worker_parts_total").increment(1);
                self.refusals.over(part.id.run);
                self.exchanges.part(part.id, result);
            }
            Uploaded::Gone { part } => {
                tracing::warn!(
                    run = part.id.run,
                    rows = self.closed.get(&part.id).map_or(0, Held::len),
                    "nobody wants these results any more, they are dropped"
                );
                self.settle_part(part.id).await;
            }
            Uploaded::Unusable { part, reason } => {
                let (run, rows) = (part.id.run, rows_of(&part));
                tracing::warn!(run, rows = rows.len(), reason, "results are given back");
                // The leader takes these rows for held: without a word they would be so for ever.
                self.exchanges.nack(&rows);
                self.closed.remove(&part.id);
                self.settle_part(part.id).await;
            }
            Uploaded::Refused { part, reason } => self.store_refuses(part, &reason).await,
        }
    }

    /// Reports a refusing store by one row, which pauses the run; all others are kept and tried again.
    async fn store_refuses(&mut self, mut part: OpenPart, reason: &str) {
        let run = part.id.run;
        // Sorted as it was encoded: the last row is of the latest attempt.
        let latest = part.rows.last().map(|row| (row.attempt, row.row));
        if let Some((attempt, row)) = latest
            && self.refusals.tell(run, attempt, Instant::now())
        {
            tracing::error!(run, rows = part.rows.len(), reason, "the store refuses a part");
            part.rows.pop();
            let failure = EngineFailure::new(
                FailureClass::StoreRefused,
                rollout_proto::ErrorCode::StoreRefused.code(),
                reason,
            );
            self.fail((run, attempt), vec![row], &failure);
            self.closed.insert(part.id, rows_of(&part));
        }
        if part.rows.is_empty() {
            self.settle_part(part.id).await;
        } else {
            self.spawn_upload(part, REFUSED_RETRY);
        }
    }

    /// The leader has answered for a part, or nobody wants it.
    pub(super) async fn settle_part(&mut self, id: PartId) {
        self.closed_bytes.remove(&id);
        if let Some(rows) = self.closed.remove(&id) {
            self.book.lock().settle(&rows);
        }
        self.uploader.spool.remove(id).await;
    }

    /// Reports rows as failed.
    pub(super) fn fail(&mut self, lease: Lease, rows: Vec<u64>, failure: &EngineFailure) {
        if rows.is_empty() {
            return;
        }
        metrics::counter!("rollout_worker_rows_total", "outcome" => "failed")
            .increment(rows.len() as u64);
        let held: Held = rows.iter().map(|row| (lease, *row)).collect();
        self.end_all(&held);
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
        self.tell(Telling::Failure(report), held, text);
    }

    /// Gives rows back unfinished.
    pub(super) fn give_back(&mut self, lease: Lease, rows: Vec<u64>) {
        if rows.is_empty() {
            return;
        }
        metrics::counter!("rollout_worker_rows_total", "outcome" => "given_back")
            .increment(rows.len() as u64);
        let held: Held = rows.into_iter().map(|row| (lease, row)).collect();
        self.end_all(&held);
        self.exchanges.nack(&held);
    }

    pub(super) fn end_all(&self, held: &Held) {
        let mut book = self.book.lock();
        held.iter().for_each(|(lease, row)| book.end(lease, row));
    }

    /// Rows are no longer this worker's: those that run are stopped, results of the others dropped. A part that is
    /// being written goes on, and the leader refuses those rows of it; one that is to be tried again goes without them.
    pub(super) fn take_away(&mut self, named: &Named) {
        let taken = self.book.lock().take(named);
        if taken == 0 {
            return;
        }
        tracing::info!(slot = self.index, rows = taken, "rows were taken back");
        metrics::counter!("rollout_worker_rows_total", "outcome" => "revoked")
            .increment(taken as u64);
        self.queue.retain(|row| !named.contains((row.run.number, row.attempt), row.row));
        for ((lease, row), running) in &self.running {
            if named.contains(*lease, *row) {
                running.cancel.cancel();
            }
        }
        let mut emptied = Vec::new();
        for part in self.open.values_mut() {
            let run = part.id.run;
            part.retain(|row| !named.contains((run, row.attempt), row.row));
            if part.rows.is_empty() {
                emptied.push(run);
            }
        }
        for run in emptied {
            if let Some(part) = self.open.remove(&run) {
                let spool = self.uploader.spool.clone();
                tokio::spawn(async move { spool.remove(part.id).await });
            }
        }
    }

    pub(super) fn backlogged(&self) -> bool {
        self.closed.len() >= BACKLOG_PARTS
            || self.closed_bytes.values().sum::<usize>() >= BACKLOG_BYTES
    }
}

fn rows_of(part: &OpenPart) -> Held {
    part.rows.iter().map(|row| ((part.id.run, row.attempt), row.row)).collect()
}
