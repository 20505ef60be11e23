//! Shared code of the training job clients: send one request until it is answered, now and then twice, and keep
//! participants alive.
//!
//! *Invariant:* a request that may still take effect is recorded as unknown. A second copy of an answered request
//! must get the same answer, and does not delay the record of the first.

use super::positioned::Positioned;
use super::repeat;
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::{By, Recorder};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::client::PendingRequest;
use rollout_proto::{
    CallOptions, Channel, Client, ClientError, ErrorCode, HasHeader, Outcome, Session, services, v1,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Response, Status};

/// Time limit of one attempt of a call.
pub(super) const LIMIT: Duration = Duration::from_millis(800);
/// How long one call keeps trying.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Between two calls for one answer.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a leader holds a wait.
pub(super) const WAIT_MS: u64 = 400;

/// What all clients of a workload share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    stop: AtomicBool,
    counter: AtomicU64,
}

impl Shared {
    pub(super) fn new(recorder: &Arc<Recorder>) -> Arc<Self> {
        let (stop, counter) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { recorder: recorder.clone(), stop, counter })
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// A unique number.
    pub(super) fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The last number given.
    pub(super) fn last(&self) -> u64 {
        self.counter.load(Ordering::Relaxed)
    }
}

/// Tasks that run until they are stopped.
pub(super) struct Tasks {
    pub(super) shared: Arc<Shared>,
    pub(super) set: JoinSet<Result<()>>,
}

impl Tasks {
    /// Waits for a write that succeeds after everything was healed, then ends all clients.
    pub(super) async fn end(&mut self, recovery: Duration) -> Result<()> {
        super::item::recovered(&self.shared.recorder, recovery).await;
        self.shared.stop();
        while let Some(ended) = self.set.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// A client with a session of its own.
pub(super) struct Trainer {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) shared: Arc<Shared>,
    pub(super) rng: StdRng,
    session: Option<Session>,
}

/// The outcome of a request that changes something.
pub(super) enum SendResult<T> {
    /// It was answered.
    Answered(T, By),
    /// It was refused for good, and did not happen.
    Refused(ErrorCode, String),
    /// The outcome is unknown.
    Lost(String),
}

impl<T> SendResult<T> {
    /// The same with a part of the answer.
    pub(super) fn map<U>(self, part: impl FnOnce(T) -> U) -> SendResult<U> {
        match self {
            Self::Answered(answer, by) => SendResult::Answered(part(answer), by),
            Self::Refused(code, why) => SendResult::Refused(code, why),
            Self::Lost(why) => SendResult::Lost(why),
        }
    }
}

impl Trainer {
    pub(super) fn new(
        fleet: &Fleet,
        certificate: &'static str,
        name: &str,
        shared: &Arc<Shared>,
        seed: u64,
    ) -> Result<Self> {
        let client = fleet.client("client", certificate, CALL_TIMEOUT)?;
        let (name, rng) = (name.to_owned(), StdRng::seed_from_u64(seed));
        Ok(Self { name, client, shared: shared.clone(), rng, session: None })
    }

    pub(super) async fn pause(&mut self, ms: std::ops::Range<u64>) {
        let ms = self.rng.random_range(ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// The session under which requests are sent; none while the cluster cannot be reached.
    async fn session(&mut self) -> Option<Session> {
        if self.session.is_none() {
            let session = self.client.open_session(&self.name).await.ok()?;
            let (observer, id) = (self.name.clone(), session.id());
            self.shared.recorder.event(EventKind::Opened { observer, session: id });
            self.session = Some(session);
        }
        self.session.clone()
    }

    /// A new request; none while the cluster cannot be reached.
    pub(super) async fn request(&mut self) -> Option<PendingRequest> {
        Some(self.session().await?.request())
    }

    /// Continues as a new process would: without its session.
    pub(super) fn restart(&mut self) {
        self.session = None;
    }

    /// Sends a request until it is answered or the run ends; now and then sends it once more and compares the
    /// answers.
    pub(super) async fn change<T, F, Fut>(
        &mut self,
        pending: PendingRequest,
        what: &'static str,
        send: F,
        summary: impl Fn(&T) -> String,
    ) -> SendResult<T>
    where
        T: HasHeader,
        F: Fn(Channel, v1::RequestId) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let id = pending.id();
        let options = CallOptions::default().attempt_timeout(LIMIT);
        let copies = AtomicU32::new(0);
        let send = |channel| {
            copies.fetch_add(1, Ordering::Relaxed);
            let sent = send(channel, id);
            async move { sent.await.map(Positioned::of) }
        };
        let (first, by) = loop {
            match self.client.with_leader_opts(what, options, &send).await {
                Ok(positioned) => {
                    let repeated = copies.load(Ordering::Relaxed) > 1;
                    let (answer, by) = positioned.into_parts();
                    let answered_ns = Some(self.shared.recorder.now_ns());
                    break (answer, By { repeated, answered_ns, ..by });
                }
                Err(ClientError::Rpc(error)) if !error.code.retryable() => {
                    return match (error.code, error.outcome) {
                        (ErrorCode::SessionUnknown | ErrorCode::RequestForgotten, _) => {
                            self.session = None;
                            SendResult::Lost(error.to_string())
                        }
                        (code, Outcome::NotApplied) => SendResult::Refused(code, error.to_string()),
                        _ => SendResult::Lost(error.to_string()),
                    };
                }
                Err(error) if self.shared.stopping() => return SendResult::Lost(error.to_string()),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        if self.rng.random_ratio(1, 5) {
            let again = self.client.with_leader_opts(what, options, &send).await;
            let second = again.map(|second| summary(&second.answer));
            if let Some(judged) = repeat::judged(what, id, &summary(&first), second) {
                self.shared.recorder.event(judged);
            }
        }
        pending.ack();
        SendResult::Answered(first, by)
    }

    /// Sends a keep-alive for a participant until a member answers, and returns the answer.
    pub(super) async fn keep_alive(
        &self,
        job: &v1::JobName,
        ticket: u64,
    ) -> Option<v1::KeepAliveAnswer> {
        let one = v1::ParticipantRef { job: Some(job.clone()), ticket };
        let request = v1::KeepAliveRequest { participants: vec![one] };
        let options = CallOptions::read().timeout(LIMIT);
        let sent = self.client.with_leader_opts("keep alive", options, |channel| {
            let request = request.clone();
            async move { services::rendezvous(channel).keep_alive(request).await }
        });
        sent.await.ok()?.answers.into_iter().next()
    }
}

/// A participant that is lost after a second and a half.
pub(super) fn participant(name: &str) -> v1::Participant {
    v1::Participant {
        name: name.to_owned(),
        host: format!("host-of-{name}"),
        addr: String::new(),
        local_world_size: 1,
        keep_alive_interval_ms: 500,
        keep_alive_attempts: 3,
    }
}

/// A job of the default namespace.
pub(super) fn job(name: &str) -> v1::JobName {
    v1::JobName { namespace: String::new(), job: name.to_owned() }
}
