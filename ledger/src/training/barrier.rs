//! Barriers of a job: a generation opens for all participants when every expected one has arrived, and never earlier.
//!
//! *Invariant:* a generation ends once, open or failed, and never changes afterward. A participant that has arrived
//! belongs to the generation's set and counts once while its incarnation is valid: a process does not pass by the
//! arrival of an earlier process with the same name. Only the latest generation of a barrier waits.
//!
//! Absent: notifying the participants (`coordinator`).

use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::Rejection;
use crate::machine::seeded::{Bug, seeded};
use crate::machine::version_gate::came_with;
use crate::training::job::{Departure, DepartureReason};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The participants that a generation waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierMembers {
    /// These participants.
    Members(Vec<String>),
    /// This many participants, with any names.
    Count(u32),
    /// The members of the round that is complete when the first participant arrives, including members that left
    /// since.
    Round,
}

/// What happens to a generation when a participant of its set is lost or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// It fails.
    Fail,
    /// It continues without the participant.
    Shrink,
}

/// The definition of a generation: the first arrival sets it, and all others must match it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierSpec {
    /// The participants that it waits for.
    pub members: BarrierMembers,
    /// What happens to it when one of them is gone.
    pub policy: Policy,
    /// How long it waits from the first arrival.
    pub timeout_ms: u64,
}

impl BarrierSpec {
    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let most = limits::PARTICIPANTS_MAX;
        let fits = |n: usize| (1..=most).contains(&n);
        let good = match &self.members {
            BarrierMembers::Members(names) => fits(names.len()),
            BarrierMembers::Count(count) => fits(*count as usize),
            BarrierMembers::Round => true,
        };
        if !good {
            return Err(Rejection::Invalid(format!("a barrier waits for 1 to {most}")));
        }
        if let BarrierMembers::Members(names) = &self.members {
            let distinct: BTreeSet<_> = names.iter().collect();
            if distinct.len() != names.len() {
                return Err(Rejection::Invalid("a barrier's members are named twice".into()));
            }
            names.iter().try_for_each(|name| names::check_name("participant's", name))?;
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
    /// A request aborted it.
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
    /// The definition from the first arrival.
    pub spec: BarrierSpec,
    /// The participants that it waits for, if their names are known, including those that have arrived.
    pub members: Option<BTreeSet<String>>,
    /// How many participants it waits for, including those that have arrived.
    pub expected: u32,
    /// The participants that have arrived, with their order of arrival.
    pub arrived: BTreeMap<String, u32>,
    /// The participants that it no longer waits for, because they are gone.
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

    /// The participants that have arrived, in order of arrival.
    pub fn in_order(&self) -> Vec<&str> {
        let mut arrived: Vec<_> = self.arrived.iter().collect();
        arrived.sort_by_key(|a| a.1);
        arrived.into_iter().map(|a| a.0.as_str()).collect()
    }

    /// The participants that have not arrived, if their names are known.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let members = self.members.iter().flatten();
        members.filter(|name| !self.arrived.contains_key(*name)).map(String::as_str)
    }

    /// Records that a participant has arrived.
    fn arrive(&mut self, name: &str) {
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

    /// One of the job's participants is gone. Returns whether that changes anything here.
    pub(crate) fn without(&mut self, gone: &Departure) -> bool {
        let concerned = match &self.members {
            Some(members) => members.contains(&gone.name),
            None => self.arrived.contains_key(&gone.name),
        };
        if self.end.is_some() || !concerned || gone.why == DepartureReason::Replaced {
            return false;
        }
        if self.spec.policy == Policy::Fail || self.expected == 1 {
            self.end = Some(BarrierEnd::Failed(BarrierFailure::Gone(gone.clone())));
            return true;
        }
        if let Some(members) = &mut self.members {
            members.remove(&gone.name);
        }
        self.take_back(&gone.name);
        self.expected -= 1;
        self.without.push(gone.name.clone());
        self.open_if_all();
        true
    }

    /// Takes an arrival back. Returns whether there was one.
    fn take_back(&mut self, name: &str) -> bool {
        let Some(order) = self.arrived.remove(name) else { return false };
        self.arrived.values_mut().filter(|o| **o > order).for_each(|o| *o -= 1);
        true
    }

    fn check(&self) -> Result<(), String> {
        let n = self.number;
        let arrived = self.arrived.len() as u32;
        if self.members.as_ref().is_some_and(|m| m.len() as u32 != self.expected) {
            return Err(format!("generation {n} expects {} of {:?}", self.expected, self.members));
        }
        if self.arrived.keys().any(|name| !self.waits_for(name)) {
            return Err(format!(
                "generation {n} contains a participant that does not belong to it"
            ));
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
    /// The incarnation of each arrival, by generation and name. It is a separate record; older images lack it, and then
    /// the arrival's owner is unknown.
    #[serde(skip)]
    pub(crate) incarnations: Incarnations,
}

/// Incarnations of arrivals, by generation and name.
pub(crate) type Incarnations = BTreeMap<u64, BTreeMap<String, SessionId>>;

impl Barrier {
    /// The generation that waits.
    pub(crate) fn waiting(&self) -> Option<&Generation> {
        self.generations.back().filter(|g| g.end.is_none())
    }

    pub(crate) fn waiting_mut(&mut self) -> Option<&mut Generation> {
        self.generations.back_mut().filter(|g| g.end.is_none())
    }

    /// Records that a participant has arrived at the waiting generation.
    pub(crate) fn arrive(&mut self, name: &str, incarnation: SessionId) {
        let Some(g) = self.waiting_mut() else { return };
        g.arrive(name);
        let number = g.number;
        self.incarnations.entry(number).or_default().insert(name.to_owned(), incarnation);
    }

    /// Whether an earlier process of the name has arrived there, and not the one with this incarnation.
    pub(crate) fn is_of_earlier(&self, number: u64, name: &str, incarnation: SessionId) -> bool {
        let theirs = self.incarnations.get(&number).and_then(|arrivals| arrivals.get(name));
        theirs.is_some_and(|theirs| *theirs < incarnation)
    }

    /// Voids the arrival under a name at the waiting generation, because a new process has the name. If no other
    /// arrival is left, the generation counts as not begun. Returns whether anything changed.
    pub(crate) fn void(&mut self, name: &str) -> bool {
        let Some(g) = self.waiting_mut() else { return false };
        if !g.take_back(name) {
            return false;
        }
        if g.arrived.is_empty() {
            self.generations.pop_back();
        }
        self.forget_incarnations();
        true
    }

    /// Drops the incarnations of arrivals that no longer exist.
    pub(crate) fn forget_incarnations(&mut self) {
        let generations = &self.generations;
        self.incarnations.retain(|number, arrivals| {
            let found = generations.iter().find(|g| g.number == *number);
            arrivals.retain(|name, _| found.is_some_and(|g| g.arrived.contains_key(name)));
            !arrivals.is_empty()
        });
    }

    /// When its timeout ends.
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
        for (number, arrivals) in &self.incarnations {
            let found = self.generations.iter().find(|g| g.number == *number);
            let there = |name| found.is_some_and(|g| g.arrived.contains_key(name));
            if arrivals.is_empty() || !arrivals.keys().all(there) {
                return Err(format!("has tickets of generation {number}: {arrivals:?}"));
            }
        }
        self.generations.iter().try_for_each(Generation::check)
    }
}

came_with!(BarrierMembers, BARRIER_MEMBERS, {
    1: BarrierMembers::Members(_) | BarrierMembers::Count(_) | BarrierMembers::Round,
});

came_with!(Policy, POLICIES, {
    1: Policy::Fail | Policy::Shrink,
});
