//! Random commands for training jobs: few names and few jobs, so that many commands collide.

use crate::jobs::KEEP_ALIVE_MS;
use crate::naive::Model;
use proptest::prelude::*;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    BarrierMembers, BarrierSpec, JobName, OpKind, ParticipantDecl, Policy, RendezvousConfig, op,
};

#[derive(Clone, Debug)]
pub(crate) enum JobAct {
    Join { job: u8, who: u8, other: bool },
    Participate { job: u8, who: u8 },
    Leave { job: u8, nth: u8 },
    Lose { job: u8, nth: u8, heard: bool },
    Close { job: u8 },
    Arrive { job: u8, barrier: u8, ahead: i8, who: u8, incarnation: bool, set: u8 },
    Abort { job: u8, barrier: u8, ahead: i8 },
}

pub(crate) fn job_act() -> impl Strategy<Value = JobAct> {
    let job = || prop_oneof![4 => 0..2u8, 1 => Just(2u8)];
    let ahead = || prop_oneof![6 => Just(0i8), 3 => Just(1i8), 2 => Just(-1i8), 1 => 1..3i8];
    let arrive = (job(), 0..2u8, ahead(), 0..4u8, any::<bool>(), 0..14u8);
    prop_oneof![
        12 => (job(), 0..4u8, prop::bool::weighted(0.05))
            .prop_map(|(job, who, other)| JobAct::Join { job, who, other }),
        2 => (job(), 0..4u8).prop_map(|(job, who)| JobAct::Participate { job, who }),
        2 => (job(), 0..4u8).prop_map(|(job, nth)| JobAct::Leave { job, nth }),
        5 => (job(), 0..4u8, any::<bool>())
            .prop_map(|(job, nth, heard)| JobAct::Lose { job, nth, heard }),
        1 => (0..12u8).prop_map(|job| JobAct::Close { job }),
        14 => arrive.prop_map(|(job, barrier, ahead, who, incarnation, set)| {
            JobAct::Arrive { job, barrier, ahead, who, incarnation, set }
        }),
        1 => (job(), 0..2u8, ahead())
            .prop_map(|(job, barrier, ahead)| JobAct::Abort { job, barrier, ahead }),
    ]
}

fn name(job: u8) -> JobName {
    let job = ["job", "other", "third"][usize::from(job % 3)];
    JobName { namespace: "default".into(), job: job.into() }
}

fn decl(who: u8) -> ParticipantDecl {
    let name = ["a", "b", "c", "d"][usize::from(who)].to_owned();
    ParticipantDecl {
        host: format!("{name}.example"),
        addr: format!("{name}:1"),
        name,
        local_world_size: 2,
        keep_alive_ms: KEEP_ALIVE_MS,
    }
}

/// The incarnation of the nth participant, or an unknown one.
fn incarnation(model: &Model, job: u8, nth: u8) -> SessionId {
    let who = model.jobs.get(&name(job)).and_then(|j| j.who.get(usize::from(nth)));
    who.map_or(SessionId(7), |who| who.incarnation)
}

/// A generation that is `ahead` of the latest.
fn generation(model: &Model, job: u8, barrier: &str, ahead: i8) -> u64 {
    let gens = model.jobs.get(&name(job)).and_then(|j| j.barriers.get(barrier));
    let last =
        gens.and_then(|gens| gens.last()).map_or((1, false), |g| (g.number, g.end.is_some()));
    let next = last.0 + u64::from(last.1);
    next.saturating_add_signed(ahead.into()).max(1)
}

/// The definition that a job's participants give for a generation: mostly the same.
fn spec(job: u8, set: u8, generation: u64) -> BarrierSpec {
    let names =
        |names: &[&str]| BarrierMembers::Members(names.iter().map(|n| (*n).to_owned()).collect());
    let members = match (set, job % 3) {
        (0, _) => BarrierMembers::Count(3),
        (1, _) => names(&["d"]),
        (_, 0 | 1) if generation % 3 == 2 => BarrierMembers::Round,
        (_, 0) => names(&["a", "b", "c"]),
        (_, 1) => BarrierMembers::Count(2),
        _ => BarrierMembers::Round,
    };
    let policy = if generation.is_multiple_of(2) { Policy::Shrink } else { Policy::Fail };
    BarrierSpec { members, policy, timeout_ms: 6000 }
}

impl JobAct {
    pub(crate) fn kind(&self, model: &Model) -> OpKind {
        let barrier = |n: u8| if n == 0 { "epoch" } else { "step" };
        match *self {
            JobAct::Join { job, who, other } => {
                let (min, max) = [(2, 3), (1, 2), (2, 2)][usize::from(job % 3)];
                let max = max + u32::from(other);
                let (join_timeout_ms, last_call_ms) = (7000 + u64::from(who) * 500, 1500);
                let config = RendezvousConfig { min, max, join_timeout_ms, last_call_ms };
                OpKind::Join(op::Join { job: name(job), participant: Box::new(decl(who)), config })
            }
            JobAct::Participate { job, who } => OpKind::Participate(op::Participate {
                job: name(job),
                participant: Box::new(decl(who)),
            }),
            JobAct::Leave { job, nth } => {
                OpKind::Leave(op::Leave { incarnation: incarnation(model, job, nth) })
            }
            JobAct::Lose { job, nth, heard } => OpKind::LoseParticipant(op::LoseParticipant {
                incarnation: incarnation(model, job, nth),
                silent_ms: heard.then_some(KEEP_ALIVE_MS),
            }),
            // Seldom the two that most happens to.
            JobAct::Close { job } => OpKind::CloseRendezvous(op::CloseRendezvous {
                job: name(if job < 2 { job } else { 2 }),
            }),
            JobAct::Arrive { job, barrier: b, ahead, who, incarnation: known, set } => {
                let generation = generation(model, job, barrier(b), ahead);
                OpKind::Arrive(op::Arrive {
                    job: name(job),
                    barrier: barrier(b).into(),
                    generation,
                    incarnation: known.then(|| incarnation(model, job, who)),
                    participant: Box::new(decl(who)),
                    spec: spec(job, set, generation),
                })
            }
            JobAct::Abort { job, barrier: b, ahead } => OpKind::AbortBarrier(op::AbortBarrier {
                job: name(job),
                barrier: barrier(b).into(),
                generation: match ahead {
                    0 => 0,
                    _ => generation(model, job, barrier(b), ahead - 1),
                },
                reason: "so".into(),
            }),
        }
    }
}
