//! Training jobs in the model: a list of participants in the order in which they came, each with its state, and
//! barriers as lists of names.

#[path = "jobs_barriers.rs"]
mod barriers;
#[path = "jobs_compare.rs"]
mod compare;

pub(crate) use self::compare::difference;
use crate::naive::{Model, Outcome};
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    BarrierSpec, JobName, JobRefusal, ParticipantDecl, RendezvousConfig, Reply, StoreName,
};
use std::collections::BTreeMap;

/// What all participants of the stories ask for.
pub(crate) const KEEP_ALIVE_MS: u64 = 15_000;

/// The state of a participant, and until when it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParticipantPhase {
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
    pub(crate) incarnation: SessionId,
    pub(crate) phase: ParticipantPhase,
    /// Whose session it joined with, if that is known.
    holder: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Gen {
    pub(crate) number: u64,
    spec: BarrierSpec,
    /// Names, or how many.
    waits_for: Result<Vec<String>, usize>,
    /// The participants that arrived, and their incarnations.
    arrived: Vec<(String, SessionId)>,
    until: u64,
    /// How it ended.
    pub(crate) end: Option<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) who: Vec<Who>,
    config: Option<RendezvousConfig>,
    rounds_over: u64,
    complete: bool,
    closed: bool,
    last_call: Option<u64>,
    roster: Vec<String>,
    /// The holders that may use the store of the latest complete round; empty: everyone.
    pub(crate) holders: Vec<String>,
    gone: Vec<(String, &'static str)>,
    pub(crate) barriers: BTreeMap<String, Vec<Gen>>,
}

impl Job {
    fn at(&self, name: &str) -> Option<usize> {
        self.who.iter().position(|w| w.name == name)
    }

    fn count(&self, which: fn(ParticipantPhase) -> bool) -> usize {
        self.who.iter().filter(|w| which(w.phase)).count()
    }

    fn members(&self) -> usize {
        self.count(|p| matches!(p, ParticipantPhase::Member(_)))
    }

    fn joining(&self) -> usize {
        self.count(|p| matches!(p, ParticipantPhase::Joining(_)))
    }

    fn settle(&mut self, now: u64, notes: &mut Vec<&'static str>) {
        let Some(config) = self.config.clone() else { return };
        let max = config.max as usize;
        if self.complete && self.members() == 0 {
            notes.push("round ended");
            self.complete = false;
            self.rounds_over += 1;
            self.roster.clear();
        }
        if self.complete && self.members() < max {
            for who in &mut self.who {
                if who.phase == ParticipantPhase::Redundant {
                    who.phase = ParticipantPhase::Late(now + config.join_timeout_ms);
                }
            }
        }
        if self.complete {
            return;
        }
        // First late participants, then surplus ones, each in order of arrival.
        for redundant in [false, true] {
            for i in 0..self.who.len() {
                let until = match self.who[i].phase {
                    ParticipantPhase::Late(until) if !redundant => until,
                    ParticipantPhase::Redundant if redundant => now + config.join_timeout_ms,
                    _ => continue,
                };
                if self.joining() < max {
                    self.who[i].phase = ParticipantPhase::Joining(until);
                }
            }
        }
        if self.joining() == max {
            self.complete_round(notes);
        } else if self.joining() < config.min as usize {
            self.last_call = None;
        } else if self.last_call.is_none() {
            self.last_call = Some(now + config.last_call_ms);
        }
    }

    /// The round that is complete, or else the last complete one.
    pub(crate) fn latest_complete(&self) -> u64 {
        self.rounds_over + u64::from(self.complete)
    }

    fn complete_round(&mut self, notes: &mut Vec<&'static str>) {
        notes.push("round completed");
        let mut names: Vec<String> = Vec::new();
        for who in &self.who {
            if matches!(who.phase, ParticipantPhase::Joining(_)) {
                names.push(who.name.clone());
            }
        }
        names.sort();
        let joined =
            self.who.iter().filter(|who| matches!(who.phase, ParticipantPhase::Joining(_)));
        let holders: Option<Vec<String>> = joined.map(|who| who.holder.clone()).collect();
        self.holders = holders.unwrap_or_default();
        for who in &mut self.who {
            who.phase = match who.phase {
                ParticipantPhase::Joining(_) => ParticipantPhase::Member(
                    names.iter().position(|n| *n == who.name).unwrap() as u32,
                ),
                ParticipantPhase::Late(_) => ParticipantPhase::Redundant,
                other => other,
            };
        }
        (self.roster, self.complete, self.last_call) = (names, true, None);
    }

