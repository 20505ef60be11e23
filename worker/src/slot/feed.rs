//! Owns: how far ahead of its engine a slot works: rows that wait in the engine, rows that wait here, and how much of
//! the engine's time was lost for lack of rows.
//!
//! Invariant: between a quarter of the engine's seats and all of them wait in it, once the slot has that many rows.
//! The slot asks for what runs, what waits, and what ends before a pull is answered. A step counts as starved only if
//! the leader had a row for it: an answer with rows that did not have to wait for them accounts for the steps before
//! it. A step while rows wait here unstarted counts at once.
//! Absent: asking (`exchange_timing`), starting (`rows`).

use std::time::{Duration, Instant};

use crate::engine::ProcessTotals;

/// How long a pull or a part takes to be answered, including a part's own linger.
const ROUND: Duration = Duration::from_millis(1500);
/// How often the rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Feed {
    /// Sequences that the engine runs at once; 0 for an engine that is not fed ahead.
    seats: usize,
    ahead: usize,
    seen: ProcessTotals,
    /// Steps that were not full, and for which it is unknown whether there was a row.
    undecided: u64,
    window: Option<Window>,
    /// Rows that end per second.
    rate: f64,
    steps: u64,
    starved: u64,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    rows: u64,
}

impl Feed {
    pub(super) fn new(seats: usize) -> Self {
        Self {
            seats,
            ahead: seats.div_ceil(4),
            seen: ProcessTotals::default(),
            undecided: 0,
            window: None,
            rate: 0.0,
            steps: 0,
            starved: 0,
        }
    }

    /// Rows that may wait in the engine.
    pub(super) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Rows to hold, for a slot that runs `limit` at a time.
    pub(super) fn credit(&self, limit: usize) -> usize {
        limit + self.ahead + self.seats.div_ceil(4) + self.until_answered().max(self.seats * 2)
    }

    /// Rows that must wait here, whatever their size: for the engine's next step, and for all rows that end before a
    /// pull is answered.
    pub(super) fn refill(&self) -> usize {
        self.ahead.max(self.until_answered()).max(1)
    }

    fn until_answered(&self) -> usize {
        (self.rate * ROUND.as_secs_f64()) as usize
    }

    /// The engine has reported its counters; `more_here` means that rows waited here that could have been started.
    pub(super) fn progressed(&mut self, now: ProcessTotals, more_here: bool) {
        let before = std::mem::replace(&mut self.seen, now);
        let not_full = now.steps_not_full.saturating_sub(before.steps_not_full);
        let hungry = now.steps_hungry.saturating_sub(before.steps_hungry);
        self.steps += now.steps.saturating_sub(before.steps);
        count("all", now.steps.saturating_sub(before.steps));
        // Reported even if nothing starved.
        self.starve(if more_here { not_full } else { 0 });
        if more_here {
            // The engine ran dry while rows were at hand, so more of them must wait in it.
            if hungry > 0 {
                self.ahead = (self.ahead * 2).min(self.seats);
            }
        } else {
            self.undecided += not_full;
        }
    }

    /// A pull was answered: the leader had rows all the time, or had none.
    pub(super) fn answered(&mut self, rows_at_once: bool) {
        let undecided = std::mem::take(&mut self.undecided);
        if rows_at_once {
            self.starve(undecided);
        }
    }

    fn starve(&mut self, steps: u64) {
        self.starved += steps;
        count("starved", steps);
    }

    /// A row has ended.
    pub(super) fn ended(&mut self, now: Instant) {
        let window = self.window.get_or_insert(Window { since: now, rows: 0 });
        window.rows += 1;
        let passed = now.saturating_duration_since(window.since);
        if passed >= WINDOW {
            let rate = window.rows as f64 / passed.as_secs_f64();
            // Quick to rise, slow to fall: rows end in waves.
            self.rate = if rate > self.rate { rate } else { (self.rate + rate) / 2.0 };
            self.window = None;
        }
    }

    /// Steps so far, and how many of them were starved.
    pub(super) fn starved(&self) -> (u64, u64) {
        (self.steps, self.starved)
    }
}

fn count(which: &'static str, steps: u64) {
    metrics::counter!("rollout_worker_engine_steps_total", "which" => which).increment(steps);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(steps: u64, not_full: u64, hungry: u64) -> ProcessTotals {
        ProcessTotals {
            steps,
            steps_not_full: not_full,
            steps_hungry: hungry,
            ..ProcessTotals::default()
        }
    }

    #[test]
    fn a_step_is_starved_only_if_there_was_a_row_for_it() {
        let mut feed = Feed::new(8);
        feed.progressed(totals(10, 4, 4), false);
        feed.answered(false);
        assert_eq!(feed.starved(), (10, 0), "the leader had none");
        feed.progressed(totals(20, 6, 6), false);
        feed.answered(true);
        assert_eq!(feed.starved(), (20, 2), "the leader had some");
        feed.answered(true);
        assert_eq!(feed.starved(), (20, 2));
        feed.progressed(totals(30, 9, 6), true);
        assert_eq!(feed.starved(), (30, 5), "rows waited here");
    }

    #[test]
    fn more_rows_wait_in_an_engine_that_ran_dry_and_never_more_than_it_runs() {
        let mut feed = Feed::new(8);
        assert_eq!(feed.ahead(), 2);
        feed.progressed(totals(1, 1, 1), false);
        assert_eq!(feed.ahead(), 2, "there was nothing to give");
        for hungry in 2..6 {
            feed.progressed(totals(hungry, hungry, hungry), true);
        }
        assert_eq!(feed.ahead(), 8);
        assert_eq!(Feed::new(0).ahead(), 0);
    }

    #[test]
    fn the_credit_covers_rows_that_end_before_the_next_answer() {
        let mut feed = Feed::new(8);
        assert_eq!(feed.credit(8), 8 + 2 + 2 + 16);
        let start = Instant::now();
        (0..=100).for_each(|n| feed.ended(start + Duration::from_millis(10 * n)));
        assert!((150..160).contains(&(feed.credit(8) - 12)), "{}", feed.credit(8));
        assert!((150..160).contains(&feed.refill()), "{}", feed.refill());
        assert_eq!((Feed::new(8).refill(), Feed::new(0).refill()), (2, 1));
    }
}
