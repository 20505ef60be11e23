//! Work and capacity by model: what an autoscaler asks for.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to the runs and slots that there are.
//! Absent on purpose: labels, namespaces and revisions. Where they matter, more than one pool shares a model's name.

use crate::ledger::Ledger;
use crate::run::RunState;
use std::collections::{BTreeMap, BTreeSet};

/// What there is to do with one model, and who could do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Rows of running runs that nobody has.
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
        let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
        for run in self.runs.values() {
            let pending = if run.head.state == RunState::Running { run.pending() } else { 0 };
            let running = run.head.counts.running;
            if pending + running > 0 {
                let pool = pools.entry(run.head.spec.engine.model.clone()).or_default();
                pool.pending += pending;
                pool.running += running;
            }
        }
        let mut any = Pool::default();
        for (worker, at, slot) in self.slots() {
            let works =
                slot.offer.ineligible.is_empty() && self.takes_work(worker, at.slot.0 as usize);
            let (slots, idle) = (u64::from(works), u64::from(works && slot.rows_held == 0));
            let names: BTreeSet<&str> = slot.offer.models.iter().map(|m| model_of(m)).collect();
            let count = |pool: &mut Pool| {
                pool.slots += slots;
                pool.idle += idle;
            };
            if names.contains("*") {
                count(&mut any);
            } else {
                names.iter().for_each(|name| count(pools.entry((*name).to_owned()).or_default()));
            }
        }
        for pool in pools.values_mut() {
            pool.slots += any.slots;
            pool.idle += any.idle;
        }
        pools
    }
}

/// The model of an offer that may name one revision of it.
fn model_of(offer: &str) -> &str {
    offer.rsplit_once('@').map_or(offer, |(model, _)| model)
}
