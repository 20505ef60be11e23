//! Participants of a job that join, meet, introduce themselves in their round's store, leave, fall silent and come
//! back; and jobs that are closed.
//!
//! *Invariant:* each join is recorded with its ticket, and so is every answer about the participant's round and
//! state. Only its members write to a round's store, each under its rank.

use super::positioned::Positioned;
use super::repeat;
use super::trainers::{LIMIT, SendResult, Shared, Tasks, Trainer, WAIT_MS, job, participant};
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::{By, Recorder};
use anyhow::Result;
use rand::Rng;
use rollout_proto::{CallOptions, ErrorCode, services, v1};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use v1::rendezvous_wait_response::Outcome;
use v1::{store_answer::Kind as AnswerKind, store_op::Kind as OpKind};

/// The participants.
pub(super) const CLIENTS: &[&str] = &["p1", "p2", "p3", "p4", "p5"];
/// The job at which all meet.
const JOB: &str = "meet";
/// How long a participant waits for its round before it joins again.
const PATIENCE: Duration = Duration::from_secs(4);
/// Bytes that a member writes about itself besides its name, about the size of an address and a certificate's name:
/// in a run that needs snapshots, the log must outgrow its bound.
const ADDRESS_BYTES: usize = 400;

pub struct Running {
    tasks: Tasks,
    last: Member,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let shared = Shared::new(recorder);
    let member = |name: &'static str, seed: u64| -> Result<Member> {
        let trainer = Trainer::new(fleet, name, name, &shared, seed)?;
        Ok(Member { trainer, last: 0, closed: Vec::new() })
    };
    let mut set = JoinSet::new();
    for (number, name) in (0..).zip(CLIENTS) {
        set.spawn(member(name, seed.wrapping_mul(41).wrapping_add(number))?.run());
    }
    let last = member(CLIENTS[0], seed)?;
    Ok(Running { tasks: Tasks { shared, set }, last })
}

impl Running {
    /// See [`super::Running::finish`].
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        self.tasks.end(recovery).await?;
        let begun = Instant::now();
        let mut read = false;
        while !read && begun.elapsed() < recovery {
            let request =
                v1::RendezvousDescribeRequest { job: Some(job(JOB)), ..Default::default() };
            let options = CallOptions::read().timeout(LIMIT * 2);
            let request =
                self.last.trainer.client.with_leader_opts("describe", options, |channel| {
                    let request = request.clone();
                    async move { services::rendezvous(channel).describe(request).await }
                });
            read = request.await.is_ok();
        }
        let answered = u64::from(read);
        self.tasks.shared.recorder.event(EventKind::FinalReads { wanted: 1, answered });
        Ok(())
    }
}

struct Member {
    trainer: Trainer,
    /// Its previous ticket; 0: none.
    last: u64,
    /// Jobs that it has closed.
    closed: Vec<String>,
}

/// A complete round.
struct JoinedRound {
    round: u64,
    ticket: u64,
    rank: u32,
    size: usize,
}

/// The outcome of a join.
enum Joined {
    /// Joined under this ticket.
    Ticket(u64),
    /// The rendezvous is closed.
    Closed,
    /// Refused, or unknown.
    Not,
}

impl Member {
    async fn run(mut self) -> Result<()> {
        while !self.trainer.shared.stopping() {
            if self.trainer.rng.random_ratio(1, 20) {
                self.close_a_job().await;
            }
            if let Joined::Ticket(ticket) = self.join(JOB).await {
                if self.last != 0 && self.trainer.rng.random_ratio(1, 4) {
                    // As an orphan of the previous process would.
                    self.live(self.last, 0).await;
                }
                self.last = ticket;
                if let Some(joined) = self.meet(ticket).await {
                    self.train(ticket, &joined).await;
                }
                self.go(ticket).await;
            }
            self.trainer.pause(5..60).await;
        }
        Ok(())
    }

