//! Reads the leader's answer to an exchange: which rows are no longer the worker's, and which rows it gets.
//!
//! *Invariant:* an operation's log position follows from the position of the exchange and from its contents.

use super::{Lease, Worker};
use crate::events::EventKind;
use crate::history::LogPosition;
use crate::recorder::By;
use rollout_proto::v1;
use serde_json::{Value, json};
use v1::Exchange;

/// The log positions of an exchange's operations, starting at `first`: the parts, the failures, all nacks, all
/// yields, the pull.
struct Layout<'a> {
    first: LogPosition,
    exchange: &'a v1::Exchange,
}

impl Layout<'_> {
    fn behind(&self, before: usize) -> LogPosition {
        let position = self.first.position + u32::try_from(before).unwrap_or_default();
        LogPosition { position, ..self.first }
    }

    fn of(&self, f: &str, lease: &Lease) -> LogPosition {
        let Exchange { parts, failures, .. } = self.exchange;
        match f {
            "complete" => {
                let mine = |part: &v1::PartResult| part.run == lease.run;
                self.behind(parts.iter().position(mine).unwrap_or_default())
            }
            "fail" => {
                let mine = |one: &v1::FailedAttempt| {
                    one.attempt == lease.attempt && one.rows == lease.held().rows
                };
                self.behind(parts.len() + failures.iter().position(mine).unwrap_or_default())
            }
            "yield" => self.behind(self.results()),
            _ => self.behind(parts.len() + failures.len()),
        }
    }

    /// The number of operations for parts, failures and nacks.
    fn results(&self) -> usize {
        let Exchange { parts, failures, nacks, .. } = self.exchange;
        parts.len() + failures.len() + usize::from(!nacks.is_empty())
    }

    fn pull(&self) -> LogPosition {
        self.behind(self.results() + usize::from(!self.exchange.yielded.is_empty()))
    }
}

impl Worker {
    pub(super) fn answered(&mut self, answer: v1::ExchangeAnswer, by: By) {
        let Some(sent) = self.sent.take_if(|sent| sent.exchange.seq == answer.seq) else { return };
        let recorder = &self.shared.recorder;
        let at = answer.at.map(|at| LogPosition { index: at.index, position: at.position });
        let layout = at.map(|first| Layout { first, exchange: &sent.exchange });
        let repeated = sent.copies > 1;
        for (lease, op) in &sent.ops {
            let refused = answer.refused.iter().any(|refused| {
                refused.run == lease.run
                    && refused.attempt == lease.attempt
                    && refused.rows.iter().flat_map(v1::Rows::iter).any(|row| row == lease.row)
            });
            if refused && repeated && op.f() == "fail" {
                // An earlier copy may have been accepted, which makes this one late.
                recorder.info(op, "a repeat was refused".to_owned());
                continue;
            }
            let at = layout.as_ref().map(|layout| layout.of(op.f(), lease));
            recorder.ok(op, Value::Bool(!refused), By { at, repeated, ..by.clone() });
        }
        let id = format!("{}/{}", self.session, answer.seq);
        for grant in answer.grants {
            for row in grant.rows.iter().flat_map(v1::Rows::iter) {
                let lease = Lease { run: grant.run, attempt: grant.attempt, row, started: false };
                let (key, id) = (lease.key(), Some(id.clone()));
                // Another attempt may exist and finish first.
                let duplicates = self.shared.run(lease.run).is_some_and(|run| run.duplicates);
                let f = if duplicates { "lease" } else { "claim" };
                if !duplicates && !repeated {
                    let (session, attempt) = (self.session, grant.attempt);
                    let (epoch, asked_ns) = (by.epoch.unwrap_or_default(), sent.at_ns);
                    let key = lease.key();
                    recorder.event(EventKind::Granted { session, key, attempt, epoch, asked_ns });
                }
                let op = recorder.invoke_at(sent.at_ns, f, key, Value::Null, id);
                let at = layout.as_ref().map(Layout::pull);
                recorder.ok(&op, json!(grant.attempt), By { at, repeated, ..by.clone() });
                self.held.push(lease);
            }
        }
    }
}
