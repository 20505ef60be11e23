//! Owns: rows that fail one after another in an engine that answers, and how the slot then slows down and pauses.
//!
//! Invariant: an engine that fails every row gets at most [`Failing::bound`] rows and those that run beside them.
//! After that the slot takes no work during a pause, then one row at a time, until a row succeeds. When a pause
//! begins, waiting rows go back without a strike. The first pause ends with a probe: a row that succeeded here before,
//! if there is one. It tells a broken engine from rows that no engine can run, gives no row a strike, and its result
//! is dropped.
//! Absent: engines that are unreachable or dead. They get no rows, so none fails.

use std::time::{Duration, Instant};

use super::shorten::shortened;
use super::{Event, Slot};
use crate::engine::{EngineFailure, EngineRow, run_caught};
use crate::offer;

/// Consecutive failures before the first pause: this number, or [`ROUNDS`] times what the engine runs at once. A
/// server that restarts fails all running rows and then recovers.
const FAILURES_MIN: u32 = 16;
const ROUNDS: u32 = 2;
/// The first pause, and the longest one. Each failed try doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Each further consecutive failure delays the next start by this much more, up to a bound. Rows that fail instantly
/// would otherwise make this the fastest slot of the fleet.
const STEP: Duration = Duration::from_millis(10);
const STEP_MAX: Duration = Duration::from_secs(1);
/// Bytes of the last failure quoted in the reason why a slot takes no work.
const QUOTE_BYTES_MAX: usize = 300;
/// The largest row that is kept for a rerun, in bytes.
const PROVEN_BYTES_MAX: usize = 64 << 10;
/// The time limit of the rerun.
const PROVEN_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Failing {
    /// Failures since the last row that succeeded.
    in_a_row: u32,
    bound: u32,
    /// The next pause.
    pause: Duration,
    /// When the last pause began. Of the rows started since then, one runs at a time.
    trying: Option<Instant>,
    not_before: Option<Instant>,
    /// The last row that succeeded, until it is rerun.
    proven: Option<EngineRow>,
}

impl Failing {
    pub(super) fn new(concurrency: usize) -> Self {
        let round = u32::try_from(concurrency).unwrap_or(u32::MAX);
        let bound = round.saturating_mul(ROUNDS).max(FAILURES_MIN);
        let (trying, not_before, proven) = (None, None, None);
        Self { in_a_row: 0, bound, pause: PAUSE_MIN, trying, not_before, proven }
    }

    /// Counts another failure. Returns the pause that this begins, if any: none begins while the slot takes no work.
    pub(super) fn failed(&mut self, now: Instant, takes_work: bool) -> Option<Duration> {
        let delay = STEP.saturating_mul(self.in_a_row).min(STEP_MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = Some(now + delay);
        if !takes_work || (self.trying.is_none() && self.in_a_row < self.bound) {
            return None;
        }
        Some(self.begin_pause(now))
    }

    fn begin_pause(&mut self, now: Instant) -> Duration {
        let next = (self.pause * 2).min(PAUSE_MAX);
        self.trying = Some(now);
        std::mem::replace(&mut self.pause, next)
    }

    /// This row has succeeded.
    pub(super) fn succeeded(&mut self, row: EngineRow) {
        self.over();
        if row.body.len() <= PROVEN_BYTES_MAX {
            self.proven = Some(row);
        }
    }

    /// The engine works, or is another process now.
    pub(super) fn over(&mut self) {
        if self.in_a_row > 0 {
            (self.in_a_row, self.pause) = (0, PAUSE_MIN);
            (self.trying, self.not_before) = (None, None);
        }
    }

    /// Whether one row is tried at a time. True for rows started at these times if one of them is that row.
    pub(super) fn tries(&self, mut started: impl Iterator<Item = Instant>) -> Option<bool> {
        self.trying.map(|began| started.any(|since| since >= began))
    }

    /// The time at which a row may start, if none may start at `now`.
    pub(super) fn delayed_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }
}

impl Slot {
    /// A row failed, and its request is not the cause.
    pub(super) fn row_failed(&mut self, failure: &EngineFailure) {
        let takes_work = self.ineligible.borrow().is_none() && self.drain.is_none();
        if let Some(pause) = self.failing.failed(Instant::now(), takes_work) {
            self.pause(pause, failure);
            self.give_back_queued();
        }
    }

    fn pause(&mut self, pause: Duration, failure: &EngineFailure) {
        let last = shortened(&failure.message, QUOTE_BYTES_MAX);
        self.set_ineligible(Some(format!(
            "{} rows failed in a row in the engine; one row is tried in {} s. The last failure: {}: {last}",
            self.failing.in_a_row,
            pause.as_secs(),
            failure.code,
        )));
        let serves = |row: &EngineRow| {
            offer::serves(&self.block, self.loaded.as_ref(), &row.run.model, &row.run.revision)
        };
        match self.failing.proven.take().filter(serves) {
            Some(row) => self.check_after(pause, row),
            None => self.probe_after(pause),
        }
    }

