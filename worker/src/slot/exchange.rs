//! Owns: a slot's exchanges with the leader: what to report, and what was sent and is unanswered.
//!
//! Invariant: numbers only grow. A message is kept, unchanged, until its own answer arrives, whatever the order of
//! answers, so no report and no grant is lost. At most two are in flight: one that waits for work, and one behind it
//! with results, which makes the leader answer the first.
//! Absent: streams, time, and what rows are.

use std::collections::VecDeque;

use rollout_proto::v1;

use crate::leased_rows::LeasedRows;
use crate::part::PartId;

/// Parts, and failures, of one message; within these bounds it stays far below the wire's limit.
const PARTS_MAX: usize = 16;
const FAILURES_MAX: usize = 1024;
/// Deaths of one message; each names at most the rows that an engine runs at once.
const DEATHS_MAX: usize = 8;

/// What is to be reported.
#[derive(Debug, Default, Clone)]
struct Report {
    parts: Vec<(PartId, v1::PartResult)>,
    failures: Vec<v1::FailedAttempt>,
    deaths: Vec<v1::EngineDeath>,
    nacks: LeasedRows,
    /// The rows given up for another slot, under the number of the leader's request; none of them was started.
    yielded: Option<(u64, LeasedRows)>,
    /// The rows of failures, deaths, nacks, and given-up rows.
    rows: LeasedRows,
}

impl Report {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
            && self.failures.is_empty()
            && self.deaths.is_empty()
            && self.nacks.is_empty()
            && self.yielded.is_none()
    }
}

#[derive(Debug)]
struct SentExchange {
    message: v1::Exchange,
    report: Report,
    /// Whether it was sent on the present stream.
    on_stream: bool,
}

/// What an answered exchange reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) parts: Vec<PartId>,
    pub(super) rows: LeasedRows,
    /// It requested rows.
    pub(super) asked: bool,
}

#[derive(Debug)]
pub(super) struct Exchanges {
    slot: u32,
    last_seq: u64,
    last_death: u64,
    outbox: Report,
    sent: VecDeque<SentExchange>,
}

impl Exchanges {
    pub(super) fn new(slot: u32) -> Self {
        Self { slot, last_seq: 0, last_death: 0, outbox: Report::default(), sent: VecDeque::new() }
    }

    pub(super) fn part(&mut self, id: PartId, result: v1::PartResult) {
        self.outbox.parts.push((id, result));
    }

    pub(super) fn failure(&mut self, failure: v1::FailedAttempt, rows: &LeasedRows) {
        self.outbox.rows.extend(rows);
        self.outbox.failures.push(failure);
    }

    /// Adds a death. Its number is unique in this process, so that it counts once however often it is sent.
    pub(super) fn death(&mut self, mut death: v1::EngineDeath, rows: &LeasedRows) {
        self.last_death += 1;
        death.number = self.last_death;
        self.outbox.rows.extend(rows);
        self.outbox.deaths.push(death);
    }

    pub(super) fn nack(&mut self, rows: &LeasedRows) {
        self.outbox.rows.extend(rows);
        self.outbox.nacks.extend(rows);
    }

    /// Adds rows given up for the leader's request with this number; an empty set is an answer too.
    pub(super) fn give_up(&mut self, id: u64, rows: LeasedRows) {
        // An older answer is for a request that the leader has abandoned.
        if let Some((_, old)) = self.outbox.yielded.take() {
            self.outbox.nacks.extend(&old);
        }
        self.outbox.rows.extend(&rows);
        self.outbox.yielded = Some((id, rows));
    }

    /// True if an answer to a steal request waits to be sent.
    pub(super) fn has_yield(&self) -> bool {
        self.outbox.yielded.is_some()
    }

    /// True if a report waits to be sent.
    pub(super) fn has_report(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// True if the report has a durable part.
    pub(super) fn has_parts(&self) -> bool {
        !self.outbox.parts.is_empty()
    }

    /// Messages without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.sent.len()
    }

    /// True if the only message in flight may be waiting for work at the leader.
    pub(super) fn may_be_parked(&self) -> bool {
        self.sent.len() == 1 && self.sent[0].message.credit_rows > 0
    }

