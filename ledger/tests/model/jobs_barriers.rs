//! Barriers of jobs in the model: which participants have arrived at a generation, which ones it waits for, and how
//! it ends.

use super::{Gen, Job, KEEP_ALIVE_MS, ParticipantPhase};
use crate::naive::{Model, Outcome};
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    BarrierMembers, BarrierSpec, JobName, JobRefusal, ParticipantDecl, Policy, Rejection, Reply,
};

impl Gen {
    pub(super) fn expected(&self) -> usize {
        self.waits_for.as_ref().map_or_else(|n| *n, Vec::len)
    }

    fn has(&self, name: &str) -> bool {
        self.arrived.iter().any(|a| a.0 == name)
    }

    fn open(&mut self, notes: &mut Vec<&'static str>) {
        if self.end.is_none() && self.arrived.len() == self.expected() {
            self.end = Some("open");
            notes.push("barrier opened");
        }
    }

    pub(super) fn without(&mut self, name: &str, why: &'static str, notes: &mut Vec<&'static str>) {
        let concerned = match &self.waits_for {
            Ok(names) => names.iter().any(|n| n == name),
            Err(_) => self.has(name),
        };
        if !concerned || self.end.is_some() {
            return;
        }
        if self.spec.policy == Policy::Fail || self.expected() == 1 {
            self.end = Some(why);
            notes.push("barrier failed");
            return;
        }
        notes.push("barrier shrunk");
        self.arrived.retain(|a| a.0 != name);
        match &mut self.waits_for {
            Ok(names) => names.retain(|n| n != name),
            Err(n) => *n -= 1,
        }
        self.open(notes);
    }
}

impl Model {
    pub(crate) fn arrive(
        &mut self,
        (name, barrier, number): (&JobName, &str, u64),
        incarnation: Option<SessionId>,
        decl: &ParticipantDecl,
        spec: BarrierSpec,
    ) -> Outcome {
        let who = match incarnation {
            None => decl.name.clone(),
            Some(incarnation) => {
                let whose = self.whose(incarnation).filter(|w| w.0 == *name);
                whose.ok_or(JobRefusal::ParticipantUnknown)?.1
            }
        };
        let none = Job::default();
        let job = self.jobs.get(name).unwrap_or(&none);
        let gens = job.barriers.get(barrier).cloned().unwrap_or_default();
        let not_of = Rejection::Job(JobRefusal::NotOfBarrier { name: who.clone() });
        let had = job.who.iter().find(|w| w.name == who).map(|w| w.incarnation);
        let (new, reply) = self.comes(decl.keep_alive_ms);
        let holds = had.unwrap_or(new);
        let is_at = |last: &Gen| {
            let state = if last.end.is_none() { "waits" } else { "has ended" };
            let (latest, state) = (last.number, state.to_owned());
            Rejection::Job(JobRefusal::BarrierGeneration { latest, state })
        };
        let mut begins = None;
        if let Some(g) = gens.iter().find(|g| g.number == number) {
            if g.spec != spec {
                return Err(JobRefusal::BarrierConflict.into());
            }
            let before = g.arrived.iter().any(|a| a.0 == who && a.1 != holds);
            if g.end.is_some() && before {
                let why = is_at(gens.last().expect("g at least"));
                self.note("arrival at what an earlier process arrived at");
                return Err(why);
            }
            let there = g.has(&who);
            let of_it = match &g.waits_for {
                Ok(names) => names.contains(&who),
                Err(n) => there || g.arrived.len() < *n,
            };
            if (g.end == Some("open") && !there) || (g.end.is_none() && !of_it) {
                return Err(not_of);
            }
        } else {
            if let Some(last) = gens.last()
                && (last.end.is_none() || last.number > number)
            {
                return Err(is_at(last));
            }
            let waits_for = match &spec.members {
                BarrierMembers::Count(n) => Err(*n as usize),
                BarrierMembers::Members(names) => Ok(names.clone()),
                BarrierMembers::Round => Ok(job.roster.clone()),
            };
            if waits_for.as_ref().is_ok_and(|names| !names.contains(&who)) {
                return Err(not_of);
            }
            let until = self.clock + spec.timeout_ms;
            begins = Some(Gen { number, spec, waits_for, arrived: Vec::new(), until, end: None });
        }
        let reply = match had {
            Some(incarnation) => Reply::Participant { incarnation, keep_alive_ms: KEEP_ALIVE_MS },
            None => reply,
        };
        self.on_job(name, |job, _, notes| {
            if had.is_none() {
                job.come(&who, (new, ParticipantPhase::Apart), notes);
            }
            job.count_arrival((barrier, number), (&who, holds), begins, notes);
        });
        Ok(reply)
    }

    pub(crate) fn abort(&mut self, name: &JobName, barrier: &str, number: u64) -> Outcome {
        let job = self.jobs.get(name).ok_or(JobRefusal::BarrierUnknown)?;
        let gens = job.barriers.get(barrier).ok_or(JobRefusal::BarrierUnknown)?;
        if number > 0 && !gens.iter().any(|g| g.number == number) {
            return Err(JobRefusal::BarrierUnknown.into());
        }
        self.on_job(name, |job, _, _| {
            for g in job.barriers.get_mut(barrier).into_iter().flatten() {
                if g.end.is_none() && (number == 0 || g.number == number) {
                    g.end = Some("aborted");
                }
            }
        });
        Ok(Reply::Ok)
    }
}

impl Job {
    /// A new process has the name: the earlier one's arrivals at waiting generations are void.
    pub(super) fn void(&mut self, name: &str, notes: &mut Vec<&'static str>) {
        for gens in self.barriers.values_mut() {
            let Some(g) = gens.last_mut().filter(|g| g.end.is_none() && g.has(name)) else {
                continue;
            };
            notes.push("arrival void");
            g.arrived.retain(|a| a.0 != name);
            if g.arrived.is_empty() {
                notes.push("generation begins anew");
                gens.pop();
            }
        }
        self.barriers.retain(|_, gens| !gens.is_empty());
    }

    /// Counts a valid arrival.
    fn count_arrival(
        &mut self,
        (barrier, number): (&str, u64),
        (who, incarnation): (&str, SessionId),
        begins: Option<Gen>,
        notes: &mut Vec<&'static str>,
    ) {
        // In a round, a member that left is missing just like a lost one: no other participant takes its rank.
        let mut gone = Vec::new();
        if let Some(Gen { waits_for: Ok(names), spec, .. }) = &begins {
            for name in names.iter().filter(|n| self.at(n).is_none()) {
                let last = self.gone.iter().rev().find(|g| g.0 == *name).map(|g| g.1);
                let of_round = spec.members == BarrierMembers::Round;
                if of_round {
                    notes.push("gone from a round before its barrier");
                }
                if last == Some("lost") || of_round {
                    gone.push((name.clone(), last.unwrap()));
                }
            }
        }
        let gens = self.barriers.entry(barrier.to_owned()).or_default();
        gens.extend(begins);
        if gens.len() > 2 {
            gens.remove(0);
        }
        let Some(g) = gens.iter_mut().find(|g| g.number == number && g.end.is_none()) else {
            return;
        };
        if g.has(who) {
            notes.push("arrived again");
            return;
        }
        g.arrived.push((who.to_owned(), incarnation));
        g.open(notes);
        for (name, why) in gone {
            g.without(&name, why, notes);
        }
    }
}