    async fn join(&mut self, at: &str) -> Joined {
        let Some(request) = self.trainer.request().await else { return Joined::Not };
        let recorder = self.trainer.shared.recorder.clone();
        let (given, id) = (json!(self.trainer.name), Some(repeat::request_text(request.id())));
        let op = recorder.invoke("join", at.to_owned(), given, id);
        let (name, at) = (self.trainer.name.clone(), at.to_owned());
        let send = |channel, id| {
            let request = v1::JoinRequest {
                request: Some(id),
                job: Some(job(&at)),
                participant: Some(participant(&name)),
                min: 2,
                max: 3,
                join_timeout_ms: 20_000,
                last_call_ms: 50,
            };
            async move { services::rendezvous(channel).join(request).await }
        };
        let summary = |answer: &v1::JoinResponse| answer.ticket.to_string();
        match self.trainer.change(request, "join", send, summary).await {
            SendResult::Answered(answer, by) => {
                recorder.ok(&op, json!(answer.ticket.to_string()), by);
                Joined::Ticket(answer.ticket)
            }
            SendResult::Refused(ErrorCode::RendezvousClosed, _) => {
                recorder.ok(&op, json!(false), By::default());
                Joined::Closed
            }
            SendResult::Refused(_, why) => {
                recorder.fail(&op, why);
                Joined::Not
            }
            SendResult::Lost(why) => {
                recorder.info(&op, why);
                Joined::Not
            }
        }
    }

