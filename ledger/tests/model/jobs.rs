//! Training jobs: a list of participants in the order in which they came, each with a word for where it
//! stands, and barriers as lists of names.

use crate::naive::{Model, Outcome};
use rollout_ledger::id::{LedgerMs, SessionId};
use rollout_ledger::{
    Among, BarrierEnd, BarrierFailure, BarrierSpec, JobName, Ledger, ParticipantDecl, Policy,
    Rejection, Reply, Standing, StoreName, Terms,
};
use std::collections::BTreeMap;

/// What all participants of the stories ask for.
pub(crate) const KEEP_ALIVE_MS: u64 = 15_000;

/// Where a participant stands, and until when it waits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Apart,
    Joining(u64),
    Late(u64),
    Redundant,
    Member(u32),
    TimedOut,
    Dismissed(bool),
}

#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) ticket: SessionId,
    pub(crate) place: Place,
}

#[derive(Clone, Debug)]
pub(crate) struct Gen {
    pub(crate) number: u64,
    spec: BarrierSpec,
    /// Names, or how many.
    waits_for: Result<Vec<String>, usize>,
    arrived: Vec<String>,
    until: u64,
    /// How it ended.
    pub(crate) end: Option<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) who: Vec<Who>,
    terms: Option<Terms>,
    rounds_over: u64,
    complete: bool,
    closed: bool,
    last_call: Option<u64>,
    roster: Vec<String>,
    gone: Vec<(String, &'static str)>,
    pub(crate) barriers: BTreeMap<String, Vec<Gen>>,
}

impl Job {
    fn at(&self, name: &str) -> Option<usize> {
        self.who.iter().position(|w| w.name == name)
    }

    fn count(&self, which: fn(Place) -> bool) -> usize {
        self.who.iter().filter(|w| which(w.place)).count()
    }

    fn members(&self) -> usize {
        self.count(|p| matches!(p, Place::Member(_)))
    }

    fn joining(&self) -> usize {
        self.count(|p| matches!(p, Place::Joining(_)))
    }

    fn settle(&mut self, now: u64, notes: &mut Vec<&'static str>) {
        let Some(terms) = self.terms.clone() else { return };
        let max = terms.max as usize;
        if self.complete && self.members() == 0 {
            notes.push("round ended");
            self.complete = false;
            self.rounds_over += 1;
            self.roster.clear();
        }
        if self.complete && self.members() < max {
            for who in &mut self.who {
                if who.place == Place::Redundant {
                    who.place = Place::Late(now + terms.join_timeout_ms);
                }
            }
        }
        if self.complete {
            return;
        }
        // First who was late, then who was one too many, each in the order in which they came.
        for redundant in [false, true] {
            for i in 0..self.who.len() {
                let until = match self.who[i].place {
                    Place::Late(until) if !redundant => until,
                    Place::Redundant if redundant => now + terms.join_timeout_ms,
                    _ => continue,
                };
                if self.joining() < max {
                    self.who[i].place = Place::Joining(until);
                }
            }
        }
        if self.joining() == max {
            self.complete_round(notes);
        } else if self.joining() < terms.min as usize {
            self.last_call = None;
        } else if self.last_call.is_none() {
            self.last_call = Some(now + terms.last_call_ms);
        }
    }

    fn complete_round(&mut self, notes: &mut Vec<&'static str>) {
        notes.push("round completed");
        let mut names: Vec<String> = Vec::new();
        for who in &self.who {
            if matches!(who.place, Place::Joining(_)) {
                names.push(who.name.clone());
            }
        }
        names.sort();
        for who in &mut self.who {
            who.place = match who.place {
                Place::Joining(_) => {
                    Place::Member(names.iter().position(|n| *n == who.name).unwrap() as u32)
                }
                Place::Late(_) => Place::Redundant,
                other => other,
            };
        }
        (self.roster, self.complete, self.last_call) = (names, true, None);
    }

    fn come(&mut self, name: &str, ticket: SessionId, place: Place) {
        if let Some(at) = self.at(name) {
            self.who.remove(at);
            self.gone.push((name.to_owned(), "replaced"));
        }
        self.who.push(Who { name: name.to_owned(), ticket, place });
    }

