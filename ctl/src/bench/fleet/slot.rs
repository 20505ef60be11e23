//! One simulated slot: rows that wait, run for their drawn time, and are reported, by a real slot's rules. Only one
//! rule differs: a slot reports its rows alone, where a real worker combines those of its slots and so sends fewer
//! exchanges.
//!
//! Invariant: at most two exchanges are in flight, one that may wait for rows and one behind it with results. Each is
//! kept unchanged until its own answer arrives, over any number of streams. A started row is never given up.
//! Absent: engines, segments and parts; parts are named and not written.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rollout_proto::v1;

use super::plan::Plan;
use super::row_record::{RowRecord, SlotAt};
use crate::bench::objects::named_part;

/// How long results wait behind a pull that was just sent.
const BEHIND_PULL: Duration = Duration::from_millis(15);
/// The linger of results in an idle slot, which is shorter than the full one.
const IDLE_LINGER: Duration = Duration::from_millis(100);
/// Parts of one exchange, as a worker sends them.
const PARTS_MAX: usize = 16;

/// A row and the attempt under which it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    pub(super) run: u32,
    pub(super) attempt: u64,
    pub(super) row: u64,
}

/// An unanswered exchange.
struct SentExchange {
    message: v1::Exchange,
    /// Rows of its results.
    results: Vec<Unit>,
    /// Rows that it gives up.
    given: Vec<Unit>,
    at: Instant,
    on_stream: bool,
}

pub(super) struct Slot {
    at: SlotAt,
    namespace: String,
    pub(super) model: String,
    /// Some run uses its model.
    busy: bool,
    nonce: u64,
    seq: u64,
    /// The newest attempt of its grants.
    attempt: u64,
    queue: VecDeque<Unit>,
    running: Vec<(Instant, Unit)>,
    finished: Vec<Unit>,
    finished_since: Option<Instant>,
    yielding: Option<(u64, Vec<Unit>)>,
    sent: VecDeque<SentExchange>,
    dry: bool,
}

impl Slot {
    pub(super) fn new(plan: &Plan, at: SlotAt, nonce: u64) -> Self {
        let (worker, number) = at;
        Self {
            at,
            namespace: plan.shape.worker_namespace(worker),
            model: plan.shape.slot_model(worker, number),
            busy: !plan.shape.is_idle(worker, number),
            nonce,
            seq: 0,
            attempt: 0,
            queue: VecDeque::new(),
            running: Vec::new(),
            finished: Vec::new(),
            finished_since: None,
            yielding: None,
            sent: VecDeque::new(),
            dry: true,
        }
    }

    /// Whether some run uses its model.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether it runs a row.
    pub(super) fn runs(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether all of its reports are answered, and it has nothing to report.
    pub(super) fn is_settled(&self) -> bool {
        self.sent.is_empty() && self.finished.is_empty() && self.yielding.is_none()
    }

    /// Ends rows whose time is over and, if allowed, starts others. True if its queue has just run dry.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        may_start: bool,
        plan: &Plan,
        record: &mut RowRecord,
    ) -> bool {
        let finished = &mut self.finished;
        self.running.retain(|(end, unit)| {
            if *end <= now {
                finished.push(*unit);
            }
            *end > now
        });
        if !self.finished.is_empty() {
            self.finished_since.get_or_insert(now);
        }
        while may_start && self.running.len() < plan.concurrency as usize {
            let Some(unit) = self.queue.pop_front() else { break };
            record.started(unit.run, unit.row);
            self.running.push((now + plan.row_time.draw(&mut rand::rng()), unit));
        }
        if self.busy && record.has_runs() {
            match self.running.is_empty() {
                true => record.idles(self.at, now),
                false => record.works(self.at, now),
            }
        }
        let ran_dry = self.queue.is_empty() && !self.dry;
        self.dry = self.queue.is_empty();
        ran_dry
    }

