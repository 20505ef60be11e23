//! How arrivals, departures and timeouts change a barrier's generation.
//!
//! *Invariant:* a repeated arrival counts once.
//! Absent: the operations (`arrive.rs`, `abort_barrier.rs`).

use crate::kernel::id::{JobNo, LedgerMs, SessionId};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::ledger::Ledger;
use crate::training::barrier::{
    Barrier, BarrierEnd, BarrierFailure, BarrierMembers, BarrierSpec, Generation,
};
use crate::training::job::{Departure, DepartureReason, Job, JobEffects, ParticipantDecl};
use std::collections::{BTreeMap, BTreeSet};

/// The participant that arrives.
pub(crate) struct Arriving {
    /// Its incarnation, if it has one.
    pub(crate) incarnation: Option<SessionId>,
    /// Identifies the participant if it has no incarnation.
    pub(crate) participant: ParticipantDecl,
}

/// The effect of an arrival.
pub(super) enum Arrival {
    /// It counts.
    Counts,
    /// It begins a generation of this size, with this set if the names are known.
    Begins(Option<BTreeSet<String>>, u32),
    /// The generation has ended already.
    Late,
}

fn gone_text(gone: &Departure) -> String {
    let how = if gone.why == DepartureReason::Lost { "is lost" } else { "has left" };
    format!("{} on {} {how}", gone.name, gone.host)
}

impl Job {
    /// The effect of the arrival of `name`, with its incarnation, at a generation.
    pub(super) fn arrival(
        &self,
        (barrier, generation): (&str, u64),
        (name, incarnation): (&str, SessionId),
        spec: &BarrierSpec,
    ) -> Result<Arrival, Rejection> {
        let not_of = || Rejection::Job(JobRefusal::NotOfBarrier { name: name.to_owned() });
        let at = self.barriers.get(barrier);
        let known = at.map(|b| &b.generations);
        let is_at = |last: &Generation| {
            let state = if last.end.is_none() { "waits" } else { "has ended" };
            let (latest, state) = (last.number, state.to_owned());
            Rejection::Job(JobRefusal::BarrierGeneration { latest, state })
        };
        if let Some(g) = known.and_then(|all| all.iter().find(|g| g.number == generation)) {
            if g.spec != *spec {
                return Err(JobRefusal::BarrierConflict.into());
            }
            if at.is_some_and(|b| g.end.is_some() && b.is_of_earlier(generation, name, incarnation))
            {
                return Err(known.and_then(|all| all.back()).map_or_else(not_of, is_at));
            }
            return match &g.end {
                Some(BarrierEnd::Open) if !g.arrived.contains_key(name) => Err(not_of()),
                Some(_) => Ok(Arrival::Late),
                None if g.waits_for(name) => Ok(Arrival::Counts),
                None => Err(not_of()),
            };
        }
        if let Some(last) = known.and_then(|all| all.back())
            && (last.end.is_none() || last.number > generation)
        {
            return Err(is_at(last));
        }
        let members: Option<BTreeSet<String>> = match &spec.members {
            BarrierMembers::Count(count) => return Ok(Arrival::Begins(None, *count)),
            BarrierMembers::Members(names) => Some(names.iter().cloned().collect()),
            BarrierMembers::Round => {
                let roster = self.head.rendezvous.roster.iter();
                Some(roster.map(|m| m.decl.name.clone()).collect())
            }
        };
        let members = members.filter(|m| m.contains(name)).ok_or_else(not_of)?;
        let expected = members.len() as u32;
        Ok(Arrival::Begins(Some(members), expected))
    }

    /// The barrier to drop so that another one fits: the longest unused one that does not wait. `None` if there is room.
    pub(super) fn barrier_to_forget(&self, barrier: &str) -> Result<Option<String>, Rejection> {
        if self.barriers.contains_key(barrier) || self.barriers.len() < limits::BARRIERS_MAX {
            return Ok(None);
        }
        let ended = self.barriers.iter().filter(|(_, b)| b.waiting().is_none());
        let oldest = ended.min_by_key(|(_, b)| b.used_at).map(|(name, _)| name.clone());
        let limit = || Rejection::Limit {
            what: "barriers of one job that wait".into(),
            max: limits::BARRIERS_MAX as u64,
        };
        oldest.map(Some).ok_or_else(limit)
    }

    pub(super) fn count_arrival(
        &mut self,
        (barrier, number): (&str, u64),
        (name, incarnation): (&str, SessionId),
        (spec, arrival): (BarrierSpec, Arrival),
        (now, effects): (LedgerMs, &mut JobEffects),
    ) {
        let at = self.barriers.entry(barrier.to_owned()).or_default();
        at.used_at = now;
        let begins = matches!(arrival, Arrival::Begins(..));
        if let Arrival::Begins(members, expected) = arrival {
            if at.generations.len() >= limits::GENERATIONS_MAX {
                at.generations.pop_front();
            }
            let until = LedgerMs(now.0.saturating_add(spec.timeout_ms));
            let (arrived, without) = (BTreeMap::new(), Vec::new());
            let end = None;
            at.generations.push_back(Generation {
                number,
                spec,
                members,
                expected,
                arrived,
                without,
                until,
                end,
            });
        }
        at.arrive(name, incarnation);
        effects.barriers.insert(barrier.to_owned());
        if begins {
            at.forget_incarnations();
            self.without_the_gone(barrier);
        }
        self.tell_end(barrier, effects);
    }

