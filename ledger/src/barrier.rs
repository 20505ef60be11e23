//! Barriers of a job: a generation opens when everybody whom it waits for has arrived, and for
//! nobody before.
//!
//! *Invariant:* a generation ends once, open or failed, and never changes after. Whoever has arrived
//! is of its set and counts once. Only the latest generation of a barrier waits.
//!
//! Deliberately absent: who is told and when (`coordinator`).

use crate::id::LedgerMs;
use crate::job::{Departed, Departure};
use crate::limits;
use crate::reply::Rejection;
use crate::seeded::{Bug, seeded};
use crate::spec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Whom a generation waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Among {
    /// These participants.
    Members(Vec<String>),
    /// So many, whoever they are.
    Count(u32),
    /// The members of the job's round that is complete when the first of them arrives, those that are gone since
    /// included.
    Round,
}

/// What becomes of a generation when one of its set is lost or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// It fails.
    Fail,
    /// It goes on without.
    Shrink,
}

/// What the first who arrives says of a generation, and all others have to say too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierSpec {
    /// Whom it waits for.
    pub among: Among,
    /// What becomes of it when one of them is gone.
    pub policy: Policy,
    /// For how long it waits from the first arrival.
    pub timeout_ms: u64,
}

impl BarrierSpec {
    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let most = limits::PARTICIPANTS_MAX;
        let fits = |n: usize| (1..=most).contains(&n);
        let good = match &self.among {
            Among::Members(names) => fits(names.len()),
            Among::Count(count) => fits(*count as usize),
            Among::Round => true,
        };
        if !good {
            return Err(Rejection::Invalid(format!("a barrier waits for 1 to {most}")));
        }
        if let Among::Members(names) = &self.among {
            let distinct: BTreeSet<_> = names.iter().collect();
            if distinct.len() != names.len() {
                return Err(Rejection::Invalid("a barrier's members are named twice".into()));
            }
            names.iter().try_for_each(|name| spec::check_name("participant's", name))?;
        }
        match (1..=limits::JOB_TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            true => Ok(()),
            false => {
                let most = limits::JOB_TIMEOUT_MS_MAX;
                Err(Rejection::Invalid(format!("a barrier's time-out has to be 1 to {most} ms")))
            }
        }
    }
}

/// Why a generation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierFailure {
    /// One of its set is gone.
    Gone(Departure),
    /// Not all came in time.
    TimedOut,
    /// Somebody wanted it so.
    Aborted {
        /// Why.
        reason: String,
    },
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierEnd {
    /// All have arrived.
    Open,
    /// They never will.
    Failed(BarrierFailure),
}

/// One use of a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Which.
    pub number: u64,
    /// What the first who arrived said of it.
    pub spec: BarrierSpec,
    /// Whom it waits for, where that is known, those who have arrived included.
    pub members: Option<BTreeSet<String>>,
    /// For how many it waits, those who have arrived included.
    pub expected: u32,
    /// Who has arrived, and as the how-manieth.
    pub arrived: BTreeMap<String, u32>,
    /// Whom it shrank by.
    pub without: Vec<String>,
    /// It waits no longer.
    pub until: LedgerMs,
    /// How it ended.
    pub end: Option<BarrierEnd>,
}

impl Generation {
    /// Whether it waits for that participant.
    pub(crate) fn waits_for(&self, name: &str) -> bool {
        match &self.members {
            Some(members) => members.contains(name),
            None => self.arrived.contains_key(name) || (self.arrived.len() as u32) < self.expected,
        }
    }

    /// Who has arrived, in that order.
    pub fn in_order(&self) -> Vec<&str> {
        let mut arrived: Vec<_> = self.arrived.iter().collect();
        arrived.sort_by_key(|a| a.1);
        arrived.into_iter().map(|a| a.0.as_str()).collect()
    }

    /// Who has not arrived, as far as that is known.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let members = self.members.iter().flatten();
        members.filter(|name| !self.arrived.contains_key(*name)).map(String::as_str)
    }

    /// Somebody has arrived.
    pub(crate) fn arrive(&mut self, name: &str) {
        let order = self.arrived.len() as u32;
        self.arrived.entry(name.to_owned()).or_insert(order);
        self.open_if_all();
    }

    fn open_if_all(&mut self) {
        let early = seeded(Bug::BarrierOpensEarly) && self.expected > 1;
        let wanted = self.expected - u32::from(early);
        if self.end.is_none() && self.arrived.len() as u32 >= wanted {
            self.end = Some(BarrierEnd::Open);
        }
    }

    /// One of the job's participants is gone; whether that changes anything here.
    pub(crate) fn without(&mut self, gone: &Departure) -> bool {
        let concerned = match &self.members {
            Some(members) => members.contains(&gone.name),
            None => self.arrived.contains_key(&gone.name),
        };
        if self.end.is_some() || !concerned || gone.why == Departed::Replaced {
            return false;
        }
        if self.spec.policy == Policy::Fail || self.expected == 1 {
            self.end = Some(BarrierEnd::Failed(BarrierFailure::Gone(gone.clone())));
            return true;
        }
        if let Some(members) = &mut self.members {
            members.remove(&gone.name);
        }
        if let Some(order) = self.arrived.remove(&gone.name) {
            self.arrived.values_mut().filter(|o| **o > order).for_each(|o| *o -= 1);
        }
        self.expected -= 1;
        self.without.push(gone.name.clone());
        self.open_if_all();
        true
    }

    fn check(&self) -> Result<(), String> {
        let n = self.number;
        let arrived = self.arrived.len() as u32;
        if self.members.as_ref().is_some_and(|m| m.len() as u32 != self.expected) {
            return Err(format!("generation {n} expects {} of {:?}", self.expected, self.members));
        }
        if self.arrived.keys().any(|name| !self.waits_for(name)) {
            return Err(format!("generation {n} has somebody who is not of it"));
        }
        let open = self.end == Some(BarrierEnd::Open);
        if arrived > self.expected || self.expected == 0 || open != (arrived == self.expected) {
            return Err(format!("generation {n}: {arrived} of {}: {:?}", self.expected, self.end));
        }
        let orders: BTreeSet<u32> = self.arrived.values().copied().collect();
        match orders.into_iter().eq(0..arrived) {
            true => Ok(()),
            false => Err(format!("generation {n}: arrivals {:?}", self.arrived)),
        }
    }
}

/// One barrier: the latest generations, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Barrier {
    pub(crate) generations: VecDeque<Generation>,
    /// When it was last used.
    pub(crate) used_at: LedgerMs,
}

impl Barrier {
    /// The generation that waits.
    pub(crate) fn waiting(&self) -> Option<&Generation> {
        self.generations.back().filter(|g| g.end.is_none())
    }

    pub(crate) fn waiting_mut(&mut self) -> Option<&mut Generation> {
        self.generations.back_mut().filter(|g| g.end.is_none())
    }

    /// When it has waited for too long.
    pub(crate) fn until(&self) -> Option<LedgerMs> {
        self.waiting().map(|g| g.until)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let numbers: Vec<u64> = self.generations.iter().map(|g| g.number).collect();
        if numbers.is_empty() || numbers.len() > limits::GENERATIONS_MAX {
            return Err(format!("has the generations {numbers:?}"));
        }
        if !numbers.is_sorted_by(|a, b| a < b) {
            return Err(format!("generations {numbers:?} are not ascending"));
        }
        let ended = self.generations.iter().rev().skip(1).all(|g| g.end.is_some());
        if !ended {
            return Err("waits for two generations".into());
        }
        self.generations.iter().try_for_each(Generation::check)
    }
}
