//! Owns: this process as a participant of a job's rendezvous.
//!
//! *Invariant:* from joining until it leaves, or the cluster declares it gone, native threads keep it alive, whatever
//! Python does. [`Rendezvous::waiting`] sends no request.
//! Absent: torch's class and the round's store; the package has those.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use rollout_gateway::{PAUSE, Sessions};
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, services, v1};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::rendezvous_wait_response::Outcome;

use crate::error::raised;
use crate::participant;
use crate::wait::{FOR_EVER, runtime, wait, wait_or_raise};

/// How long the leader holds a request before it answers that nothing has changed.
const HELD_MS: u64 = 10_000;
/// Limit of one attempt of such a request: the leader's time plus the round trip.
const HELD_ATTEMPT: Duration = Duration::from_secs(15);
/// The pause between an answer and the next request. While a thousand participants join there are a thousand versions,
/// and each answer lists them all.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A complete round.
#[pyclass(frozen, get_all)]
pub(crate) struct Round {
    /// Its number, from 1.
    round: u64,
    /// This participant's ticket.
    ticket: u64,
    /// This participant's rank.
    rank: u32,
    /// Members.
    world_size: u32,
    /// The members' names, by rank.
    members: Vec<String>,
}

/// A participant.
#[pyclass(frozen)]
pub struct Rendezvous {
    shared: Arc<Shared>,
    /// The tasks that keep it alive and watch its round.
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    client: Client,
    sessions: Sessions,
    job: v1::JobName,
    participant: v1::Participant,
    seen: Mutex<LastAnswers>,
}

/// The cluster's last answers.
#[derive(Default)]
struct LastAnswers {
    ticket: u64,
    /// Why the ticket is void.
    gone: Option<String>,
    /// The round of which it is a member, and the round's size.
    round: u64,
    world_size: u32,
    /// How many members are still present.
    joined: u32,
    waiting: u32,
    closed: bool,
}

impl Rendezvous {
    pub(crate) fn new(client: Client, job: v1::JobName, participant: v1::Participant) -> Self {
        let sessions = Sessions::new(client.clone());
        let shared = Shared { client, sessions, job, participant, seen: Mutex::default() };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }
}

#[pymethods]
impl Rendezvous {
    /// Joins, leaving any round of which it is a member, and waits for the next round to be complete. Returns
    /// ("completed", round), ("closed", None), ("redundant", None) if it was closed with enough participants without
    /// this one, ("timed_out", None), or the reason why the participant is gone. Raises ConnectionError if no member
    /// has answered for `silence_ms`.
    fn next(
        &self,
        py: Python<'_>,
        min: u32,
        max: u32,
        join_timeout_ms: u64,
        last_call_ms: u64,
        silence_ms: u64,
    ) -> PyResult<(String, Option<Round>)> {
        self.tasks.lock().abort_all();
        let runtime = runtime()?;
        let silence = Duration::from_millis(silence_ms);
        let joined = wait_or_raise(
            py,
            silence,
            "the cluster does not answer",
            self.shared.join(min, max, join_timeout_ms, last_call_ms),
        )?;
        let joined = match joined {
            Err(error) if error.code() == Some(ErrorCode::RendezvousClosed) => {
                return Ok(("closed".to_owned(), None));
            }
            joined => joined.map_err(raised)?,
        };
        *self.shared.seen.lock() = LastAnswers { ticket: joined.ticket, ..LastAnswers::default() };
        let keeping = self.shared.clone().keep_alive(joined.ticket, joined.keep_alive_ms);
        self.tasks.lock().spawn_on(keeping, &runtime);
        let ended = wait(py, FOR_EVER, self.shared.complete(joined.ticket, silence))?;
        let (what, round) = match ended {
            Some(ended) => ended.map_err(raised)?,
            None => ("timed_out".to_owned(), None),
        };
        if round.is_some() {
            self.tasks.lock().spawn_on(self.shared.clone().look_after(), &runtime);
        }
        Ok((what, round))
    }

    /// How many participants wait for a new round to begin: late arrivals, or members of this round that are gone,
    /// including this participant. 0 if the round is unchanged, or if the rendezvous is closed. After a close no other
    /// round begins, and members finish their work in this one: members that are done close it, and leave.
    fn waiting(&self) -> u32 {
        let seen = self.shared.seen.lock();
        match &seen.gone {
            _ if seen.closed => 0,
            Some(_) => 1,
            None => seen.waiting.max(seen.world_size.saturating_sub(seen.joined)),
        }
    }