    /// Ends or shrinks the generation for participants of its set that were gone before the first arrival and have not come
    /// back.
    fn without_the_gone(&mut self, barrier: &str) {
        let Some(g) = self.barriers.get(barrier).and_then(Barrier::waiting) else { return };
        let gone = match g.spec.members {
            BarrierMembers::Round => self.gone_of_round(),
            BarrierMembers::Members(_) | BarrierMembers::Count(_) => self.lost_of(g),
        };
        if let Some(g) = self.barriers.get_mut(barrier).and_then(Barrier::waiting_mut) {
            for gone in &gone {
                g.without(gone);
            }
        }
    }

    /// A new process has taken a name: voids the earlier process's arrivals at waiting generations.
    pub(crate) fn void_arrivals(&mut self, name: &str, effects: &mut JobEffects) {
        self.barriers.retain(|barrier, at| {
            if at.void(name) {
                effects.barriers.insert(barrier.clone());
            }
            !at.generations.is_empty()
        });
    }

    /// Members of the round that are gone: lost, or left on their own.
    fn gone_of_round(&self) -> Vec<Departure> {
        let roster = self.head.rendezvous.roster.iter();
        let absent = roster.filter(|m| !self.head.participants.contains_key(&m.decl.name));
        absent.filter_map(|m| m.gone.clone()).collect()
    }

    /// The lost participants that a generation waits for by name. A participant that left may still come.
    fn lost_of(&self, g: &Generation) -> Vec<Departure> {
        let names: BTreeSet<&str> = self.head.departures.iter().map(|d| d.name.as_str()).collect();
        let missing = names.into_iter().filter(|name| {
            g.members.as_ref().is_some_and(|m| m.contains(*name)) && !g.arrived.contains_key(*name)
        });
        let gone = missing.filter_map(|name| self.departure(name));
        gone.filter(|d| d.why == DepartureReason::Lost).cloned().collect()
    }

    pub(super) fn tell_end(&self, barrier: &str, effects: &mut JobEffects) {
        let Some(g) = self.barriers.get(barrier).and_then(|b| b.generations.back()) else { return };
        let (what, why) = match &g.end {
            None => return,
            Some(BarrierEnd::Open) => ("barrier_opened", format!("{} passed", g.arrived.len())),
            Some(BarrierEnd::Failed(failure)) => (
                "barrier_failed",
                match failure {
                    BarrierFailure::Gone(gone) => gone_text(gone),
                    BarrierFailure::TimedOut => "timed out".into(),
                    BarrierFailure::Aborted { reason } => format!("aborted: {reason}"),
                },
            ),
        };
        effects.events.push((what, barrier.to_owned(), g.number, why));
    }

    /// Waiting barriers continue without a participant that is gone, or fail.
    pub(crate) fn barriers_without(&mut self, name: &str, effects: &mut JobEffects) {
        let Some(gone) = self.departure(name).cloned() else { return };
        self.change_waiting(effects, |g| {
            g.without(&gone);
        });
    }

    /// Barriers that have waited for too long fail.
    pub(crate) fn pass_barriers(&mut self, now: LedgerMs, effects: &mut JobEffects) {
        self.change_waiting(effects, |g| {
            if g.until <= now {
                g.end = Some(BarrierEnd::Failed(BarrierFailure::TimedOut));
            }
        });
    }

    fn change_waiting(&mut self, effects: &mut JobEffects, act: impl Fn(&mut Generation)) {
        let mut ended = Vec::new();
        for (name, barrier) in &mut self.barriers {
            let Some(g) = barrier.waiting_mut() else { continue };
            let before = g.expected;
            act(g);
            if g.end.is_some() {
                ended.push(name.clone());
            }
            if g.end.is_some() || g.expected != before {
                barrier.forget_incarnations();
                effects.barriers.insert(name.clone());
            }
        }
        ended.iter().for_each(|name| self.tell_end(name, effects));
    }
}

impl Ledger {
    /// The name under which a participant arrives.
    pub(super) fn who_arrives(
        &self,
        job: Option<JobNo>,
        who: &Arriving,
    ) -> Result<String, Rejection> {
        let Some(incarnation) = who.incarnation else {
            who.participant.check()?;
            return Ok(who.participant.name.clone());
        };
        match self.jobs.by_incarnation(incarnation) {
            Some((no, name)) if Some(*no) == job => Ok(name.clone()),
            _ => Err(JobRefusal::ParticipantUnknown.into()),
        }
    }
}
