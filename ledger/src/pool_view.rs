//! Work and capacity by model: what an autoscaler asks for.
//!
//! *Invariant:* reading changes nothing, and looks at no run and no slot: the sums are kept as these change (`tally.rs`). A
//! page costs the number of models with rows and of distinct lists of models that slots offer.
//! Absent on purpose: labels, namespaces and revisions. Where they matter, more than one pool shares a model's name.

use crate::ledger::Ledger;
use std::collections::BTreeMap;

/// What there is to do with one model, and who could do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Rows of running runs that no slot has.
    pub pending: u64,
    /// Rows of any run that slots have.
    pub running: u64,
    /// Slots that offer the model and take work.
    pub slots: u64,
    /// Of these, the ones that hold no row.
    pub idle: u64,
}

impl Ledger {
    /// What there is to do, by model: of every run that has rows to do, and of every model that a slot names. A slot
    /// that offers several models counts in each of them, one that offers any in all.
    pub fn pools(&self) -> BTreeMap<String, Pool> {
        self.tally.pools()
    }
}
