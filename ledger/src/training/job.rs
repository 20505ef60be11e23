//! Training jobs and their participants: a name, a host, an incarnation, and how long a participant may be silent.
//!
//! *Invariant:* a name within a job belongs to at most one participant; its incarnation is the log position that
//! created it. A later process with the name replaces it, and the earlier incarnation stays void. A job exists from its
//! first use until it had no participant for [`limits::JOB_TTL_MS`], and as long again while it has a store of its
//! rounds; or until another job needs its room and none was unused for longer. From [`ONE_RECORD_VERSION`] on, one with
//! a store of its rounds makes room only if no other can: a process may still use that store. No store of its rounds
//! outlives it. A job with a training (`state.rs`) stays.
//!
//! Absent: keep-alives. The leader measures silence in memory (`coordinator`) and reports here only
//! which participants were silent for too long.
//!
//! [`ONE_RECORD_VERSION`]: crate::machine::version_gate::ONE_RECORD_VERSION

mod checks;
mod image;

use crate::kernel::counts::Counts;
use crate::kernel::id::{JobNo, LedgerMs, SessionId, TrainingNo};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::Rejection;
use crate::training::barrier::Barrier;
use crate::training::job_table::JobTable;
use crate::training::rendezvous::{ParticipantState, Rendezvous};
use crate::training::round_access::RoundAccess;
use crate::training::state::Training;
use crate::training::store::Stores;
use crate::training::training_image::DirtyTrainings;
use image::DirtyJobs;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The name of a training job.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobName {
    /// Its namespace.
    pub namespace: String,
    /// Its name within it.
    pub job: String,
}

/// A participant as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParticipantDecl {
    /// Unique in the job. Ranks follow the order of names.
    pub name: String,
    /// Its host, informational only.
    pub host: String,
    /// Its address for the other participants.
    pub addr: String,
    /// Processes that it starts, for the others' own use.
    pub local_world_size: u32,
    /// After this silence it is lost; within [`limits::KEEP_ALIVE_MS`].
    pub keep_alive_ms: u64,
}

impl ParticipantDecl {
    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        names::check_name("participant's", &self.name)?;
        if self.host.len().max(self.addr.len()) > limits::TEXT_BYTES_MAX {
            return Err(Rejection::Invalid("the participant's host or address is too long".into()));
        }
        let bounds = limits::KEEP_ALIVE_MS;
        if !bounds.contains(&self.keep_alive_ms) {
            let (least, most) = (bounds.start(), bounds.end());
            return Err(Rejection::Invalid(format!(
                "a participant may be silent for {least} to {most} ms"
            )));
        }
        Ok(())
    }
}

/// A participant of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// Its incarnation.
    pub incarnation: SessionId,
    /// Its declaration.
    pub decl: ParticipantDecl,
    /// When it last did something that is in the log: wall time at the leader, informational only.
    pub seen_wall_ms: u64,
    /// Its state in the rendezvous.
    pub state: ParticipantState,
}

/// Why an incarnation is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepartureReason {
    /// Silent for too long.
    Lost,
    /// By its own wish.
    Left,
    /// A later participant took its name.
    Replaced,
}

impl DepartureReason {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Left => "left",
            Self::Replaced => "replaced",
        }
    }
}

/// A participant that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Its incarnation.
    pub incarnation: SessionId,
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Why it is gone.
    pub why: DepartureReason,
    /// When: wall time at the leader, informational only.
    pub at_wall_ms: u64,
    /// When it was last heard, as far as known.
    pub heard_wall_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) head: JobHead,
    pub(crate) barriers: BTreeMap<String, Barrier>,
    pub(crate) access: RoundAccess,
    /// From the first join of a trainer, or the first recovery, until the job is deleted.
    pub(crate) training: Option<Training>,
    /// Derived: when a `Tick` has something to do for it.
    pub(crate) due: Option<LedgerMs>,
}

