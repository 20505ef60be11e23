//! Owns: when a slot sends to the leader, how many rows it asks for, and what an answer settles.
//!
//! Invariant: the slot asks for rows only while it could start them, and never for more than the credit has room for.
//! Absent: the messages' bookkeeping (`exchange`).

use std::time::{Duration, Instant};

use rollout_proto::v1;

use super::Slot;
use crate::config::{CREDIT_ROWS_MAX, SLOT_ROWS_MAX};

/// How long results wait behind an unanswered pull, so that many are sent together.
const BEHIND_PULL: Duration = Duration::from_millis(15);
/// How long failures wait for others.
const FAILURES_LINGER: Duration = Duration::from_millis(20);
/// How soon a message that the stream did not accept is sent again.
const UNSENT_RETRY: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_secs(3600);

impl Slot {
    /// Takes the rows that an answer grants, and settles what it answers.
    pub(super) async fn answer(&mut self, answer: v1::ExchangeAnswer) {
        let Some(settled) = self.exchanges.answered(answer.seq) else {
            tracing::debug!(slot = self.index, seq = answer.seq, "answer to an unknown exchange");
            return;
        };
        for refused in &answer.refused {
            metrics::counter!("rollout_worker_rows_refused_total").increment(
                refused.rows.as_ref().map_or(0, |r| r.lens.iter().map(|l| u64::from(*l)).sum()),
            );
            tracing::info!(
                slot = self.index,
                run = refused.run,
                attempt = refused.attempt,
                code = refused.code,
                "rows were refused: their results from this worker do not count"
            );
        }
        answer.nothing_more.iter().for_each(|run| self.combiner.at_tail(*run));
        self.combiner.settle_rows(&settled.rows);
        for part in settled.parts {
            self.combiner.settle(part).await;
        }
        if settled.asked {
            self.feed.answered(!answer.grants.is_empty() && !answer.waited);
        }
        for grant in answer.grants {
            self.granted(grant);
        }
    }

    /// Sends everything that may be sent now.
    pub(super) fn exchange(&mut self) {
        let now = Instant::now();
        if self.exchanges.has_report() {
            self.report_since.get_or_insert(now);
        } else {
            self.report_since = None;
        }
        if self.uplink.is_none() {
            return;
        }
        let flush = self.quiet || self.drain.is_some();
        let credit = if flush { 0 } else { self.wanted() };
        let awaited = self.exchanges.has_yield();
        let report = self.report_since.is_some_and(|since| match self.exchanges.unanswered() {
            _ if awaited => true,
            0 => {
                self.exchanges.has_parts() || now >= since + FAILURES_LINGER || credit > 0 || flush
            }
            _ => self
                .last_exchange_at
                .is_none_or(|last_exchange_at| now >= last_exchange_at + BEHIND_PULL),
        });
        let unpark = flush && self.exchanges.may_be_parked();
        let pull = credit > 0 && self.exchanges.unanswered() == 0;
        if (report || unpark || pull) && self.exchanges.make(credit) {
            self.last_exchange_at = Some(now);
            self.report_since = self.exchanges.has_report().then_some(now);
        }
        while let (Some(uplink), Some(message)) = (&self.uplink, self.exchanges.to_send()) {
            if !uplink.send(message.clone()) {
                break;
            }
            self.exchanges.was_sent();
        }
        if self.exchanges.unanswered() == 0
            && let Some(done) = self.quiesce.take()
        {
            // The session may have stopped waiting.
            let _ = done.send(());
        }
    }

    /// Rows to request.
    fn wanted(&self) -> u32 {
        let busy = self.lease_table.lock().busy();
        let credit = self.credit.unwrap_or_else(|| self.feed.credit(self.concurrency.limit()));
        let asks =
            self.wanted_to_try().unwrap_or_else(|| one_pull(credit, busy, self.queue.is_empty()));
        let eligible = self.ineligible.borrow().is_none()
            && self.uplink.as_ref().is_some_and(|uplink| uplink.eligible);
        let able = eligible && self.fence.open() && !self.combiner.is_backlogged();
        if asks > 0 && able { asks.min(self.wanted_by_tokens()) as u32 } else { 0 }
    }

    /// Rows to request, by the tokens that the rows here may take; but always enough for the engine's next refills,
    /// whatever their tokens.
    fn wanted_by_tokens(&self) -> usize {
        let room = self.loaded.as_ref().map_or(0, |loaded| loaded.room_tokens);
        let queued = self.lease_table.lock().queued().len();
        let here = self
            .queue
            .iter()
            .map(|row| row.tokens)
            .chain(self.running.values().map(|r| r.row.tokens));
        let unread = queued.saturating_sub(self.queue.len());
        let fits = self.tokens.credit(room, here.sum(), unread);
        fits.max(self.feed.refill().saturating_sub(queued))
    }

    /// The next time at which something is due without an event. `decided` is the time at which [`Slot::start_rows`] last
    /// decided: with a later one, a start that came due in between would be forgotten.
    pub(super) fn next_wake(&self, decided: Instant) -> Instant {
        let now = Instant::now();
        let parts = self.next_part_due(now);
        let report = self.report_since.map(|since| match self.exchanges.unanswered() {
            0 => since + FAILURES_LINGER,
            1 if self.exchanges.may_be_parked() => self
                .last_exchange_at
                .map_or(since, |last_exchange_at| last_exchange_at + BEHIND_PULL),
            _ => now + NEVER,
        });
        let unsent = self.exchanges.to_send().map(|_| now + UNSENT_RETRY);
        let online = self.uplink.is_some();
        let timers = report.into_iter().chain(unsent).filter(|_| online);
        let drain = self.drain.filter(|_| !self.running.is_empty());
        let start = self.failing.delayed_until(decided).filter(|_| !self.queue.is_empty());
        parts.into_iter().chain(timers).chain(drain).chain(start).min().unwrap_or(now + NEVER)
    }
}

/// Rows that one pull requests, for a slot that should hold `credit` rows and has `busy`: none while most of the
/// credit is in use, unless the queue is dry.
fn one_pull(credit: usize, busy: usize, dry: bool) -> usize {
    let credit = credit.min(SLOT_ROWS_MAX as usize);
    let free = credit.saturating_sub(busy);
    let enough = free * 4 >= credit || dry;
    if enough { free.min(CREDIT_ROWS_MAX as usize) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::feed::Feed;

    #[test]
    fn a_slot_with_many_seats_is_refilled_before_they_are_empty() {
        let seats = 4096;
        let credit = Feed::new(seats).credit(seats);
        assert_eq!(
            one_pull(credit, seats, true),
            4096,
            "all seats are taken, and none waits for one"
        );
        assert_eq!(one_pull(credit, seats * 2, false), 4096, "in several pulls");
        assert_eq!(one_pull(credit, credit - credit.div_ceil(4), false), credit.div_ceil(4));
        assert_eq!(one_pull(credit, credit - credit / 5, false), 0, "a good part is in use");
    }

    #[test]
    fn a_slot_holds_a_bounded_number_of_rows_and_asks_in_time_below_the_bound() {
        let (credit, most) = (1_000_000, SLOT_ROWS_MAX as usize);
        assert_eq!(one_pull(credit, most - most / 4, false), most / 4);
        assert_eq!(one_pull(credit, most - 1, false), 0);
        assert_eq!(one_pull(credit, most - 1, true), 1);
        assert_eq!(one_pull(credit, most, true), 0);
        assert_eq!(one_pull(credit, most + 1, true), 0, "more came than was asked for");
    }
}
