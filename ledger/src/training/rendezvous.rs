//! Rendezvous: how a job's participants agree on their world, round after round, as torchelastic defines it.
//!
//! A round forms while participants join: from `min` on a last call runs, and with `max` it is complete at once. A
//! later participant is late and waits for the next round, or is one too many. A round ends when its last member has
//! left, died or joined again. Then the next round forms from the participants that wait.
//!
//! *Invariant:* there is one round at a time (exclusivity). A complete round's roster is fixed: all members read the
//! same names and the same contiguous ranks, even if members die meanwhile. A closed rendezvous stays closed. No
//! participant waits while there is room.
//!
//! Absent: notifying the participants (`coordinator`).

use crate::kernel::id::LedgerMs;
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::seeded::{Bug, seeded};
use crate::training::job::{Departure, Job, JobEffects, ParticipantDecl};
use serde::{Deserialize, Serialize};

/// The rendezvous configuration of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousConfig {
    /// The least participants of a round; 1 or more.
    pub min: u32,
    /// With this many participants a round is complete at once; up to [`limits::PARTICIPANTS_MAX`].
    pub max: u32,
    /// How long a participant waits for `min`, or, if late, for the next round.
    pub join_timeout_ms: u64,
    /// How long others may still come when `min` is reached.
    pub last_call_ms: u64,
}

impl RendezvousConfig {
    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        let most = limits::PARTICIPANTS_MAX as u32;
        if self.min == 0 || self.max < self.min || self.max > most {
            return Err(Rejection::Invalid(format!(
                "min has to be 1 or more, and max at least min and at most {most}"
            )));
        }
        let times = 1..=limits::JOB_TIMEOUT_MS_MAX;
        if !times.contains(&self.join_timeout_ms) || !times.contains(&self.last_call_ms) {
            let most = limits::JOB_TIMEOUT_MS_MAX;
            return Err(Rejection::Invalid(format!(
                "join time-out and last call have to be 1 to {most} ms"
            )));
        }
        Ok(())
    }
}

/// The state of a participant in the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParticipantState {
    /// It has not joined.
    Apart,
    /// It is in the round that forms.
    Joining {
        /// It waits no longer for `min`.
        until: LedgerMs,
    },
    /// It waits for the next round.
    Late {
        /// No longer than this.
        until: LedgerMs,
    },
    /// The round has `max` members without it.
    Redundant,
    /// Member of the complete round.
    Member {
        /// From 0.
        rank: u32,
    },
    /// It waited for too long.
    TimedOut,
    /// It waited when the rendezvous was closed.
    Dismissed {
        /// It was redundant, so this is not an error.
        redundant: bool,
    },
}

impl ParticipantState {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apart => "apart",
            Self::Joining { .. } => "joining",
            Self::Late { .. } => "late",
            Self::Redundant => "redundant",
            Self::Member { .. } => "member",
            Self::TimedOut => "timed_out",
            Self::Dismissed { .. } => "dismissed",
        }
    }

    /// Whether it has a part in the round that forms, is complete, or comes next.
    pub(crate) fn takes_part(self) -> bool {
        !matches!(self, Self::Apart | Self::TimedOut | Self::Dismissed { .. })
    }
}

/// A member of a complete round, by its rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundMember {
    /// The participant.
    pub decl: ParticipantDecl,
    /// Contiguous, from 0.
    pub rank: u32,
    /// Last departure after the round completed. The participant may have rejoined.
    pub gone: Option<Departure>,
}

/// A job's rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    /// The terms of the current participants; `None` before the first has joined.
    pub config: Option<RendezvousConfig>,
    /// The round that forms or is complete, from 1.
    pub round: u64,
    /// Whether it is complete.
    pub complete: bool,
    /// When a round with `min` participants is complete if no more join.
    pub last_call: Option<LedgerMs>,
    /// Whether it refuses new participants.
    pub closed: bool,
    /// Members of the complete round by rank, including those that left since.
    pub roster: Vec<RoundMember>,
}

impl Default for Rendezvous {
    fn default() -> Self {
        Self {
            config: None,
            round: 1,
            complete: false,
            last_call: None,
            closed: false,
            roster: Vec::new(),
        }
    }
}

impl Rendezvous {
    /// The latest round that is or was complete; 0 before the first.
    pub(crate) fn latest_complete(&self) -> u64 {
        match self.complete {
            true => self.round,
            false => self.round.saturating_sub(1),
        }
    }
}