/// The part that is one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobHead {
    pub(crate) name: JobName,
    pub(crate) used_at: LedgerMs,
    /// Counts changes.
    pub(crate) version: u64,
    pub(crate) participants: BTreeMap<String, Participant>,
    /// Oldest first; at most [`limits::DEPARTURES_MAX`].
    pub(crate) departures: VecDeque<Departure>,
    pub(crate) rendezvous: Rendezvous,
}

/// The side effects of a change of a job.
#[derive(Default)]
pub(crate) struct JobEffects {
    /// The events: what happened, the participant or barrier, the round or generation, and why.
    pub(crate) events: Vec<(&'static str, String, u64, String)>,
    pub(crate) came: Vec<(SessionId, String)>,
    pub(crate) went: Vec<SessionId>,
    /// Barriers that changed.
    pub(crate) barriers: BTreeSet<String>,
    /// A round that is complete.
    pub(crate) completed: Option<u64>,
}

impl JobEffects {
    /// Whether a participant has joined and nothing else has changed.
    pub(crate) fn only_came(&self) -> bool {
        let Self { events, came, went, barriers, completed } = self;
        came.len() == 1
            && events.is_empty()
            && went.is_empty()
            && barriers.is_empty()
            && completed.is_none()
    }
}

impl Job {
    /// Whether it may be forgotten: nobody takes part, and it has no training, whose checkpoints would have no owner.
    pub(crate) fn is_unused(&self) -> bool {
        self.head.participants.is_empty() && self.training.is_none()
    }

    /// Whether a participant has ever used it. Otherwise only its trainers are to be seen.
    pub(crate) fn is_used_by_participants(&self) -> bool {
        self.head.version > 0
    }

    /// When a `Tick` has something to do.
    pub(crate) fn next_due(&self) -> Option<LedgerMs> {
        let ends = LedgerMs(self.head.used_at.0.saturating_add(limits::JOB_TTL_MS));
        let forgotten = self.is_unused().then_some(ends);
        let rendezvous = self.next_of_rendezvous();
        let barriers = self.barriers.values().filter_map(Barrier::until);
        forgotten.into_iter().chain(rendezvous).chain(barriers).min()
    }

    /// The latest departure under a name, unless a participant has taken the name since.
    pub(crate) fn departure(&self, name: &str) -> Option<&Departure> {
        if self.head.participants.contains_key(name) {
            return None;
        }
        self.head.departures.iter().rev().find(|d| d.name == name)
    }

    /// Takes a participant out of everything but the barriers.
    pub(crate) fn remove_participant(
        &mut self,
        name: &str,
        why: DepartureReason,
        (at_wall_ms, heard_wall_ms): (u64, u64),
        effects: &mut JobEffects,
    ) -> Option<Participant> {
        let gone = self.head.participants.remove(name)?;
        self.access.leaves(name);
        effects.went.push(gone.incarnation);
        let (incarnation, host) = (gone.incarnation, gone.decl.host.clone());
        let name = name.to_owned();
        let departure = Departure { incarnation, name, host, why, at_wall_ms, heard_wall_ms };
        let roster = &mut self.head.rendezvous.roster;
        if let Ok(at) = roster.binary_search_by(|m| m.decl.name.cmp(&departure.name)) {
            roster[at].gone = Some(departure.clone());
        }
        self.remember(departure);
        Some(gone)
    }

    /// If there is no room, departures that no barrier needs are dropped first: those of a name that another
    /// participant has or had since.
    fn remember(&mut self, departure: Departure) {
        let JobHead { departures, participants, .. } = &mut self.head;
        let idle = |other: &Departure| {
            other.why == DepartureReason::Replaced
                || other.name == departure.name
                || participants.contains_key(&other.name)
        };
        if departures.len() >= limits::DEPARTURES_MAX {
            match departures.iter().position(idle) {
                Some(at) => drop(departures.remove(at)),
                None if departure.why == DepartureReason::Replaced => return,
                None => drop(departures.pop_front()),
            }
        }
        departures.push_back(departure);
    }
}

/// All jobs, their indexes, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jobs {
    pub(super) table: JobTable,
    // Derived.
    names: BTreeMap<JobName, JobNo>,
    of_namespace: Counts,
    /// Participants by their incarnations.
    incarnations: BTreeMap<SessionId, (JobNo, String)>,
    /// Jobs by when they have something to do.
    times: BTreeSet<(LedgerMs, JobNo)>,
    /// Trainers by when they are lost.
    pub(super) ends: BTreeSet<(LedgerMs, TrainingNo, String)>,
    /// Shards of open epochs, of all trainings.
    pub(super) shards_open: u64,
    changes: u64,
    outcomes: u64,
    pub(super) training_changes: u64,
    dirty: DirtyJobs,
    pub(super) dirty_trainings: DirtyTrainings,
}

