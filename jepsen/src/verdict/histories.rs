//! Selects the checks for each workload's history.
//!
//! *Invariant:* the history of an unknown workload is judged by no check, which is a doubt.

use super::{
    barriers, batch_requests, continue_on_loss, create_races, generations, incarnations, rounds,
    rows, submissions,
};
use crate::judge::{Budget, Judgment, Verdict, Violated, judge};
use crate::models::{Cell, Item, Kv, KvStore, Model};
use crate::operations::{Operation, Outcome, READS};
use crate::replay::{out_of_order, replay};
use crate::value::Value;
use crate::workload::item::RUN_PREFIX;
use crate::workload::shards::CONTINUE_ON_LOSS_PREFIX;
use anyhow::Result;
use std::time::Duration;

/// The most unexplained objects to report; one is enough for the verdict.
const UNEXPLAINED_MAX: usize = 20;
/// The budget of a search.
const BUDGET: Budget = Budget { configurations: 50_000_000, time: Duration::from_secs(120) };

/// The findings on a history.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) violations: Vec<String>,
    pub(super) doubts: Vec<String>,
    pub(super) operations: usize,
    pub(super) unanswered: usize,
    pub(super) keys: usize,
    pub(super) configurations: u64,
    /// The objects that no order explains.
    pub(super) violated_keys: Vec<String>,
    /// Answers that were replayed by their positions.
    pub(super) replayed: u64,
    /// Answers whose positions were compared with time.
    pub(super) ordered: u64,
}

/// Judges the history of a workload.
///
/// # Errors
/// An operation that its model cannot understand.
pub(super) fn judged(workload: &str, operations: &[Operation]) -> Result<Findings> {
    let mut found = Findings::default();
    match workload {
        "item" | "steal" => {
            let (submissions, rows) = split(operations, RUN_PREFIX);
            found.search(&Item, &rows)?;
            found.replay(&Item, &rows)?;
            found.operations = operations.len();
            found.violations.extend(submissions::broken(&submissions));
        }
        "session" => {
            let registers = |operation: &&Operation| matches!(&*operation.f, "put" | "get");
            let registers: Vec<Operation> = operations.iter().filter(registers).cloned().collect();
            found.search(&Kv, &registers)?;
            found.replay(&Kv, &registers)?;
            found.operations = operations.len();
            found.violations.extend(create_races::broken(operations));
        }
        "run" => {
            let rows = rows::judged(operations);
            found.violations = rows.violations;
            found.doubts = rows.doubts;
            (found.operations, found.keys) = (operations.len(), rows.batches);
            let endings = batch_requests::judged(operations);
            found.violations.extend(endings.violations);
            for (what, count) in endings.counts {
                found.least(what, count, 1);
            }
        }
        "store" => found.stores(operations)?,
        "rendezvous" => {
            (found.violations, found.keys) = rounds::broken(operations);
            found.violations.extend(incarnations::broken(operations));
            found.operations = operations.len();
            found.want("rounds", 5);
        }
        "barrier" => {
            (found.violations, found.keys) = barriers::broken(operations);
            found.operations = operations.len();
            found.want("generations that were passed", 5);
        }
        "shards" => found.shards(operations),
        other => found.doubts.push(format!("nobody judges a workload {other:?}")),
    }
    found.without_positions(workload, operations);
    found.without_requests(operations);
    let (broken, ordered) = out_of_order(operations);
    found.violations.extend(broken);
    found.ordered = ordered;
    Ok(found)
}

/// Answers that need no position: a leader's memory of live participants, results of the real client, and refusals
/// that are recorded as answers.
fn has_no_position(workload: &str, f: &str, answer: &Value) -> bool {
    match (workload, f, answer) {
        ("rendezvous" | "barrier", "alive", _) => true,
        ("rendezvous", "join", Value::Bool(false)) => true,
        ("run", "submit" | "export" | "partial", _) => true,
        ("run", "described" | "delete", answer) => *answer == Value::text("none"),
        _ => false,
    }
}

/// Splits off the operations on keys with this prefix.
fn split(operations: &[Operation], prefix: &str) -> (Vec<Operation>, Vec<Operation>) {
    let theirs = |o: &Operation| o.key.as_deref().is_some_and(|key| key.starts_with(prefix));
    operations.iter().cloned().partition(theirs)
}

