//! What a raw worker reports of its rows in one exchange: results, failures, nacks, and rows that it yields to
//! others.
//!
//! *Invariant:* each row in an exchange has an operation, invoked before the exchange goes out.

use super::super::item::Style;
use super::super::submitter::{NAMESPACE, hex};
use super::{Lease, SentExchange, Worker};
use crate::events::EventKind;
use rand::Rng;
use rollout_proto::v1;
use serde_json::json;

/// What an exchange reports of a row.
#[derive(Clone, Copy)]
enum Settlement {
    Complete,
    /// `true`: failed for good.
    Fail(bool),
    Nack,
    Yield,
    Keep,
}

/// How many rows an exchange asks for, if it asks. `kept`: rows that the worker goes on holding. `reported`: rows that
/// the exchange reports. The leader answers a pull without reports only when it has rows for the slot, never if the slot
/// is cordoned, and until then the worker sends nothing else. So a worker that keeps rows does not send such a pull:
/// nothing would become of these rows.
fn credit_rows(style: Style, kept: usize, reported: usize) -> Option<std::ops::Range<u32>> {
    match style {
        Style::Item if kept == 0 || kept < 3 && reported > 0 => Some(1..3),
        Style::Steal if kept == 0 => Some(6..12),
        Style::Item | Style::Steal => None,
    }
}

impl Worker {
    /// The next exchange: it decides most rows that the worker holds.
    pub(super) fn next(&mut self) -> v1::Exchange {
        self.seq += 1;
        let (slot, seq) = (0, self.seq);
        let mut exchange = v1::Exchange { slot, seq, ..v1::Exchange::default() };
        let id = format!("{}/{}", self.session, seq);
        self.parts += 1;
        let unique = format!("{}-{}-{}", self.instance, self.name, self.parts);
        let digest = *blake3::hash(unique.as_bytes()).as_bytes();
        let mut ops = Vec::new();
        let given_up = self.give_up(&mut exchange);
        let late = self.late_results();
        let held = std::mem::take(&mut self.held);
        for (settlement, lease) in self.settlements(held, given_up, late) {
            let attempt = lease.attempt;
            let (f, value) = match settlement {
                Settlement::Complete => {
                    ("complete", json!([attempt, hex(&digest)[..16].to_owned()]))
                }
                Settlement::Fail(last) => ("fail", json!([attempt, last])),
                Settlement::Nack => ("nack", json!([attempt])),
                Settlement::Yield => ("yield", json!([attempt])),
                Settlement::Keep => {
                    self.held.push(lease);
                    continue;
                }
            };
            self.shared.recorder.event(EventKind::Settles {
                session: self.session,
                key: lease.key(),
                attempt,
            });
            let op = self.shared.recorder.invoke(f, lease.key(), value.clone(), Some(id.clone()));
            self.add(&mut exchange, &lease, f, value[1] == json!(true), &digest);
            ops.push((lease, op));
        }
        let asked = credit_rows(self.shared.style, self.held.len(), ops.len());
        exchange.credit_rows = asked.map_or(0, |rows| self.rng.random_range(rows));
        let at_ns = self.shared.recorder.now_ns();
        self.sent = Some(SentExchange { exchange: exchange.clone(), ops, at_ns, copies: 1 });
        exchange
    }

    /// Answers the leader's steal request with the rows that it would start last.
    fn give_up(&mut self, exchange: &mut v1::Exchange) -> Vec<Lease> {
        let Some(request) = self.yield_request.take() else { return Vec::new() };
        exchange.r#yield = request.id;
        let mut given_up = Vec::new();
        let mut at = self.held.len();
        while at > 0 && given_up.len() < request.rows_max as usize {
            at -= 1;
            if !self.held[at].started && request.runs.contains(&self.held[at].run) {
                given_up.push(self.held.remove(at));
            }
        }
        self.ghosts.extend(given_up.iter().cloned());
        given_up
    }

    /// Finishes some of the rows that it yielded in earlier exchanges.
    fn late_results(&mut self) -> Vec<Lease> {
        let asking = self.ghosts.len().saturating_sub(16);
        self.ghosts.drain(..asking);
        let mut late = Vec::new();
        for lease in std::mem::take(&mut self.ghosts) {
            let rests = self.rng.random_bool(0.6);
            if rests { self.ghosts.push(lease) } else { late.push(lease) }
        }
        late
    }

    /// What the next exchange reports of every row that it has or had.
    fn settlements(
        &mut self,
        held: Vec<Lease>,
        given_up: Vec<Lease>,
        late: Vec<Lease>,
    ) -> Vec<(Settlement, Lease)> {
        let mut settlements = Vec::new();
        // A row yielded in this exchange is late only in a later one.
        let now = |lease: &Lease| given_up.contains(lease);
        let (again, late): (Vec<_>, Vec<_>) = late.into_iter().partition(now);
        self.ghosts.extend(again);
        for lease in held {
            let may_fail = self.shared.run(lease.run).is_none_or(|run| !run.duplicates);
            let chance = self.rng.random_range(0..100);
            let settlement = match self.shared.style {
                _ if self.shared.dutiful() => Settlement::Complete,
                Style::Item => match chance {
                    0..30 => Settlement::Complete,
                    30..34 => Settlement::Fail(true),
                    34..38 => Settlement::Fail(false),
                    38..80 => Settlement::Nack,
                    _ => Settlement::Keep,
                },
                Style::Steal if !lease.started => Settlement::Keep,
                Style::Steal => match chance {
                    0..30 => Settlement::Complete,
                    30..33 if may_fail => Settlement::Fail(false),
                    33..38 => Settlement::Nack,
                    _ => Settlement::Keep,
                },
            };
            settlements.push((settlement, lease));
        }
        settlements.extend(late.into_iter().map(|lease| (Settlement::Complete, lease)));
        settlements.extend(given_up.into_iter().map(|lease| (Settlement::Yield, lease)));
        settlements
    }

    fn add(&self, to: &mut v1::Exchange, lease: &Lease, f: &str, last: bool, digest: &[u8; 32]) {
        match f {
            "complete" => {
                let at = to.parts.iter().position(|part| part.run == lease.run);
                let at = at.unwrap_or_else(|| {
                    let run = self.shared.run(lease.run);
                    let folder = run.map_or_else(String::new, |run| run.folder);
                    let part = v1::BlobRef {
                        key: format!("runs/{NAMESPACE}/{folder}/parts/{}", hex(digest)),
                        digest: digest.to_vec().into(),
                        bytes: 100,
                    };
                    let (run, part) = (lease.run, Some(part));
                    to.parts.push(v1::PartResult { run, part, ..v1::PartResult::default() });
                    to.parts.len() - 1
                });
                to.parts[at].sets.push(lease.held());
            }
            "fail" => {
                let class = match last {
                    true => v1::FailureClass::InvalidRow,
                    false => v1::FailureClass::Transient,
                };
                to.failures.push(v1::FailedAttempt {
                    run: lease.run,
                    attempt: lease.attempt,
                    rows: lease.held().rows,
                    class: class.into(),
                    code: "jepsen".into(),
                    message: "made to fail".into(),
                    evidence: None,
                });
            }
            "yield" => to.yielded.push(lease.held()),
            _ => to.nacks.push(lease.held()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_that_keeps_rows_and_reports_none_asks_for_none() {
        for style in [Style::Item, Style::Steal] {
            assert!(credit_rows(style, 0, 0).is_some());
            assert!((1..4).all(|kept| credit_rows(style, kept, 0).is_none()));
        }
        assert!(credit_rows(Style::Item, 2, 1).is_some(), "a worker gets rows while it has others");
    }
}