/// What a change of a job means for other parts of the ledger.
pub(crate) struct JobChange {
    pub(crate) job: JobName,
    /// A round that is complete.
    pub(crate) completed: Option<u64>,
    /// As those of [`Told`].
    pub(crate) events: Vec<(&'static str, String, u64, String)>,
}

impl Jobs {
    /// The number of the job of that name.
    pub(crate) fn no(&self, name: &JobName) -> Option<JobNo> {
        self.names.get(name).copied()
    }

    /// The job with that number.
    pub(crate) fn get(&self, no: JobNo) -> Option<&Job> {
        self.table.jobs.get(&no)
    }

    /// The job of that name.
    pub(crate) fn by_name(&self, name: &JobName) -> Option<&Job> {
        self.get(self.no(name)?)
    }

    /// All of them, in the order of creation.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.table.jobs.values()
    }

    /// The names after this one, by namespace and name, with the jobs' numbers.
    pub(super) fn names_after(&self, name: JobName) -> impl Iterator<Item = (&JobName, &JobNo)> {
        self.names.range((Bound::Excluded(name), Bound::Unbounded))
    }

    /// All numbers, by namespace and name.
    pub(super) fn numbers_by_name(&self) -> impl Iterator<Item = JobNo> {
        self.names.values().copied()
    }

    /// Counts the changes of all jobs. Not part of the state.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The same, without those that concern no participant who was there before. Not part of the state.
    pub(super) fn outcomes(&self) -> u64 {
        self.outcomes
    }

    /// The job and the name of the participant with that incarnation.
    pub(crate) fn by_incarnation(&self, incarnation: SessionId) -> Option<&(JobNo, String)> {
        self.incarnations.get(&incarnation)
    }

    /// All incarnations, ascending.
    pub(crate) fn incarnations(&self) -> impl Iterator<Item = SessionId> {
        self.incarnations.keys().copied()
    }

    /// When a `Tick` next has something to do for a job.
    pub(crate) fn next_time(&self) -> Option<LedgerMs> {
        self.times.first().map(|due| due.0)
    }

    /// The jobs for which a `Tick` has something to do, in the order of their times.
    pub(crate) fn due(&self, now: LedgerMs) -> Vec<JobNo> {
        self.times.iter().take_while(|due| due.0 <= now).map(|due| due.1).collect()
    }

    /// The jobs that make room for another job of the namespace: the longest-unused ones, closed or not; where trainings
    /// are parts of jobs, those with a store of their rounds last. There are several only if the namespace is over its
    /// limit, because its trainings became parts of its jobs.
    pub(crate) fn to_forget(
        &self,
        namespace: &str,
        stores: &Stores,
    ) -> Result<Vec<JobNo>, Rejection> {
        let over = (self.of_namespace.get(namespace) + 1).saturating_sub(limits::JOBS_MAX);
        if over == 0 {
            return Ok(Vec::new());
        }
        let first = JobName { namespace: namespace.to_owned(), job: String::new() };
        let theirs = self.names.range(first..).take_while(|of| of.0.namespace == namespace);
        let found = theirs.filter_map(|(_, no)| Some((*no, self.get(*no)?)));
        let unused = found.filter(|(_, job)| job.is_unused());
        let mut unused: Vec<_> = unused.map(|(no, job)| (job.head.used_at, no, job)).collect();
        if unused.len() < over {
            let in_use = match self.table.is_separate() {
                true => "in which somebody takes part",
                false => "that participants or trainers use",
            };
            let what = format!("jobs of one namespace {in_use}");
            return Err(Rejection::Limit { what, max: limits::JOBS_MAX as u64 });
        }
        unused.sort_unstable_by_key(|(used_at, no, _)| (*used_at, *no));
        let (mut forgotten, mut spared) = (Vec::new(), Vec::new());
        let spares = !self.table.is_separate();
        for (_, no, job) in unused {
            if forgotten.len() == over {
                break;
            }
            match spares && stores.has_rounds(&job.head.name) {
                true => spared.push(no),
                false => forgotten.push(no),
            }
        }
        let more = over - forgotten.len();
        forgotten.extend(spared.into_iter().take(more));
        Ok(forgotten)
    }