    /// Waits for the round, and returns it.
    async fn meet(&mut self, ticket: u64) -> Option<JoinedRound> {
        let recorder = self.trainer.shared.recorder.clone();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !self.trainer.shared.stopping() {
            let given = json!([self.trainer.name, ticket.to_string()]);
            let op = recorder.invoke("round", JOB.to_owned(), given, None);
            let request = v1::RendezvousWaitRequest {
                job: Some(job(JOB)),
                ticket,
                wait_ms: WAIT_MS,
                without_members: false,
            };
            let options = CallOptions::read().timeout(LIMIT * 2);
            let answer = self.trainer.client.with_leader_opts("wait", options, |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).wait(request).await.map(Positioned::of) }
            });
            let (answer, by) = match answer.await.map(Positioned::into_parts) {
                Ok((answer, by)) => (answer, by),
                Err(error) => {
                    recorder.fail(&op, error.to_string());
                    continue;
                }
            };
            match answer.outcome {
                Some(Outcome::Completed(round)) => {
                    let size = round.members.len();
                    let mut outcome = vec![json!(round.round), json!(round.rank)];
                    outcome.extend(round.members.into_iter().map(|m| json!(m.name)));
                    recorder.ok(&op, Value::Array(outcome), by);
                    return Some(JoinedRound {
                        round: round.round,
                        ticket,
                        rank: round.rank,
                        size,
                    });
                }
                Some(Outcome::Pending(_)) | None => {
                    recorder.ok(&op, json!(["pending"]), by);
                }
                Some(Outcome::Gone(gone)) => {
                    recorder.ok(&op, json!(["gone", gone.why]), by);
                    return None;
                }
                Some(Outcome::Closed(_) | Outcome::TimedOut(_)) => {
                    recorder.ok(&op, json!(["over"]), by);
                    return None;
                }
            }
        }
        None
    }

    /// Stays a member for a while.
    async fn train(&mut self, ticket: u64, joined: &JoinedRound) {
        let round = joined.round;
        for _ in 0..self.trainer.rng.random_range(1..4u32) {
            self.introduce(joined).await;
            self.peers(joined).await;
            self.trainer.pause(5..60).await;
            match self.live(ticket, round).await {
                Some(answer) if !answer.gone.is_empty() || answer.round != round => return,
                _ => {}
            }
        }
    }

    /// Sends a keep-alive for a ticket of that round.
    async fn live(&self, ticket: u64, round: u64) -> Option<v1::KeepAliveAnswer> {
        let recorder = self.trainer.shared.recorder.clone();
        let given = json!([self.trainer.name, ticket.to_string(), round]);
        let op = recorder.invoke("alive", JOB.to_owned(), given, None);
        let answer = self.trainer.keep_alive(&job(JOB), ticket).await;
        match &answer {
            Some(v1::KeepAliveAnswer { standing, round, gone, .. }) => {
                recorder.ok(&op, json!([standing, round, gone]), By::default());
            }
            None => recorder.fail(&op, "no answer".into()),
        }
        answer
    }

    /// Writes its name under its rank, as torch does with addresses.
    async fn introduce(&mut self, joined: &JoinedRound) {
        let Some(request) = self.trainer.request().await else { return };
        let recorder = self.trainer.shared.recorder.clone();
        let given = json!([self.trainer.name, joined.round, joined.rank]);
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("introduce", JOB.to_owned(), given, id);
        let value = format!("{} {}", self.trainer.name, "-".repeat(ADDRESS_BYTES));
        let pair = v1::StorePair { key: rank_key(joined.rank).into(), value: value.into() };
        let ops = vec![v1::StoreOp { kind: Some(OpKind::Set(v1::StoreSet { pairs: vec![pair] })) }];
        let send = |channel, id| {
            let store = store_of(joined);
            let request = v1::StoreApplyRequest { request: Some(id), store, ops: ops.clone() };
            async move { services::store(channel).apply(request).await }
        };
        let summary = |answer: &v1::StoreApplyResponse| format!("{:?}", answer.answers);
        match self.trainer.change(request, "introduce", send, summary).await {
            SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
            SendResult::Refused(_, why) => recorder.fail(&op, why),
            SendResult::Lost(why) => recorder.info(&op, why),
        }
    }

    /// Reads the names of all ranks.
    async fn peers(&mut self, joined: &JoinedRound) {
        let recorder = self.trainer.shared.recorder.clone();
        let given = json!([self.trainer.name, joined.round]);
        let op = recorder.invoke("peers", JOB.to_owned(), given, None);
        let ranks = 0..u32::try_from(joined.size).unwrap_or(0);
        let request = v1::StoreReadRequest {
            store: store_of(joined),
            keys: ranks.map(|rank| rank_key(rank).into()).collect(),
            ..v1::StoreReadRequest::default()
        };
        let options = CallOptions::read().timeout(LIMIT * 2);
        let read = self.trainer.client.with_leader_opts("read the store", options, |channel| {
            let request = request.clone();
            async move { services::store(channel).read(request).await.map(Positioned::of) }
        });
        match read.await {
            Ok(positioned) => {
                let (answer, by) = positioned.into_parts();
                let names = answer.values.into_iter().map(|value| match value.kind {
                    Some(AnswerKind::Value(value)) => {
                        let text = String::from_utf8_lossy(&value).into_owned();
                        json!(text.split(' ').next())
                    }
                    _ => Value::Null,
                });
                recorder.ok(&op, names.collect(), by);
            }
            Err(error) => recorder.fail(&op, error.to_string()),
        }
    }

    /// Joins again, leaves, or stays silent for longer than allowed.
    async fn go(&mut self, ticket: u64) {
        match self.trainer.rng.random_range(0..10) {
            0..6 => {}
            6..8 => {
                let Some(request) = self.trainer.request().await else { return };
                let recorder = self.trainer.shared.recorder.clone();
                let given = json!([self.trainer.name, ticket.to_string()]);
                let id = Some(repeat::request_text(request.id()));
                let op = recorder.invoke("leave", JOB.to_owned(), given, id);
                let send = |channel, id| {
                    let request =
                        v1::LeaveRequest { request: Some(id), job: Some(job(JOB)), ticket };
                    async move { services::rendezvous(channel).leave(request).await }
                };
                match self.trainer.change(request, "leave", send, |_| String::new()).await {
                    SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
                    SendResult::Refused(_, why) => recorder.fail(&op, why),
                    SendResult::Lost(why) => recorder.info(&op, why),
                }
            }
            _ => self.trainer.pause(1600..3000).await,
        }
    }

    /// Closes a job of its own; nothing may join it afterward.
    async fn close_a_job(&mut self) {
        let name = format!("over-{}", self.trainer.shared.next());
        self.join(&name).await;
        let Some(request) = self.trainer.request().await else { return };
        let recorder = self.trainer.shared.recorder.clone();
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("close", name.clone(), Value::Null, id);
        let send = |channel, id| {
            let request = v1::RendezvousCloseRequest { request: Some(id), job: Some(job(&name)) };
            async move { services::rendezvous(channel).close(request).await }
        };
        match self.trainer.change(request, "close", send, |_| String::new()).await {
            SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
            SendResult::Refused(_, why) => return recorder.fail(&op, why),
            SendResult::Lost(why) => return recorder.info(&op, why),
        }
        // Joining any job that it has closed, this one or an old one, must fail.
        self.closed.push(name);
        let which = self.trainer.rng.random_range(0..self.closed.len());
        let name = self.closed[which].clone();
        self.join(&name).await;
    }
}

/// The store in which the members of a round find each other.
fn store_of(joined: &JoinedRound) -> Option<v1::StoreName> {
    let (round, ticket) = (joined.round, joined.ticket);
    Some(v1::StoreName { namespace: String::new(), job: JOB.into(), round, ticket })
}

fn rank_key(rank: u32) -> String {
    format!("rank-{rank}")
}
