//! Work and capacity by model, for autoscalers, and the models themselves, for users.
//!
//! *Invariant:* reading changes nothing and visits no run and no slot: `tally.rs` keeps the sums as they change. A
//! page costs the number of models with rows plus the number of distinct lists of models that slots offer.
//! Absent: labels, namespaces and revisions of pools. If they matter, more than one pool shares a model's name.

use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// The work for one model, and the capacity for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Rows of running runs that no slot has.
    pub pending: u64,
    /// Rows of any run that slots have.
    pub running: u64,
    /// Slots that offer the model and take work.
    pub slots: u64,
    /// The slots among these that hold no row.
    pub idle: u64,
}

impl Ledger {
    /// The pools by model: of every run that has rows to do, and of every model that a slot names. A slot that offers
    /// several models counts in each of them, and a slot that offers any model counts in all.
    pub fn pools(&self) -> BTreeMap<String, Pool> {
        self.tally.pools()
    }

    /// The models that the slots of a namespace's workers name, without revisions, whether or not the slots take work.
    /// A slot that offers any model adds none.
    pub fn models_in(&self, namespace: &str) -> BTreeSet<String> {
        self.tally.models_in(namespace)
    }
}