    /// Makes a job. `made` counts all that were ever made.
    pub(crate) fn make(&mut self, name: JobName, now: LedgerMs, made: &mut u32) -> JobNo {
        *made += 1;
        let no = JobNo(*made);
        let head = JobHead { name: name.clone(), used_at: now, ..JobHead::default() };
        let mut job = Job { head, ..Job::default() };
        job.due = job.next_due();
        self.times.extend(job.due.map(|due| (due, no)));
        self.table.jobs.insert(no, job);
        self.of_namespace.add(&name.namespace);
        self.names.insert(name, no);
        self.dirty.heads.insert(no);
        no
    }

    /// Removes a job with its barriers. Returns its name: the stores of its rounds must go too.
    pub(crate) fn remove(&mut self, no: JobNo) -> Option<JobName> {
        let job = self.table.jobs.remove(&no)?;
        self.names.remove(&job.head.name);
        self.of_namespace.remove(&job.head.name.namespace);
        if let Some(due) = job.due {
            self.times.remove(&(due, no));
        }
        for participant in job.head.participants.values() {
            self.incarnations.remove(&participant.incarnation);
        }
        self.dirty.heads.insert(no);
        self.dirty.barriers.extend(job.barriers.into_keys().map(|name| (no, name)));
        self.changes += 1;
        self.outcomes += 1;
        Some(job.head.name)
    }

    /// Changes a job, and keeps the indexes. Returns what follows outside of jobs.
    pub(crate) fn change(
        &mut self,
        no: JobNo,
        now: LedgerMs,
        act: impl FnOnce(&mut Job, LedgerMs, &mut JobEffects),
    ) -> Option<JobChange> {
        let job = self.table.jobs.get_mut(&no)?;
        let mut effects = JobEffects::default();
        act(job, now, &mut effects);
        job.settle(now, &mut effects);
        job.head.used_at = now;
        job.head.version += 1;
        self.outcomes += u64::from(!effects.only_came());
        for incarnation in &effects.went {
            self.incarnations.remove(incarnation);
        }
        self.incarnations
            .extend(effects.came.into_iter().map(|(incarnation, name)| (incarnation, (no, name))));
        self.dirty.heads.insert(no);
        self.dirty.barriers.extend(effects.barriers.into_iter().map(|barrier| (no, barrier)));
        self.changes += 1;
        let job = job.head.name.clone();
        self.refresh_due(no);
        Some(JobChange { job, completed: effects.completed, events: effects.events })
    }

    /// Computes again when a `Tick` has something to do for a job.
    pub(super) fn refresh_due(&mut self, no: JobNo) {
        let Some(job) = self.table.jobs.get_mut(&no) else { return };
        let due = job.next_due();
        if let Some(before) = std::mem::replace(&mut job.due, due) {
            self.times.remove(&(before, no));
        }
        self.times.extend(due.map(|due| (due, no)));
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (no, job) in &mut self.table.jobs {
            job.due = job.next_due();
            self.times.extend(job.due.map(|due| (due, *no)));
            self.names.insert(job.head.name.clone(), *no);
            self.of_namespace.add(&job.head.name.namespace);
            for (name, participant) in &job.head.participants {
                self.incarnations.insert(participant.incarnation, (*no, name.clone()));
            }
        }
    }
}