    /// Whether the rendezvous is closed to new participants. A job that does not exist yet is not closed.
    fn is_closed(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<bool> {
        if self.shared.seen.lock().closed {
            return Ok(true);
        }
        let within = Duration::from_millis(timeout_ms);
        let described = self.shared.describe(None);
        match wait_or_raise(py, within, "the cluster does not answer", described)? {
            Err(error) if error.code() == Some(ErrorCode::JobNotFound) => Ok(false),
            described => Ok(described.map_err(raised)?.closed),
        }
    }

    /// Closes the rendezvous permanently.
    fn close(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        let within = Duration::from_millis(timeout_ms);
        let closed = wait_or_raise(py, within, "the cluster does not answer", self.shared.close())?;
        closed.map_err(raised)
    }

    /// Leaves, and stops the keep-alives.
    fn leave(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        self.tasks.lock().abort_all();
        let within = Duration::from_millis(timeout_ms);
        let left = wait_or_raise(py, within, "the cluster does not answer", self.shared.leave())?;
        left.map_err(raised)
    }
}

impl Shared {
    async fn join(
        &self,
        min: u32,
        max: u32,
        join_timeout_ms: u64,
        last_call_ms: u64,
    ) -> Result<v1::JoinResponse, ClientError> {
        let joined = self.sessions.change_until_answered(|id| {
            let request = v1::JoinRequest {
                request: Some(id),
                job: Some(self.job.clone()),
                participant: Some(self.participant.clone()),
                min,
                max,
                join_timeout_ms,
                last_call_ms,
            };
            self.client.with_leader("join the rendezvous", move |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).join(request).await }
            })
        });
        joined.await
    }

    /// Waits for the round to be complete.
    async fn complete(
        &self,
        ticket: u64,
        silence: Duration,
    ) -> Result<(String, Option<Round>), ClientError> {
        let request = v1::RendezvousWaitRequest {
            job: Some(self.job.clone()),
            ticket,
            wait_ms: HELD_MS,
            without_members: false,
        };
        let mut answered_at = Instant::now();
        loop {
            let options = CallOptions::read().attempt_timeout(HELD_ATTEMPT);
            let answer = self
                .client
                .with_leader_opts("wait for the rendezvous", options, |channel| {
                    let request = request.clone();
                    async move { services::rendezvous(channel).wait(request).await }
                })
                .await;
            let outcome = match answer {
                Ok(answer) => answer.outcome,
                Err(error) if error.may_pass() && answered_at.elapsed() < silence => {
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            answered_at = Instant::now();
            return Ok(match outcome {
                None | Some(Outcome::Pending(_)) => continue,
                Some(Outcome::Completed(round)) => {
                    ("completed".to_owned(), Some(self.enter(round)))
                }
                Some(Outcome::Closed(closed)) => {
                    (if closed.redundant { "redundant" } else { "closed" }.to_owned(), None)
                }
                Some(Outcome::TimedOut(_)) => ("timed_out".to_owned(), None),
                Some(Outcome::Gone(gone)) => (gone.why, None),
            });
        }
    }

    fn enter(&self, round: v1::RendezvousRound) -> Round {
        let mut seen = self.seen.lock();
        (seen.round, seen.world_size) = (round.round, round.world_size);
        seen.joined = round.world_size;
        Round {
            round: round.round,
            ticket: seen.ticket,
            rank: round.rank,
            world_size: round.world_size,
            members: round.members.into_iter().map(|member| member.name).collect(),
        }
    }

    async fn keep_alive(self: Arc<Self>, ticket: u64, keep_alive_ms: u64) {
        let attempts = u64::from(self.participant.keep_alive_attempts.max(1));
        let (client, job) = (self.client.clone(), self.job.clone());
        let on_answer = move |answer| self.record_answer(ticket, answer);
        participant::keep_alive(client, job, ticket, keep_alive_ms / attempts, on_answer).await;
    }

    /// Whether to keep the participant of that ticket alive.
    fn record_answer(&self, ticket: u64, answer: v1::KeepAliveAnswer) -> bool {
        let mut seen = self.seen.lock();
        if seen.ticket != ticket {
            return false;
        }
        seen.waiting = answer.num_nodes_waiting;
        // Closing is permanent, whichever of two answers arrives first.
        seen.closed |= answer.closed;
        let lives = answer.gone.is_empty();
        if !lives {
            seen.gone = Some(answer.gone);
        }
        lives
    }

    /// Watches the round: learns of arrivals and departures within [`BETWEEN_LOOKS`] plus the round trip.
    async fn look_after(self: Arc<Self>) {
        let mut version = None;
        loop {
            match self.describe(version).await {
                Ok(now) => {
                    version = Some(now.version);
                    let mut seen = self.seen.lock();
                    seen.waiting = now.num_nodes_waiting;
                    seen.closed |= now.closed;
                    // It is not a member of another round.
                    let same = now.complete && now.round == seen.round;
                    seen.joined = if same { now.joined } else { 0 };
                }
                Err(_) => sleep(PAUSE).await,
            }
            // One answer covers all changes meanwhile, because each lists every participant.
            sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn describe(&self, version: Option<u64>) -> Result<v1::RendezvousInfo, ClientError> {
        let request = v1::RendezvousDescribeRequest {
            job: Some(self.job.clone()),
            known_version: version,
            wait_ms: HELD_MS,
        };
        let options = CallOptions::read().attempt_timeout(HELD_ATTEMPT);
        let described = self
            .client
            .with_leader_opts("look at the rendezvous", options, |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).describe(request).await }
            })
            .await?;
        Ok(described.rendezvous.unwrap_or_default())
    }

    async fn close(&self) -> Result<(), ClientError> {
        let closed = self.sessions.change_until_answered(|id| {
            let (request, job) = (Some(id), Some(self.job.clone()));
            let request = v1::RendezvousCloseRequest { request, job };
            self.client.with_leader("close the rendezvous", move |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).close(request).await }
            })
        });
        closed.await.map(drop)
    }

    async fn leave(&self) -> Result<(), ClientError> {
        let ticket = std::mem::take(&mut *self.seen.lock()).ticket;
        if ticket == 0 {
            return Ok(());
        }
        participant::leave(&self.client, &self.sessions, &self.job, ticket).await
    }
}