    /// Where a barrier ends by somebody's going.
    fn go(&mut self, name: &str, why: &'static str, notes: &mut Vec<&'static str>) {
        let Some(at) = self.at(name) else { return };
        self.who.remove(at);
        self.gone.push((name.to_owned(), why));
        for gens in self.barriers.values_mut() {
            for g in gens.iter_mut().filter(|g| g.end.is_none()) {
                g.without(name, why, notes);
            }
        }
    }
}

impl Gen {
    fn expected(&self) -> usize {
        self.waits_for.as_ref().map_or_else(|n| *n, Vec::len)
    }

    fn open(&mut self, notes: &mut Vec<&'static str>) {
        if self.end.is_none() && self.arrived.len() == self.expected() {
            self.end = Some("open");
            notes.push("barrier opened");
        }
    }

    fn without(&mut self, name: &str, why: &'static str, notes: &mut Vec<&'static str>) {
        let concerned = match &self.waits_for {
            Ok(names) => names.iter().any(|n| n == name),
            Err(_) => self.arrived.iter().any(|n| n == name),
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
        self.arrived.retain(|n| n != name);
        match &mut self.waits_for {
            Ok(names) => names.retain(|n| n != name),
            Err(n) => *n -= 1,
        }
        self.open(notes);
    }
}

impl Model {
    fn on_job<T>(
        &mut self,
        name: &JobName,
        act: impl FnOnce(&mut Job, u64, &mut Vec<&'static str>) -> T,
    ) -> T {
        let (now, mut notes) = (self.clock, Vec::new());
        let job = self.jobs.entry(name.clone()).or_default();
        let out = act(job, now, &mut notes);
        job.settle(now, &mut notes);
        let rounds = 1..=job.rounds_over;
        if notes.contains(&"round completed") {
            for round in rounds {
                let (namespace, job) = (name.namespace.clone(), name.job.clone());
                self.stores.remove(&StoreName { namespace, job, round });
            }
        }
        notes.into_iter().for_each(|note| self.note(note));
        out
    }

    fn comes(&self, keep_alive_ms: u64) -> (SessionId, Reply) {
        let ticket = SessionId::at(self.index, self.op);
        (ticket, Reply::Participant { ticket, keep_alive_ms })
    }

    pub(crate) fn join(&mut self, name: JobName, decl: &ParticipantDecl, terms: Terms) -> Outcome {
        let job = self.jobs.entry(name.clone()).or_default();
        if job.closed {
            return Err(Rejection::RendezvousClosed);
        }
        let idle = |p: Place| matches!(p, Place::Apart | Place::TimedOut | Place::Dismissed(_));
        let others = job.who.iter().any(|w| w.name != decl.name && !idle(w.place));
        if let Some(theirs) = job.terms.as_ref().filter(|_| others)
            && (theirs.min, theirs.max) != (terms.min, terms.max)
        {
            return Err(Rejection::RendezvousConflict { min: theirs.min, max: theirs.max });
        }
        let (ticket, reply) = self.comes(decl.keep_alive_ms);
        self.on_job(&name, |job, now, notes| {
            // It leaves the round that it was of, or the place that it had beside it.
            if let Some(at) = job.at(&decl.name)
                && matches!(job.who[at].place, Place::Member(_) | Place::Redundant)
            {
                job.who[at].place = Place::Apart;
                job.settle(now, notes);
            }
            let until = now + terms.join_timeout_ms;
            let place = if !job.complete {
                Place::Joining(until)
            } else if job.members() < terms.max as usize {
                notes.push("came late");
                Place::Late(until)
            } else {
                notes.push("one too many");
                Place::Redundant
            };
            if !others {
                job.terms = Some(terms);
            }
            job.come(&decl.name, ticket, place);
        });
        Ok(reply)
    }

    pub(crate) fn participate(&mut self, name: &JobName, decl: &ParticipantDecl) -> Outcome {
        let (ticket, reply) = self.comes(decl.keep_alive_ms);
        self.on_job(name, |job, _, _| job.come(&decl.name, ticket, Place::Apart));
        Ok(reply)
    }

    pub(crate) fn leave(&mut self, ticket: SessionId, why: &'static str) -> Outcome {
        if let Some((job, name)) = self.whose(ticket) {
            self.note(why);
            self.on_job(&job, |job, _, notes| job.go(&name, why, notes));
        }
        Ok(Reply::Ok)
    }

    fn whose(&self, ticket: SessionId) -> Option<(JobName, String)> {
        self.jobs.iter().find_map(|(job, j)| {
            let who = j.who.iter().find(|w| w.ticket == ticket)?;
            Some((job.clone(), who.name.clone()))
        })
    }

    pub(crate) fn close_rendezvous(&mut self, name: &JobName) -> Outcome {
        self.on_job(name, |job, _, _| {
            job.closed = true;
            job.last_call = None;
            for who in &mut job.who {
                who.place = match who.place {
                    Place::Joining(_) | Place::Late(_) => Place::Dismissed(false),
                    Place::Redundant => Place::Dismissed(true),
                    other => other,
                };
            }
        });
        Ok(Reply::Ok)
    }

    pub(crate) fn arrive(
        &mut self,
        (name, barrier, number): (&JobName, &str, u64),
        ticket: Option<SessionId>,
        decl: &ParticipantDecl,
        spec: BarrierSpec,
    ) -> Outcome {
        let who = match ticket {
            None => decl.name.clone(),
            Some(ticket) => {
                let whose = self.whose(ticket).filter(|w| w.0 == *name);
                whose.ok_or(Rejection::ParticipantUnknown)?.1
            }
        };
        let none = Job::default();
        let job = self.jobs.get(name).unwrap_or(&none);
        let gens = job.barriers.get(barrier).cloned().unwrap_or_default();
        let not_of = Rejection::NotOfBarrier { name: who.clone() };
        let mut begins = None;
        if let Some(g) = gens.iter().find(|g| g.number == number) {
            if g.spec != spec {
                return Err(Rejection::BarrierConflict);
            }
            let there = g.arrived.contains(&who);
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
                let state = if last.end.is_none() { "waits" } else { "has ended" };
                let (latest, state) = (last.number, state.to_owned());
                return Err(Rejection::BarrierGeneration { latest, state });
            }
            let waits_for = match &spec.among {
                Among::Count(n) => Err(*n as usize),
                Among::Members(names) => Ok(names.clone()),
                Among::Round => Ok(job.roster.clone()),
            };
            if waits_for.as_ref().is_ok_and(|names| !names.contains(&who)) {
                return Err(not_of);
            }
            let until = self.clock + spec.timeout_ms;
            begins = Some(Gen { number, spec, waits_for, arrived: Vec::new(), until, end: None });
        }
        let had = job.who.iter().find(|w| w.name == who).map(|w| w.ticket);
        let (new, reply) = self.comes(decl.keep_alive_ms);
        let reply = match had {
            Some(ticket) => Reply::Participant { ticket, keep_alive_ms: KEEP_ALIVE_MS },
            None => reply,
        };
        self.on_job(name, |job, _, notes| {
            if had.is_none() {
                job.come(&who, new, Place::Apart);
            }
            job.count_arrival((barrier, number), &who, begins, notes);
        });
        Ok(reply)
    }