impl Job {
    /// How many participants are in this state.
    pub(crate) fn count(&self, which: impl Fn(ParticipantState) -> bool) -> u32 {
        self.head.participants.values().filter(|p| which(p.state)).count() as u32
    }

    /// Whether that participant may join on these terms.
    pub(crate) fn admits(&self, name: &str, config: &RendezvousConfig) -> Result<(), Rejection> {
        if self.head.rendezvous.closed {
            return Err(JobRefusal::RendezvousClosed.into());
        }
        let others = self.head.participants.iter().filter(|p| p.0 != name);
        let Some(theirs) = &self.head.rendezvous.config else { return Ok(()) };
        let (min, max) = (theirs.min, theirs.max);
        let met = others.into_iter().any(|(_, p)| p.state.takes_part());
        match met && (min, max) != (config.min, config.max) {
            true => Err(JobRefusal::RendezvousConflict { min, max }.into()),
            false => Ok(()),
        }
    }

    /// The state of a participant that joins now.
    pub(crate) fn state_to_join(
        &self,
        now: LedgerMs,
        config: &RendezvousConfig,
    ) -> ParticipantState {
        let until = LedgerMs(now.0.saturating_add(config.join_timeout_ms));
        match self.head.rendezvous.complete {
            false => ParticipantState::Joining { until },
            true if self.members() < config.max => ParticipantState::Late { until },
            true => ParticipantState::Redundant,
        }
    }

    fn members(&self) -> u32 {
        self.count(|s| matches!(s, ParticipantState::Member { .. }))
    }

    /// Applies the consequences of any change.
    pub(crate) fn settle(&mut self, now: LedgerMs, effects: &mut JobEffects) {
        let Some(config) = self.head.rendezvous.config.clone() else { return };
        if self.head.rendezvous.complete && self.members() == 0 {
            let ended = &mut self.head.rendezvous;
            effects.events.push(("rendezvous_ended", String::new(), ended.round, String::new()));
            ended.complete = false;
            ended.round += 1;
            ended.roster.clear();
        }
        if self.head.rendezvous.complete {
            if self.members() < config.max {
                let until = LedgerMs(now.0.saturating_add(config.join_timeout_ms));
                for p in self.head.participants.values_mut() {
                    if p.state == ParticipantState::Redundant {
                        p.state = ParticipantState::Late { until };
                    }
                }
            }
            return;
        }
        let joined = self.admit_waiting(now, &config);
        let last_call = &mut self.head.rendezvous.last_call;
        if joined < config.min {
            *last_call = None;
        } else if joined == config.max {
            self.complete(effects);
        } else if last_call.is_none() {
            *last_call = Some(LedgerMs(now.0.saturating_add(config.last_call_ms)));
        }
    }

    /// Moves waiting participants into the forming round, in the order in which they came. Returns how
    /// many are in the round then.
    fn admit_waiting(&mut self, now: LedgerMs, config: &RendezvousConfig) -> u32 {
        let mut joined = self.count(|s| matches!(s, ParticipantState::Joining { .. }));
        let until = LedgerMs(now.0.saturating_add(config.join_timeout_ms));
        let mut waiting: Vec<_> = self
            .head
            .participants
            .values_mut()
            .filter_map(|p| match p.state {
                ParticipantState::Late { until } => Some((false, p.incarnation, until, p)),
                ParticipantState::Redundant => Some((true, p.incarnation, until, p)),
                _ => None,
            })
            .collect();
        waiting.sort_by_key(|w| (w.0, w.1));
        for (_, _, until, participant) in waiting {
            if joined == config.max {
                break;
            }
            participant.state = ParticipantState::Joining { until };
            joined += 1;
        }
        joined
    }

    /// Completes the round with the participants that have joined it. Participants that still wait are redundant.
    fn complete(&mut self, effects: &mut JobEffects) {
        let rendezvous = &mut self.head.rendezvous;
        rendezvous.complete = true;
        rendezvous.last_call = None;
        rendezvous.roster.clear();
        for participant in self.head.participants.values_mut() {
            match participant.state {
                ParticipantState::Joining { .. } => {
                    let mut rank = rendezvous.roster.len() as u32;
                    if seeded(Bug::DuplicateRanks) && rank > 0 {
                        rank -= 1;
                    }
                    participant.state = ParticipantState::Member { rank };
                    let decl = participant.decl.clone();
                    rendezvous.roster.push(RoundMember { decl, rank, gone: None });
                }
                ParticipantState::Late { .. } => participant.state = ParticipantState::Redundant,
                _ => {}
            }
        }
        let why = format!("{} members", rendezvous.roster.len());
        effects.events.push(("rendezvous_completed", String::new(), rendezvous.round, why));
        effects.completed = Some(rendezvous.round);
        self.access.completes(&rendezvous.roster);
    }

