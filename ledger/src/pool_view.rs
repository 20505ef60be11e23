//! Work and capacity by model: what an autoscaler asks for.
//!
//! *Invariant:* reading changes nothing. Texts are compared once for each distinct offer of a worker, and names are told
//! apart once for each distinct list of models; of a slot, no more is looked at than whether it takes work and holds any.
//! Nothing is counted as slots change: every claim would pay for that, and a page is read every few seconds.
//! Absent on purpose: labels, namespaces and revisions. Where they matter, more than one pool shares a model's name.

use crate::eligibility::OfferNo;
use crate::ledger::Ledger;
use crate::run::RunState;
use crate::worker::WorkerState;
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
        for (models, Free { slots, idle }) in self.free_slots() {
            let names: BTreeSet<&str> = models.iter().map(|m| model_of(m)).collect();
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

    /// The slots that take work, by the models that they offer. Lists of models are there also where none does.
    fn free_slots(&self) -> BTreeMap<&[String], Free> {
        let mut all: BTreeMap<&[String], Free> = BTreeMap::new();
        // Of one worker, whose slots offer few different things.
        let mut own: Vec<(OfferNo, &[String], Free)> = Vec::new();
        for worker in self.workers.values() {
            let namespace = self.namespaces.get(&worker.namespace);
            let cordoned = namespace.is_some_and(|space| space.cordons.contains_key(&worker.name));
            let usual = worker.state == WorkerState::Ready && !cordoned;
            for (at, slot) in worker.slots.iter().enumerate() {
                let takes = match usual {
                    true => slot.trial.is_none() && slot.cordon.is_none(),
                    false => self.takes_work(worker, at),
                };
                let works = takes && slot.offer.ineligible.is_empty();
                let place = own.iter().position(|known| known.0 == slot.offer_no);
                let place = place.unwrap_or_else(|| {
                    own.push((slot.offer_no, &slot.offer.models, Free::default()));
                    own.len() - 1
                });
                own[place].2.slots += u64::from(works);
                own[place].2.idle += u64::from(works && slot.rows_held == 0);
            }
            for (_, models, free) in own.drain(..) {
                let sum = all.entry(models).or_default();
                sum.slots += free.slots;
                sum.idle += free.idle;
            }
        }
        all
    }
}

/// Slots that take work, and those of them that hold no row.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    slots: u64,
    idle: u64,
}

/// The model of an offer that may name one revision of it.
fn model_of(offer: &str) -> &str {
    offer.rsplit_once('@').map_or(offer, |(model, _)| model)
}