    /// Makes the next message, if one may be sent now. `credit` 0 requests no rows.
    pub(super) fn make(&mut self, credit: u32) -> bool {
        let credit = match self.sent.len() {
            0 => credit,
            // Two messages with credit would be granted rows twice.
            1 if self.sent[0].message.credit_rows > 0 => 0,
            _ => return false,
        };
        let report = self.take_report();
        self.last_seq += 1;
        let message = v1::Exchange {
            slot: self.slot,
            seq: self.last_seq,
            parts: report.parts.iter().map(|(_, result)| result.clone()).collect(),
            failures: report.failures.clone(),
            deaths: report.deaths.clone(),
            nacks: report.nacks.to_wire(),
            credit_rows: credit,
            r#yield: report.yielded.as_ref().map_or(0, |y| y.0),
            yielded: report.yielded.as_ref().map(|y| y.1.to_wire()).unwrap_or_default(),
        };
        self.sent.push_back(SentExchange { message, report, on_stream: false });
        true
    }

    fn take_report(&mut self) -> Report {
        let outbox = &mut self.outbox;
        let parts = outbox.parts.drain(..outbox.parts.len().min(PARTS_MAX)).collect();
        let failures: Vec<v1::FailedAttempt> =
            outbox.failures.drain(..outbox.failures.len().min(FAILURES_MAX)).collect();
        let deaths: Vec<v1::EngineDeath> =
            outbox.deaths.drain(..outbox.deaths.len().min(DEATHS_MAX)).collect();
        let nacks = std::mem::take(&mut outbox.nacks);
        let yielded = outbox.yielded.take();
        let mut rows = nacks.clone();
        yielded.iter().for_each(|(_, given)| rows.extend(given));
        for failure in &failures {
            let listed =
                failure.rows.as_ref().and_then(crate::leased_rows::listed).unwrap_or_default();
            for row in listed {
                rows.insert((failure.run, failure.attempt), row);
            }
        }
        for held in deaths.iter().flat_map(|death| &death.started) {
            let listed =
                held.rows.as_ref().and_then(crate::leased_rows::listed).unwrap_or_default();
            for row in listed {
                rows.insert((held.run, held.attempt), row);
            }
        }
        for (lease, row) in rows.iter() {
            outbox.rows.remove(lease, row);
        }
        Report { parts, failures, deaths, nacks, yielded, rows }
    }

    /// The oldest message that was not sent on the present stream.
    pub(super) fn to_send(&self) -> Option<&v1::Exchange> {
        self.sent.iter().find(|sent| !sent.on_stream).map(|sent| &sent.message)
    }

