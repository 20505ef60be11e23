//! Participants that arrive at the generations of three barriers. One barrier fails if a named participant is
//! missing, one continues without it, and one waits for a number of arbitrary participants. Some participants fall
//! silent and come back.
//!
//! *Invariant:* an arrival is recorded before its request leaves. A participant that passes records the participants
//! that it passed with, or why the barrier failed, and every keep-alive that was answered.

use super::positioned::Positioned;
use super::repeat;
use super::trainers::{LIMIT, SendResult, Shared, Tasks, Trainer, WAIT_MS, job, participant};
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::{By, Recorder};
use anyhow::Result;
use rand::Rng;
use rollout_proto::{CallOptions, services, v1};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use v1::barrier_wait_response::Outcome;

/// The clients whose certificates are used: one per participant of each barrier.
pub(super) const CLIENTS: &[&str] = &["b1", "b2", "b3"];
const BARRIERS: [(&str, Manner); 3] =
    [("hard", Manner::Fails), ("soft", Manner::Shrinks), ("any", Manner::Counts)];
/// The timeout of each barrier.
pub(crate) const TIMEOUT_MS: u64 = 15_000;
/// How long a participant waits at a generation before it tries another.
const PATIENCE: Duration = Duration::from_secs(8);

/// The participants that a barrier waits for, and what happens if one is missing.
#[derive(Clone, Copy)]
enum Manner {
    /// Waits for named participants; fails without one.
    Fails,
    /// Waits for named participants; continues without one.
    Shrinks,
    /// Waits for a number of arbitrary participants; fails if too few arrive.
    Counts,
}

impl Manner {
    fn set_and_policy(self, barrier: &str) -> (v1::BarrierSet, v1::BarrierPolicy) {
        let names = || CLIENTS.iter().map(|name| format!("{barrier}-{name}")).collect();
        let named = || v1::BarrierSet { members: names(), count: 0 };
        match self {
            Self::Fails => (named(), v1::BarrierPolicy::Fail),
            Self::Shrinks => (named(), v1::BarrierPolicy::Shrink),
            Self::Counts => {
                let count = u32::try_from(CLIENTS.len()).unwrap_or(0);
                (v1::BarrierSet { members: Vec::new(), count }, v1::BarrierPolicy::Fail)
            }
        }
    }
}

pub struct Running {
    tasks: Tasks,
    last: Trainer,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let shared = Shared::new(recorder);
    let mut set = JoinSet::new();
    for (at, (barrier, manner)) in (0..).zip(BARRIERS) {
        for (number, certificate) in (0..).zip(CLIENTS) {
            let name = format!("{barrier}-{certificate}");
            let seed = seed.wrapping_mul(43).wrapping_add(number * 3 + at);
            let trainer = Trainer::new(fleet, certificate, &name, &shared, seed)?;
            set.spawn(Walker { trainer, barrier, manner, ticket: 0 }.run());
        }
    }
    let last = Trainer::new(fleet, CLIENTS[0], "last", &shared, seed)?;
    Ok(Running { tasks: Tasks { shared, set }, last })
}

impl Running {
    /// See [`super::Running::finish`].
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        self.tasks.end(recovery).await?;
        let mut answered = 0;
        for (barrier, _) in BARRIERS {
            let begun = Instant::now();
            while begun.elapsed() < recovery {
                if described(&self.last, barrier).await.is_some() {
                    answered += 1;
                    break;
                }
            }
        }
        let wanted = BARRIERS.len() as u64;
        self.tasks.shared.recorder.event(EventKind::FinalReads { wanted, answered });
        Ok(())
    }
}

fn named(barrier: &str) -> Option<v1::BarrierName> {
    Some(v1::BarrierName { job: Some(job("walk")), barrier: barrier.to_owned() })
}

async fn described(trainer: &Trainer, barrier: &str) -> Option<Vec<v1::BarrierInfo>> {
    let request = v1::BarrierDescribeRequest { barrier: named(barrier) };
    let options = CallOptions::read().timeout(LIMIT * 2);
    let request = trainer.client.with_leader_opts("describe", options, |channel| {
        let request = request.clone();
        async move { services::barrier(channel).describe(request).await }
    });
    Some(request.await.ok()?.generations)
}

struct Walker {
    trainer: Trainer,
    barrier: &'static str,
    manner: Manner,
    ticket: u64,
}

impl Walker {
    async fn run(mut self) -> Result<()> {
        let mut generation = 1;
        while !self.trainer.shared.stopping() {
            if self.ticket == 0 {
                self.come().await;
                self.trainer.pause(10..50).await;
                continue;
            }
            match self.arrive(generation).await {
                true if self.pass(generation).await => generation += 1,
                _ => generation = self.next(generation).await,
            }
            if self.trainer.rng.random_ratio(1, 25) {
                // It falls silent, and comes back as a new process would.
                self.trainer.pause(1700..2600).await;
                self.ticket = 0;
            }
            self.trainer.pause(5..120).await;
        }
        Ok(())
    }