impl Findings {
    /// A doubt if fewer than `least` were judged.
    fn want(&mut self, what: &str, least: usize) {
        self.least(what, self.keys, least);
    }

    fn least(&mut self, what: &str, found: usize, least: usize) {
        if found < least {
            self.doubts.push(format!("{what}: {found}, at least {least} are needed"));
        }
    }

    /// Keys by themselves, and small stores as a whole.
    fn stores(&mut self, operations: &[Operation]) -> Result<()> {
        let (whole, single) = split(operations, "shelf-");
        self.search(&Cell, &single)?;
        let keys = self.keys;
        self.search(&KvStore, &whole)?;
        self.least("stores that were used as a whole", self.keys - keys, 3);
        self.replay(&Cell, &single)?;
        self.replay(&KvStore, &whole)?;
        Ok(())
    }

    /// Checks the job that recovers, and the one that continues.
    fn shards(&mut self, operations: &[Operation]) {
        let (continue_on_loss, recovers) = split(operations, CONTINUE_ON_LOSS_PREFIX);
        let generations = generations::judged(&recovers);
        (self.violations, self.keys) = (generations.violations, generations.claims);
        self.operations = operations.len();
        self.want("claims", 50);
        for (what, count) in generations.counts {
            self.least(what, count, generations::LEAST);
        }
        let continue_on_loss = continue_on_loss::judged(&continue_on_loss);
        self.violations.extend(continue_on_loss.violations);
        for (what, count, least) in continue_on_loss.counts {
            self.least(what, count, least);
        }
    }

    fn search<M: Model>(&mut self, model: &M, operations: &[Operation]) -> Result<()> {
        let search = judge(model, operations, BUDGET, true)?;
        self.take(search);
        Ok(())
    }

    fn replay<M: Model>(&mut self, model: &M, operations: &[Operation]) -> Result<()> {
        let replayed = replay(model, operations)?;
        self.violations.extend(replayed.violations);
        if replayed.unfinished > 0 {
            let left = replayed.unfinished;
            self.doubts.push(format!("the replay followed {left} items not to the end"));
        }
        self.replayed += replayed.positioned;
        Ok(())
    }

    /// An answer without a position escapes the replay and the check of the log order.
    fn without_positions(&mut self, workload: &str, operations: &[Operation]) {
        let nowhere = |o: &&Operation| match &o.outcome {
            Outcome::Answered { position: None, value, .. } => {
                !has_no_position(workload, &o.f, value)
            }
            _ => false,
        };
        let count = operations.iter().filter(nowhere).count();
        if count > 0 {
            self.doubts.push(format!("answers that name no place in the log: {count}"));
        }
    }

    /// Only its id shows that two copies of a write are one request. The real client uses its own ids.
    fn without_requests(&mut self, operations: &[Operation]) {
        let unnamed = |o: &&Operation| o.request.is_none() && !READS.contains(&&*o.f);
        let count = operations.iter().filter(unnamed).filter(|o| &*o.f != "submit").count();
        if count > 0 {
            self.doubts.push(format!("writes without a request id: {count}"));
        }
    }

    fn take(&mut self, search: Judgment) {
        if search.verdict == Verdict::Unknown {
            let limit = search.limit.unwrap_or("budget");
            self.doubts.push(format!("the search ended for its limit of {limit}"));
        }
        let more = search.violated.len().saturating_sub(UNEXPLAINED_MAX);
        for Violated { key, witness } in search.violated.into_iter().take(UNEXPLAINED_MAX) {
            let witness = witness.map_or_else(String::new, |witness| format!("\n{witness}"));
            let named = key.as_deref().unwrap_or("?");
            let what = format!("no order of its operations explains item {named}{witness}");
            self.violations.push(what);
            self.violated_keys.extend(key.map(|key| key.to_string()));
        }
        if more > 0 {
            self.violations
                .push(format!("and {more} more items that no order of operations explains"));
        }
        self.operations += search.operations;
        self.unanswered += search.unanswered;
        self.keys += search.keys;
        self.configurations += search.configurations;
    }
}

#[cfg(test)]
mod tests;