    /// Reruns a row that has succeeded once.
    fn check_after(&mut self, pause: Duration, row: EngineRow) {
        let engine = self.engine.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            match engine.probe().await {
                Ok(()) => {
                    let run = run_caught(&*engine, row.clone());
                    match tokio::time::timeout(PROVEN_TIMEOUT, run).await {
                        Ok(outcome) => Event::Checked { row, outcome: outcome.map(drop) },
                        // A timeout proves nothing. Try a row of the leader's next.
                        Err(_) => Event::Probed(Ok(())),
                    }
                }
                reason => Event::Probed(reason),
            }
        });
    }

    /// Handles the rerun of a row that has succeeded once.
    pub(super) fn checked(&mut self, row: EngineRow, outcome: Result<(), EngineFailure>) {
        match outcome {
            Ok(()) => {
                self.failing.succeeded(row);
                self.set_ineligible(None);
            }
            // Another row has succeeded meanwhile, or the engine is another process.
            Err(_) if self.failing.in_a_row == 0 => self.probe_after(Duration::ZERO),
            Err(failure) => {
                let pause = self.failing.begin_pause(Instant::now());
                self.pause(pause, &failure);
            }
        }
    }

    /// Whether consecutive failures allow another row to start at `now`.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.failing.delayed_until(now).is_none()
            && !self.failing.tries(self.running.values().map(|row| row.since)).unwrap_or(false)
    }

    /// Rows to request while one is tried at a time.
    pub(super) fn wanted_to_try(&self) -> Option<usize> {
        let tried = self.failing.tries(self.running.values().map(|row| row.since))?;
        Some(usize::from(!tried && self.lease_table.lock().queued().is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(pause: Option<Duration>) -> Option<u64> {
        pause.map(|pause| pause.as_secs())
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_one_success_ends_them() {
        let (mut failing, now) = (Failing::new(4), Instant::now());
        assert!((1..16).all(|_| failing.failed(now, true).is_none()));
        let pauses: Vec<_> = (0..8).map(|_| seconds(failing.failed(now, true))).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60].map(Some));
        failing.over();
        assert_eq!((failing.tries([now].into_iter()), failing.delayed_until(now)), (None, None));
        assert!((1..16).all(|_| failing.failed(now, true).is_none()));
        assert_eq!(seconds(failing.failed(now, true)), Some(1));
    }

    #[test]
    fn rows_that_were_running_when_a_pause_began_do_not_lengthen_it() {
        let (mut failing, now) = (Failing::new(100), Instant::now());
        assert!((1..200).all(|_| failing.failed(now, true).is_none()), "twice what runs at once");
        assert_eq!(seconds(failing.failed(now, true)), Some(1));
        assert!((0..100).all(|_| failing.failed(now, false).is_none()));
        assert_eq!(seconds(failing.failed(now, true)), Some(2));
    }

    #[test]
    fn one_row_is_tried_while_rows_from_before_the_pause_still_run() {
        let (mut failing, now) = (Failing::new(1), Instant::now());
        assert_eq!(failing.tries([now].into_iter()), None);
        for _ in 0..16 {
            failing.failed(now, true);
        }
        let before = now.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(failing.tries([before, before].into_iter()), Some(false));
        assert_eq!(failing.tries([before, now].into_iter()), Some(true));
    }

    #[test]
    fn a_start_that_comes_due_after_the_decision_to_wait_is_not_forgotten() {
        // The clock is past the due time when the slot asks how long to wait.
        let (mut failing, decided) = (Failing::new(8), Instant::now() - Duration::from_secs(1));
        failing.failed(decided, true);
        failing.failed(decided, true);
        let due = decided + STEP;
        assert_eq!(failing.delayed_until(decided), Some(due));
        assert_eq!(failing.delayed_until(due), None);
    }

    #[test]
    fn starts_are_delayed_more_with_each_failure_in_a_row() {
        let (mut failing, now) = (Failing::new(1000), Instant::now());
        let mut delay = || {
            failing.failed(now, true);
            failing.delayed_until(now).map_or(Duration::ZERO, |at| at - now)
        };
        assert_eq!(delay(), Duration::ZERO, "one failure says nothing");
        assert_eq!(delay(), STEP);
        assert_eq!(delay(), 2 * STEP);
        for _ in 0..200 {
            delay();
        }
        assert_eq!(delay(), STEP_MAX);
    }
}