    pub(crate) fn abort(&mut self, name: &JobName, barrier: &str, number: u64) -> Outcome {
        let job = self.jobs.get(name).ok_or(Rejection::BarrierUnknown)?;
        let gens = job.barriers.get(barrier).ok_or(Rejection::BarrierUnknown)?;
        if number > 0 && !gens.iter().any(|g| g.number == number) {
            return Err(Rejection::BarrierUnknown);
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

    pub(crate) fn tick_jobs(&mut self) {
        let names: Vec<JobName> = self.jobs.keys().cloned().collect();
        for name in names {
            self.on_job(&name, |job, now, notes| {
                if job.last_call.is_some_and(|at| at <= now) {
                    notes.push("last call over");
                    job.complete_round(notes);
                }
                let alone = !job.complete && job.last_call.is_none();
                for who in &mut job.who {
                    let over = match who.place {
                        Place::Joining(until) => alone && until <= now,
                        Place::Late(until) => until <= now,
                        _ => false,
                    };
                    if over {
                        notes.push("join timed out");
                        who.place = Place::TimedOut;
                    }
                }
                for g in job.barriers.values_mut().flatten() {
                    if g.end.is_none() && g.until <= now {
                        g.end = Some("timed out");
                        notes.push("barrier timed out");
                    }
                }
            });
        }
    }
}

impl Job {
    /// Somebody has arrived who may.
    fn count_arrival(
        &mut self,
        (barrier, number): (&str, u64),
        who: &str,
        begins: Option<Gen>,
        notes: &mut Vec<&'static str>,
    ) {
        // Of a round who left is missing as well as who was lost: nobody else takes its rank.
        let mut gone = Vec::new();
        if let Some(Gen { waits_for: Ok(names), spec, .. }) = &begins {
            for name in names.iter().filter(|n| self.at(n).is_none()) {
                let last = self.gone.iter().rev().find(|g| g.0 == *name).map(|g| g.1);
                let of_round = spec.among == Among::Round;
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
        if g.arrived.iter().any(|n| n == who) {
            notes.push("arrived again");
            return;
        }
        g.arrived.push(who.to_owned());
        g.open(notes);
        for (name, why) in gone {
            g.without(&name, why, notes);
        }
    }
}

fn place(standing: Standing) -> Place {
    match standing {
        Standing::Apart => Place::Apart,
        Standing::Joining { until } => Place::Joining(until.0),
        Standing::Late { until } => Place::Late(until.0),
        Standing::Redundant => Place::Redundant,
        Standing::Member { rank } => Place::Member(rank),
        Standing::TimedOut => Place::TimedOut,
        Standing::Dismissed { redundant } => Place::Dismissed(redundant),
    }
}

fn end(end: &BarrierEnd) -> &'static str {
    match end {
        BarrierEnd::Open => "open",
        BarrierEnd::Failed(BarrierFailure::TimedOut) => "timed out",
        BarrierEnd::Failed(BarrierFailure::Aborted { .. }) => "aborted",
        BarrierEnd::Failed(BarrierFailure::Gone(gone)) => gone.why.name(),
    }
}

/// What differs between the ledger's jobs and the model's, in words.
pub(crate) fn difference(ledger: &Ledger, jobs: &BTreeMap<JobName, Job>) -> Option<String> {
    for (name, job) in jobs {
        let Some(view) = ledger.job(name) else {
            if job.who.is_empty() && job.terms.is_none() && !job.closed {
                continue;
            }
            return Some(format!("{name:?} is not there"));
        };
        let mut who: Vec<_> = job.who.iter().map(|w| (w.name.clone(), w.ticket, w.place)).collect();
        who.sort_by(|a, b| a.0.cmp(&b.0));
        let seen: Vec<_> = view
            .participants()
            .map(|p| (p.decl.name.clone(), p.ticket, place(p.standing)))
            .collect();
        if who != seen {
            return Some(format!("{name:?}: {seen:?}, not {who:?}"));
        }
        let r = view.rendezvous();
        let roster: Vec<_> = r.roster.iter().map(|m| m.decl.name.clone()).collect();
        let seen = (r.round, r.complete, r.closed, r.last_call, roster);
        let called = job.last_call.map(LedgerMs);
        let told = (job.rounds_over + 1, job.complete, job.closed, called, job.roster.clone());
        if seen != told {
            return Some(format!("{name:?}: {seen:?}, not {told:?}"));
        }
        for (barrier, gens) in &job.barriers {
            let told: Vec<_> =
                gens.iter().map(|g| (g.number, g.arrived.clone(), g.expected(), g.end)).collect();
            let seen: Vec<_> = view
                .generations(barrier)
                .map(|g| {
                    let arrived = g.in_order().into_iter().map(str::to_owned).collect();
                    (g.number, arrived, g.expected as usize, g.end.as_ref().map(end))
                })
                .collect();
            if seen != told {
                return Some(format!("{name:?} {barrier}: {seen:?}, not {told:?}"));
            }
        }
    }
    None
}
