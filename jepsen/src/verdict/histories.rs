//! Which judges a workload's history has.
//!
//! *Invariant:* a history of a workload that nobody knows is judged by none, which is a doubt.

use super::{duels, lineages, passages, rounds, rows};
use crate::judge::{Budget, Judgement, Verdict, judge};
use crate::models::{Cell, Item, Kv, Model};
use crate::operations::Operation;
use crate::replay::replay;
use anyhow::Result;
use std::time::Duration;

/// What a search may cost.
const BUDGET: Budget = Budget { configurations: 50_000_000, time: Duration::from_secs(120) };

/// What the judges of a history found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) violations: Vec<String>,
    pub(super) doubts: Vec<String>,
    pub(super) operations: usize,
    pub(super) unanswered: usize,
    pub(super) keys: usize,
    pub(super) configurations: u64,
    pub(super) violated_key: Option<String>,
    pub(super) replayed: u64,
}

/// Judges the history of a workload.
///
/// # Errors
/// An operation that its model cannot understand.
pub(super) fn judged(workload: &str, operations: &[Operation]) -> Result<Found> {
    let mut found = Found::default();
    match workload {
        "item" | "steal" => {
            found.search(&Item, operations)?;
            let replayed = replay(&Item, operations)?;
            found.violations.extend(replayed.violations);
            if replayed.unfinished > 0 {
                let left = replayed.unfinished;
                found.doubts.push(format!("the replay followed {left} items not to the end"));
            }
            found.replayed = replayed.placed;
        }
        "session" => {
            let registers = |operation: &&Operation| matches!(&*operation.f, "put" | "get");
            let registers: Vec<Operation> = operations.iter().filter(registers).cloned().collect();
            found.search(&Kv, &registers)?;
            found.operations = operations.len();
            found.violations.extend(duels::broken(operations));
        }
        "run" => {
            let rows = rows::judged(operations);
            found.violations = rows.violations;
            found.doubts = rows.doubts;
            (found.operations, found.keys) = (operations.len(), rows.batches);
        }
        "store" => found.search(&Cell, operations)?,
        "rendezvous" => {
            (found.violations, found.keys) = rounds::broken(operations);
            found.operations = operations.len();
            found.want("rounds", 5);
        }
        "barrier" => {
            (found.violations, found.keys) = passages::broken(operations);
            found.operations = operations.len();
            found.want("generations that were passed", 5);
        }
        "shards" => {
            let lineages = lineages::judged(operations);
            (found.violations, found.keys) = (lineages.violations, lineages.claims);
            found.operations = operations.len();
            found.want("claims", 50);
            for (what, count) in lineages.counts {
                if count < lineages::LEAST {
                    let least = lineages::LEAST;
                    found.doubts.push(format!("{what}: {count}, at least {least} are needed"));
                }
            }
        }
        other => found.doubts.push(format!("nobody judges a workload {other:?}")),
    }
    Ok(found)
}

impl Found {
    /// Fewer of what was judged mean nothing.
    fn want(&mut self, what: &str, least: usize) {
        let keys = self.keys;
        if keys < least {
            self.doubts.push(format!("{what}: {keys}, at least {least} are needed"));
        }
    }

    fn search<M: Model>(&mut self, model: &M, operations: &[Operation]) -> Result<()> {
        let search = judge(model, operations, BUDGET, true)?;
        self.take(search);
        Ok(())
    }

    fn take(&mut self, search: Judgement) {
        let violated = search.violated.as_ref();
        self.violated_key =
            violated.and_then(|violated| violated.key.as_deref().map(str::to_owned));
        match search.verdict {
            Verdict::Linearizable => {}
            Verdict::Violation => {
                let witness = violated.and_then(|violated| violated.witness.as_ref());
                let witness = witness.map_or_else(String::new, |witness| format!("\n{witness}"));
                let key = self.violated_key.as_deref().unwrap_or("?");
                let what = format!("no order of its operations explains item {key}{witness}");
                self.violations.push(what);
            }
            Verdict::Unknown => {
                let limit = search.limit.unwrap_or("budget");
                self.doubts.push(format!("the search ended for its limit of {limit}"));
            }
        }
        self.operations = search.operations;
        self.unanswered = search.unanswered;
        self.keys = search.keys;
        self.configurations = search.configurations;
    }
}