    /// The generation that others are at.
    async fn next(&mut self, mine: u64) -> u64 {
        self.trainer.pause(20..100).await;
        let all = described(&self.trainer, self.barrier).await;
        match all.and_then(|all| all.into_iter().next_back()) {
            Some(last) if last.state == "waiting" => last.generation,
            Some(last) => last.generation + 1,
            None => mine,
        }
    }

    async fn come(&mut self) {
        let Some(request) = self.trainer.request().await else { return };
        let (name, recorder) = (self.trainer.name.clone(), self.trainer.shared.recorder.clone());
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("come", self.barrier.to_owned(), json!(name), id);
        let send = |channel, id| {
            let request = v1::ParticipateRequest {
                request: Some(id),
                job: Some(job("walk")),
                participant: Some(participant(&name)),
            };
            async move { services::rendezvous(channel).participate(request).await }
        };
        let summary = |answer: &v1::JoinResponse| answer.ticket.to_string();
        match self.trainer.change(request, "participate", send, summary).await {
            SendResult::Answered(answer, by) => {
                self.ticket = answer.ticket;
                recorder.ok(&op, json!(answer.ticket.to_string()), by);
            }
            SendResult::Refused(_, why) => recorder.fail(&op, why),
            SendResult::Lost(why) => recorder.info(&op, why),
        }
    }

    /// Sends a keep-alive.
    async fn live(&mut self) {
        let recorder = self.trainer.shared.recorder.clone();
        let op = recorder.invoke("alive", self.barrier.to_owned(), json!(self.trainer.name), None);
        match self.trainer.keep_alive(&job("walk"), self.ticket).await {
            Some(answer) => recorder.ok(&op, json!(answer.gone), By::default()),
            None => recorder.fail(&op, "no answer".into()),
        }
    }

    /// Whether it has arrived.
    async fn arrive(&mut self, generation: u64) -> bool {
        let Some(request) = self.trainer.request().await else { return false };
        let recorder = self.trainer.shared.recorder.clone();
        let key = format!("{}/{generation}", self.barrier);
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("arrive", key, json!(self.trainer.name), id);
        let (set, policy) = self.manner.set_and_policy(self.barrier);
        let (barrier, ticket) = (self.barrier, self.ticket);
        let send = |channel, id| {
            let request = v1::ArriveRequest {
                request: Some(id),
                barrier: named(barrier),
                generation,
                ticket,
                participant: None,
                set: Some(set.clone()),
                policy: policy.into(),
                timeout_ms: TIMEOUT_MS,
            };
            async move { services::barrier(channel).arrive(request).await }
        };
        let summary = |answer: &v1::ArriveResponse| answer.ticket.to_string();
        match self.trainer.change(request, "arrive", send, summary).await {
            SendResult::Answered(_, by) => {
                recorder.ok(&op, Value::Null, by);
                true
            }
            SendResult::Refused(code, why) => {
                if code == rollout_proto::ErrorCode::ParticipantGone {
                    self.ticket = 0;
                }
                recorder.fail(&op, why);
                false
            }
            SendResult::Lost(why) => {
                recorder.info(&op, why);
                false
            }
        }
    }

    /// Waits for the end of the generation. True if it has ended.
    async fn pass(&mut self, generation: u64) -> bool {
        let recorder = self.trainer.shared.recorder.clone();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !self.trainer.shared.stopping() {
            let key = format!("{}/{generation}", self.barrier);
            let op = recorder.invoke("pass", key, json!(self.trainer.name), None);
            let request = v1::BarrierWaitRequest {
                barrier: named(self.barrier),
                generation,
                wait_ms: WAIT_MS,
            };
            let options = CallOptions::read().timeout(LIMIT * 2);
            let answer = self.trainer.client.with_leader_opts("wait", options, |channel| {
                let request = request.clone();
                async move { services::barrier(channel).wait(request).await.map(Positioned::of) }
            });
            let list = |names: Vec<String>| Value::from(names);
            let (answer, by) = match answer.await.map(Positioned::into_parts) {
                Ok((answer, by)) => (answer, by),
                Err(error) => {
                    // Others may be so far ahead that the cluster has forgotten it.
                    recorder.fail(&op, error.to_string());
                    return false;
                }
            };
            match answer.outcome {
                Some(Outcome::Open(open)) => {
                    let outcome = json!(["open", list(open.members), list(open.without)]);
                    recorder.ok(&op, outcome, by);
                    return true;
                }
                Some(Outcome::Failed(failed)) => {
                    let heard_ms = failed.heard_wall_ms.to_string();
                    let missing = list(failed.missing);
                    let (why, who, host) = (failed.why, failed.participant, failed.host);
                    let outcome = json!(["failed", why, who, host, missing, heard_ms]);
                    recorder.ok(&op, outcome, by);
                    return true;
                }
                _ => recorder.ok(&op, json!("pending"), by),
            }
            self.live().await;
        }
        false
    }
}