    /// That message is in flight.
    pub(super) fn was_sent(&mut self) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| !sent.on_stream) {
            sent.on_stream = true;
        }
    }

    /// The stream is gone: unanswered messages go over the next one, unchanged and in the same order.
    pub(super) fn stream_broke(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.on_stream = false);
    }

    /// Takes an answer; `None` if it answers no message.
    pub(super) fn answered(&mut self, seq: u64) -> Option<Settled> {
        let position = self.sent.iter().position(|sent| sent.message.seq == seq)?;
        let answered = self.sent.remove(position)?;
        let parts = answered.report.parts.into_iter().map(|(id, _)| id).collect();
        let asked = answered.message.credit_rows > 0;
        Some(Settled { parts, rows: answered.report.rows, asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64) -> (PartId, v1::PartResult) {
        (
            PartId { run: 1, number },
            v1::PartResult { run: 1, tokens_in: number, ..Default::default() },
        )
    }

    fn send(exchanges: &mut Exchanges) -> Vec<v1::Exchange> {
        let mut all = Vec::new();
        while let Some(message) = exchanges.to_send().cloned() {
            exchanges.was_sent();
            all.push(message);
        }
        all
    }

    #[test]
    fn results_go_behind_a_pull_that_waits_and_ask_for_nothing_more() {
        let mut exchanges = Exchanges::new(3);
        assert!(exchanges.make(64));
        assert!(exchanges.may_be_parked());
        let (id, result) = part(0);
        exchanges.part(id, result);
        assert!(exchanges.make(64));
        let sent = send(&mut exchanges);
        assert_eq!(
            sent.iter().map(|m| (m.slot, m.seq, m.credit_rows)).collect::<Vec<_>>(),
            [(3, 1, 64), (3, 2, 0)]
        );
        assert!(!exchanges.make(64), "a third waits");
        assert_eq!(exchanges.answered(1), Some(Settled { asked: true, ..Settled::default() }));
        assert_eq!(exchanges.answered(2).unwrap().parts, [id]);
        assert_eq!(exchanges.answered(2), None);
    }

    #[test]
    fn behind_results_nothing_is_sent() {
        let mut exchanges = Exchanges::new(0);
        let (id, result) = part(0);
        exchanges.part(id, result);
        assert!(exchanges.make(0));
        assert!(!exchanges.make(8));
    }

    #[test]
    fn after_a_break_the_same_messages_go_out_again() {
        let mut exchanges = Exchanges::new(0);
        let (id, result) = part(0);
        exchanges.part(id, result);
        exchanges.make(8);
        let first = send(&mut exchanges);
        assert!(send(&mut exchanges).is_empty());
        exchanges.stream_broke();
        assert_eq!(send(&mut exchanges), first);
        assert_eq!(exchanges.answered(1).unwrap().parts, [id]);
    }

    #[test]
    fn given_up_rows_are_reported_again_after_a_break_until_they_are_answered() {
        let mut exchanges = Exchanges::new(0);
        let rows: LeasedRows = [((1, 5), 8), ((1, 5), 9)].into_iter().collect();
        exchanges.give_up(7, rows.clone());
        assert!(exchanges.has_report() && exchanges.make(16));
        let first = send(&mut exchanges);
        assert_eq!((first[0].r#yield, &first[0].yielded), (7, &rows.to_wire()));
        exchanges.stream_broke();
        assert_eq!(send(&mut exchanges), first);
        assert_eq!(
            exchanges.answered(1),
            Some(Settled { rows, asked: true, ..Settled::default() })
        );
    }

    #[test]
    fn a_death_has_its_number_however_often_it_is_sent() {
        let mut exchanges = Exchanges::new(0);
        for _ in 0..2 {
            exchanges.death(v1::EngineDeath::default(), &LeasedRows::default());
        }
        assert!(exchanges.make(0));
        let first = send(&mut exchanges);
        assert_eq!(first[0].deaths.iter().map(|death| death.number).collect::<Vec<_>>(), [1, 2]);
        exchanges.stream_broke();
        assert_eq!(send(&mut exchanges), first);
        exchanges.death(v1::EngineDeath::default(), &LeasedRows::default());
        exchanges.answered(1);
        assert!(exchanges.make(0));
        assert_eq!(send(&mut exchanges)[0].deaths[0].number, 3);
    }

    #[test]
    fn giving_up_nothing_is_an_answer_and_rows_of_an_older_one_go_back() {
        let mut exchanges = Exchanges::new(0);
        let rows: LeasedRows = [((1, 5), 9)].into_iter().collect();
        exchanges.give_up(1, rows.clone());
        exchanges.give_up(2, LeasedRows::default());
        assert!(exchanges.make(0));
        let sent = send(&mut exchanges);
        assert_eq!((sent[0].r#yield, sent[0].yielded.len()), (2, 0));
        assert_eq!(sent[0].nacks, rows.to_wire());
        assert_eq!(exchanges.answered(1), Some(Settled { rows, ..Settled::default() }));
    }

    #[test]
    fn answers_may_come_in_any_order() {
        let mut exchanges = Exchanges::new(0);
        assert!(exchanges.make(8));
        let failed: LeasedRows = [((1, 5), 9)].into_iter().collect();
        let failure = v1::FailedAttempt {
            run: 1,
            attempt: 5,
            rows: Some(crate::leased_rows::ranges([9].into_iter())),
            ..Default::default()
        };
        exchanges.failure(failure, &failed);
        exchanges.make(0);
        assert_eq!(exchanges.answered(2), Some(Settled { rows: failed, ..Settled::default() }));
        // The pull still waits at the leader, so the next message requests no rows.
        assert!(exchanges.may_be_parked());
        assert!(exchanges.make(8));
        assert_eq!(exchanges.sent[1].message.credit_rows, 0);
        assert_eq!(exchanges.answered(1), Some(Settled { asked: true, ..Settled::default() }));
        assert_eq!(exchanges.answered(1), None);
        assert!(!exchanges.has_report());
    }
}