    /// Closes the rendezvous for new participants and dismisses those that wait.
    pub(crate) fn close(&mut self, effects: &mut JobEffects) {
        let rendezvous = &mut self.head.rendezvous;
        if rendezvous.closed {
            return;
        }
        rendezvous.closed = true;
        rendezvous.last_call = None;
        effects.events.push(("rendezvous_closed", String::new(), rendezvous.round, String::new()));
        for participant in self.head.participants.values_mut() {
            let redundant = participant.state == ParticipantState::Redundant;
            let waits = matches!(
                participant.state,
                ParticipantState::Joining { .. } | ParticipantState::Late { .. }
            );
            if redundant || waits {
                participant.state = ParticipantState::Dismissed { redundant };
            }
        }
    }

    /// Last calls and waits that are over by now.
    pub(crate) fn pass_rendezvous(&mut self, now: LedgerMs, effects: &mut JobEffects) {
        if self.head.rendezvous.last_call.is_some_and(|at| at <= now) {
            self.complete(effects);
        }
        let forming = !self.head.rendezvous.complete && self.head.rendezvous.last_call.is_none();
        for participant in self.head.participants.values_mut() {
            let over = match participant.state {
                ParticipantState::Joining { until } => forming && until <= now,
                ParticipantState::Late { until } => until <= now,
                _ => false,
            };
            if over {
                participant.state = ParticipantState::TimedOut;
            }
        }
    }

    /// When [`Job::pass_rendezvous`] has something to do.
    pub(crate) fn next_of_rendezvous(&self) -> Option<LedgerMs> {
        let last_call = self.head.rendezvous.last_call;
        let waits = self.head.participants.values().filter_map(|p| match p.state {
            ParticipantState::Joining { until } if last_call.is_none() => Some(until),
            ParticipantState::Late { until } => Some(until),
            _ => None,
        });
        waits.chain(last_call).min()
    }

    /// Checks the invariants of the rendezvous.
    pub(crate) fn check_rendezvous(&self) -> Result<(), String> {
        let r = &self.head.rendezvous;
        let joining = self.count(|s| matches!(s, ParticipantState::Joining { .. }));
        let late = self.count(|s| matches!(s, ParticipantState::Late { .. }));
        let redundant = self.count(|s| s == ParticipantState::Redundant);
        let members = self.members();
        let Some(config) = &r.config else {
            return match joining + late + redundant + members {
                0 => Ok(()),
                n => Err(format!("{n} participants without a rendezvous configuration")),
            };
        };
        let holds = match r.complete {
            true => joining == 0 && members > 0 && r.last_call.is_none(),
            false => {
                let called = joining >= config.min && joining < config.max;
                late + redundant + members == 0
                    && joining < config.max
                    && r.last_call.is_some() == (called && !r.closed)
                    && r.roster.is_empty()
            }
        };
        if !holds {
            return Err(format!("{joining} join, {late} late, {redundant} redundant: {r:?}"));
        }
        if redundant > 0 && members < config.max {
            return Err(format!("{redundant} redundant beside {members} of {}", config.max));
        }
        if r.closed && joining + late + redundant > 0 {
            return Err("a participant waits for a closed rendezvous".into());
        }
        let names: Vec<&str> = r.roster.iter().map(|m| m.decl.name.as_str()).collect();
        let ranks = (0..).zip(&r.roster).all(|(rank, m)| m.rank == rank);
        if !ranks || !names.is_sorted() || names.len() > config.max as usize {
            return Err(format!("the roster is {names:?}"));
        }
        for (name, participant) in &self.head.participants {
            if let ParticipantState::Member { rank } = participant.state
                && names.get(rank as usize) != Some(&name.as_str())
            {
                return Err(format!("{name} is not rank {rank} of {names:?}"));
            }
        }
        Ok(())
    }
}