    fn come(
        &mut self,
        name: &str,
        (incarnation, phase): (SessionId, ParticipantPhase),
        notes: &mut Vec<&'static str>,
    ) {
        if let Some(at) = self.at(name) {
            self.who.remove(at);
            self.gone.push((name.to_owned(), "replaced"));
            self.void(name, notes);
        }
        self.who.push(Who { name: name.to_owned(), incarnation, phase, holder: None });
    }

    /// Removes a participant, which may end barriers.
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
        let rounds = 1..=job.rounds_over + u64::from(self.version >= 3);
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
        let incarnation = SessionId::at(self.index, self.op);
        (incarnation, Reply::Participant { incarnation, keep_alive_ms })
    }

    pub(crate) fn join(
        &mut self,
        name: JobName,
        decl: &ParticipantDecl,
        config: RendezvousConfig,
    ) -> Outcome {
        let job = self.jobs.entry(name.clone()).or_default();
        if job.closed {
            return Err(JobRefusal::RendezvousClosed.into());
        }
        let idle = |p: ParticipantPhase| {
            matches!(
                p,
                ParticipantPhase::Apart
                    | ParticipantPhase::TimedOut
                    | ParticipantPhase::Dismissed(_)
            )
        };
        let others = job.who.iter().any(|w| w.name != decl.name && !idle(w.phase));
        if let Some(theirs) = job.config.as_ref().filter(|_| others)
            && (theirs.min, theirs.max) != (config.min, config.max)
        {
            let (min, max) = (theirs.min, theirs.max);
            return Err(JobRefusal::RendezvousConflict { min, max }.into());
        }
        let (incarnation, reply) = self.comes(decl.keep_alive_ms);
        let holder = self.joiner.clone();
        self.on_job(&name, |job, now, notes| {
            // It leaves its round, or its place outside of it.
            if let Some(at) = job.at(&decl.name)
                && matches!(
                    job.who[at].phase,
                    ParticipantPhase::Member(_) | ParticipantPhase::Redundant
                )
            {
                job.who[at].phase = ParticipantPhase::Apart;
                job.settle(now, notes);
            }
            let until = now + config.join_timeout_ms;
            let phase = if !job.complete {
                ParticipantPhase::Joining(until)
            } else if job.members() < config.max as usize {
                notes.push("came late");
                ParticipantPhase::Late(until)
            } else {
                notes.push("one too many");
                ParticipantPhase::Redundant
            };
            if !others {
                job.config = Some(config);
            }
            job.come(&decl.name, (incarnation, phase), notes);
            if let Some(who) = job.who.last_mut() {
                who.holder = holder;
            }
        });
        Ok(reply)
    }

    pub(crate) fn participate(&mut self, name: &JobName, decl: &ParticipantDecl) -> Outcome {
        let (incarnation, reply) = self.comes(decl.keep_alive_ms);
        self.on_job(name, |job, _, notes| {
            job.come(&decl.name, (incarnation, ParticipantPhase::Apart), notes)
        });
        Ok(reply)
    }

    pub(crate) fn leave(&mut self, incarnation: SessionId, why: &'static str) -> Outcome {
        if let Some((job, name)) = self.whose(incarnation) {
            self.note(why);
            self.on_job(&job, |job, _, notes| job.go(&name, why, notes));
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn whose(&self, incarnation: SessionId) -> Option<(JobName, String)> {
        self.jobs.iter().find_map(|(job, j)| {
            let who = j.who.iter().find(|w| w.incarnation == incarnation)?;
            Some((job.clone(), who.name.clone()))
        })
    }

    pub(crate) fn close_rendezvous(&mut self, name: &JobName) -> Outcome {
        self.on_job(name, |job, _, _| {
            job.closed = true;
            job.last_call = None;
            for who in &mut job.who {
                who.phase = match who.phase {
                    ParticipantPhase::Joining(_) | ParticipantPhase::Late(_) => {
                        ParticipantPhase::Dismissed(false)
                    }
                    ParticipantPhase::Redundant => ParticipantPhase::Dismissed(true),
                    other => other,
                };
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
                    let over = match who.phase {
                        ParticipantPhase::Joining(until) => alone && until <= now,
                        ParticipantPhase::Late(until) => until <= now,
                        _ => false,
                    };
                    if over {
                        notes.push("join timed out");
                        who.phase = ParticipantPhase::TimedOut;
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