    /// When its next row ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.running.iter().map(|(end, _)| *end).min()
    }

    /// When it must act without a message.
    pub(super) fn next_wake(&self, plan: &Plan) -> Option<Instant> {
        let report = self.finished_since.map(|since| {
            let due = since + self.linger(plan);
            match self.sent.back() {
                // It waits for an answer first.
                Some(_) if self.sent.len() > 1 || !self.may_be_parked() => None,
                Some(sent) => Some(due.max(sent.at + BEHIND_PULL)),
                None => Some(due),
            }
        });
        self.next_end().into_iter().chain(report.flatten()).min()
    }

    fn linger(&self, plan: &Plan) -> Duration {
        let full = Duration::from_millis(plan.linger_ms);
        let idle = self.running.is_empty() && self.queue.is_empty();
        if idle { full.min(IDLE_LINGER) } else { full }
    }

    fn may_be_parked(&self) -> bool {
        self.sent.len() == 1 && self.sent[0].message.credit_rows > 0
    }

    /// Makes the exchange that is due, if any. With `flush` it requests nothing and reports at once.
    pub(super) fn make(
        &mut self,
        now: Instant,
        (may_pull, flush): (bool, bool),
        plan: &Plan,
        record: &RowRecord,
    ) {
        let credit = if may_pull && !flush { self.wanted(plan) } else { 0 };
        let due =
            self.finished_since.is_some_and(|since| flush || now >= since + self.linger(plan));
        let behind = match self.sent.len() {
            0 => false,
            1 if self.may_be_parked() => true,
            _ => return,
        };
        let waits = behind && now < self.sent[0].at + BEHIND_PULL;
        let report = self.yielding.is_some() || due && (!waits || flush);
        let pull = !behind && credit > 0;
        let unpark = flush && behind;
        if !(report || pull || unpark) {
            return;
        }
        self.seq += 1;
        let results = if due { self.take_results() } else { Vec::new() };
        let (number, given) = self.yielding.take().unwrap_or_default();
        let message = v1::Exchange {
            slot: self.at.1,
            seq: self.seq,
            parts: self.parts(&results, record),
            credit_rows: if behind { 0 } else { credit },
            r#yield: number,
            yielded: to_wire(given.clone()),
            ..v1::Exchange::default()
        };
        self.sent.push_back(SentExchange { message, results, given, at: now, on_stream: false });
    }

    /// Rows to request, by a real slot's rule: none while most of its credit is in use, unless its queue is empty.
    fn wanted(&self, plan: &Plan) -> u32 {
        let capacity = (plan.concurrency + plan.ahead) as usize;
        let free = capacity.saturating_sub(self.queue.len() + self.running.len());
        if free * 4 >= capacity || self.queue.is_empty() { free as u32 } else { 0 }
    }

    fn take_results(&mut self) -> Vec<Unit> {
        self.finished_since = None;
        let mut results = std::mem::take(&mut self.finished);
        results.sort_unstable();
        // If results belong to more runs than one message may cover, the rest waits for the next.
        let mut runs = 0;
        let mut last = None;
        let acknowledged = results.iter().position(|unit| {
            runs += usize::from(last.replace(unit.run) != Some(unit.run));
            runs > PARTS_MAX
        });
        if let Some(acknowledged) = acknowledged {
            self.finished = results.split_off(acknowledged);
            self.finished_since = Some(Instant::now());
        }
        results
    }

    /// One part for the rows of each run.
    fn parts(&self, results: &[Unit], record: &RowRecord) -> Vec<v1::PartResult> {
        let by_run = results.chunk_by(|a, b| a.run == b.run);
        let part = |rows: &[Unit]| {
            let run = rows[0].run;
            let sets = to_wire(rows.to_vec());
            let folder = record.run(run).map_or("", |of| of.folder.as_str());
            let place = u64::from(self.at.1) << 32 | u64::from(run);
            let unique = [self.nonce, self.at.0.into(), place, self.seq];
            let part = Some(named_part((&self.namespace, folder), &sets, unique));
            v1::PartResult { run, part, sets, ..v1::PartResult::default() }
        };
        by_run.map(part).collect()
    }

    /// Passes messages that the present stream has not carried to `send`, in order, until it accepts no more.
    pub(super) fn send(&mut self, mut send: impl FnMut(v1::Exchange) -> bool) {
        for sent in self.sent.iter_mut().filter(|sent| !sent.on_stream) {
            if !send(sent.message.clone()) {
                return;
            }
            sent.on_stream = true;
        }
    }

    /// The stream is gone: the same messages go over the next one.
    pub(super) fn stream_broke(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.on_stream = false);
    }

    /// Handles an answer: accepted results, and grants.
    pub(super) fn answered(
        &mut self,
        answer: &v1::ExchangeAnswer,
        now: Instant,
        record: &mut RowRecord,
    ) {
        let seq = answer.seq;
        let Some(position) = self.sent.iter().position(|sent| sent.message.seq == seq) else {
            return record.violation(|| {
                format!("slot {:?} got an answer to {seq}, which it did not ask", self.at)
            });
        };
        let Some(sent) = self.sent.remove(position) else { return };
        let us = now.saturating_duration_since(sent.at).as_micros() as u64;
        if !sent.message.parts.is_empty() {
            record.counts.completions += 1;
            record.counts.parts += sent.message.parts.len() as u64;
            record.spreads.complete.record_us(us);
        }
        let refused = |unit: &Unit| {
            answer.refused.iter().any(|refused| {
                let same = refused.run == unit.run && refused.attempt == unit.attempt;
                same && refused.rows.iter().any(|rows| rows.iter().any(|row| row == unit.row))
            })
        };
        for unit in &sent.results {
            match refused(unit) {
                true => record.counts.rows_refused += 1,
                false => record.accepted(unit.run, unit.row),
            }
        }
        record.counts.rows_yielded += sent.given.len() as u64;
        if answer.grants.is_empty() {
            return;
        }
        record.counts.claims += 1;
        if !answer.waited {
            record.spreads.claim.record_us(us);
        }
        self.take_grants(&answer.grants, sent.message.credit_rows, record);
    }

    fn take_grants(&mut self, grants: &[v1::Grant], credit: u32, record: &mut RowRecord) {
        let rows: u64 = grants.iter().flat_map(|grant| &grant.rows).map(v1::Rows::count).sum();
        if rows > credit.into() {
            record
                .violation(|| format!("slot {:?} asked for {credit} rows and got {rows}", self.at));
        }
        let newest = self.attempt;
        for grant in grants {
            let (run, attempt) = (grant.run, grant.attempt);
            self.attempt = self.attempt.max(attempt);
            if attempt <= newest {
                record.violation(|| {
                    format!("slot {:?}: attempt {attempt} of run {run} after {newest}", self.at)
                });
            }
            let fits = record
                .run(run)
                .is_some_and(|of| of.namespace == self.namespace && of.model == self.model);
            if !fits {
                record.violation(|| {
                    format!(
                        "slot {:?} of {} in {} was granted rows of run {run}",
                        self.at, self.model, self.namespace
                    )
                });
            }
            for row in grant.rows.iter().flat_map(v1::Rows::iter) {
                let unit = Unit { run, attempt, row };
                let within =
                    |s: &v1::SegmentRef| row >= s.first_row && row - s.first_row < s.rows.into();
                if !grant.segments.iter().any(within) {
                    record.violation(|| {
                        format!("row {row} of run {run} is in no segment of its grant")
                    });
                }
                // A row that it gives up may be granted to it again before that is answered.
                if self.unfinished().any(|held| held.run == run && held.row == row) {
                    record.violation(|| {
                        format!("slot {:?} was granted row {row} of run {run} twice", self.at)
                    });
                }
                record.granted(run, row);
                self.queue.push_back(unit);
            }
        }
    }

    /// All rows that it holds: waiting, running, or finished and unanswered.
    pub(super) fn held(&self) -> impl Iterator<Item = Unit> + '_ {
        self.started().chain(self.queue.iter().copied()).chain(self.given())
    }

    fn given(&self) -> impl Iterator<Item = Unit> + '_ {
        let waiting = self.yielding.iter().flat_map(|(_, given)| given.iter());
        waiting.chain(self.sent.iter().flat_map(|sent| &sent.given)).copied()
    }

    /// Started rows that are unanswered.
    pub(super) fn started(&self) -> impl Iterator<Item = Unit> + '_ {
        let running = self.running.iter().map(|(_, unit)| *unit);
        let sent = self.sent.iter().flat_map(|sent| &sent.results);
        running.chain(self.finished.iter().chain(sent).copied())
    }

    /// Rows that wait or run.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = Unit> + '_ {
        self.running.iter().map(|(_, unit)| *unit).chain(self.queue.iter().copied())
    }

    pub(super) fn load(&self, plan: &Plan) -> v1::SlotLoad {
        v1::SlotLoad {
            slot: self.at.1,
            queued: self.queue.len() as u32,
            running: self.running.len() as u32,
            concurrency: plan.concurrency,
        }
    }

    /// Rows were revoked; returns how many it held. Results in flight are refused at the leader.
    pub(super) fn take_away(&mut self, named: &[v1::HeldRows]) -> u64 {
        let is_named = |unit: &Unit| {
            named.iter().any(|set| {
                let same = set.run == unit.run && set.attempt == unit.attempt;
                same && set.rows.iter().any(|rows| rows.iter().any(|row| row == unit.row))
            })
        };
        let before = self.queue.len() + self.running.len() + self.finished.len();
        self.queue.retain(|unit| !is_named(unit));
        self.running.retain(|(_, unit)| !is_named(unit));
        self.finished.retain(|unit| !is_named(unit));
        if self.finished.is_empty() {
            self.finished_since = None;
        }
        (before - self.queue.len() - self.running.len() - self.finished.len()) as u64
    }

    /// The leader requests unstarted rows: gives up those that it would start last.
    pub(super) fn give_up(&mut self, request: &v1::Yield, plan: &Plan) {
        let places = (plan.concurrency as usize).saturating_sub(self.running.len());
        let spare = self.queue.len().saturating_sub(places).min(request.rows_max as usize);
        let mut given = Vec::new();
        let mut kept = VecDeque::new();
        while let Some(unit) = self.queue.pop_back() {
            match given.len() < spare && request.runs.contains(&unit.run) {
                true => given.push(unit),
                false => kept.push_front(unit),
            }
        }
        self.queue = kept;
        // A pending answer is for a request that the leader has abandoned: its rows stay here.
        if let Some((_, old)) = self.yielding.replace((request.id, given)) {
            self.queue.extend(old);
        }
    }

    /// Its worker is gone, so it no longer counts as idle.
    pub(super) fn absent(&self, record: &mut RowRecord) {
        record.absent(self.at);
    }
}

/// Rows in wire form, grouped by attempt.
pub(super) fn to_wire(mut units: Vec<Unit>) -> Vec<v1::HeldRows> {
    units.sort_unstable();
    let sets = units.chunk_by(|a, b| (a.run, a.attempt) == (b.run, b.attempt));
    let set = |rows: &[Unit]| v1::HeldRows {
        run: rows[0].run,
        attempt: rows[0].attempt,
        rows: Some(v1::Rows::from_rows(rows.iter().map(|unit| unit.row))),
    };
    sets.map(set).collect()
}
