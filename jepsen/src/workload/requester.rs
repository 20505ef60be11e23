//! A client that distrusts every answer: it sends its requests again under their ids, before they are answered and
//! long after, to the leader and to other members.
//!
//! *Invariant:* a repeat is no operation of its own: if it takes effect again, later reads show what no history
//! explains. Only its answer is compared with the first.

use super::positioned::Positioned;
use super::repeat;
use super::session::{REGISTERS, Shared};
use super::submitter::{NAMESPACE, spec};
use crate::events::EventKind;
use crate::recorder::{By, Op};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::client::PendingRequest;
use rollout_proto::{
    CallOptions, Channel, Client, ClientError, ErrorCode, RpcError, Session, Stamp, services, v1,
};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tonic::service::interceptor::InterceptedService;

/// The most answered requests that it may still send again.
const KEPT_MAX: usize = 12;
const LIMIT: Duration = Duration::from_millis(800);

#[derive(Clone, Debug)]
enum Request {
    /// Pauses a run for this reason.
    Pause(u64, String),
    Resume(u64),
    Create(String),
}

struct Answered {
    pending: PendingRequest,
    request: Request,
    first_answer: String,
}

pub(super) struct Requester {
    name: &'static str,
    client: Client,
    /// Channels to each member by name that bypass the client's knowledge of epochs.
    raw: Vec<(String, tonic::transport::Channel)>,
    shared: Arc<Shared>,
    rng: StdRng,
    session: Option<Session>,
    answered: VecDeque<Answered>,
    sent: u64,
}

/// Why a request got no valid answer.
enum NoAnswer {
    /// The cluster has forgotten the session, or the request.
    Forgotten,
    /// It was refused for good.
    Refused(RpcError),
    /// The run is over.
    Stopping,
}

pub(super) fn register(number: u64) -> String {
    format!("register-{number}")
}

impl Requester {
    pub(super) fn new(
        name: &'static str,
        client: Client,
        raw: Vec<(String, tonic::transport::Channel)>,
        shared: Arc<Shared>,
        seed: u64,
    ) -> Self {
        let (rng, answered) = (StdRng::seed_from_u64(seed), VecDeque::new());
        Self { name, client, raw, shared, rng, session: None, answered, sent: 0 }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let mut made = 0;
        while !self.shared.stopping() {
            let Some(session) = self.session().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let number = self.rng.random_range(0..REGISTERS);
            match self.rng.random_range(0..100) {
                // The registers; the first client creates them.
                _ if made < REGISTERS => {
                    let create = Request::Create(register(made));
                    if self.ask(&session, create).await {
                        self.shared.is_made(made);
                        made += 1;
                    }
                }
                0..30 => {
                    self.sent += 1;
                    let reason = format!("{}-{}", self.name, self.sent);
                    self.ask(&session, Request::Pause(number, reason)).await;
                }
                30..36 => {
                    self.ask(&session, Request::Resume(number)).await;
                }
                36..46 => {
                    let name = format!("duel-{}", self.shared.create_race());
                    self.ask(&session, Request::Create(name)).await;
                }
                46..50 => self.lie(&session).await,
                50..52 => self.session = None,
                52..70 => self.again().await,
                _ => {
                    self.get(number).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(2..40))).await;
        }
        Ok(())
    }

    async fn session(&mut self) -> Option<Session> {
        if self.session.is_none() {
            let session = self.client.open_session(self.name).await.ok()?;
            let (observer, id) = (self.name.to_owned(), session.id());
            self.shared.recorder.event(EventKind::Opened { observer, session: id });
            self.session = Some(session);
        }
        self.session.clone()
    }

    /// Sends one request and copies of it until the first answer. True if the answer is a success.
    async fn ask(&mut self, session: &Session, request: Request) -> bool {
        let pending = session.request();
        let id = pending.id();
        let op = self.invoke(&request, id);
        let mut copied = false;
        if self.rng.random_ratio(1, 3) {
            copied = true;
            // Send a copy without waiting for its answer.
            let patience = Duration::from_millis(self.rng.random_range(0..30));
            if let Ok(Ok((_, channel))) =
                tokio::time::timeout(LIMIT, self.client.leader_channel()).await
            {
                let _ = tokio::time::timeout(patience, send(channel, id, &request)).await;
            }
        }
        if self.rng.random_ratio(1, 4) {
            // Send a copy to any member; only a leader answers it.
            copied = true;
            self.ask_anybody(id, &request).await;
        }
        let recorder = self.shared.recorder.clone();
        match self.until_answered(id, &request).await {
            Ok((first_answer, by)) => {
                let value = match &request {
                    Request::Create(_) => Value::Bool(first_answer.ends_with("created")),
                    _ => Value::Null,
                };
                recorder.ok(&op, value, By { repeated: copied || by.repeated, ..by });
                self.answered.push_back(Answered { pending, request, first_answer });
                while self.answered.len() > KEPT_MAX {
                    self.again().await;
                }
                return true;
            }
            Err(NoAnswer::Forgotten) => {
                self.session = None;
                recorder.info(&op, "the session is gone".to_owned());
            }
            Err(NoAnswer::Refused(error)) => {
                if let Request::Pause(run, _) | Request::Resume(run) = request {
                    // A client pauses only registers that were created before.
                    self.shared.refused(run, true, Some(error.code));
                }
                recorder.info(&op, error.to_string());
            }
            Err(NoAnswer::Stopping) => recorder.info(&op, "the run ended".to_owned()),
        }
        false
    }

    fn invoke(&self, request: &Request, id: v1::RequestId) -> Op {
        let (f, key, value) = match request {
            Request::Pause(run, reason) => ("put", register(*run), json!(reason)),
            Request::Resume(run) => ("put", register(*run), json!("")),
            Request::Create(name) => ("create", name.clone(), Value::Null),
        };
        self.shared.recorder.invoke(f, key, value, Some(repeat::request_text(id)))
    }

    async fn ask_anybody(
        &mut self,
        id: v1::RequestId,
        request: &Request,
    ) -> Option<Result<String, tonic::Status>> {
        let members = self.client.member_channels().ok().filter(|members| !members.is_empty())?;
        let (_, channel) = members[self.rng.random_range(0..members.len())].clone();
        tokio::time::timeout(LIMIT, send(channel, id, request)).await.ok()
    }

    /// Sends an old request once more: the answer must equal the first one.
    async fn again(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        let which = self.rng.random_range(0..self.answered.len());
        let Some(old) = self.answered.remove(which) else { return };
        let id = old.pending.id();
        let second = match self.ask_anybody(id, &old.request).await {
            Some(Ok(answer)) => Ok(answer),
            _ => self.until_answered(id, &old.request).await.map(|(answer, _)| answer),
        };
        let second = match second {
            Ok(answer) => answer,
            // The cluster may forget an answer, but must not execute the request again.
            Err(NoAnswer::Forgotten | NoAnswer::Stopping) => return,
            Err(NoAnswer::Refused(error)) => error.to_string(),
        };
        self.shared.recorder.event(EventKind::Repeated {
            what: format!("{:?}", old.request),
            request_id: repeat::request_text(id),
            same: second == old.first_answer,
            detail: format!("{}, then {second}", old.first_answer),
        });
        if self.rng.random_ratio(1, 3) {
            self.answered.push_back(old);
        }
    }

    async fn until_answered(
        &self,
        id: v1::RequestId,
        request: &Request,
    ) -> Result<(String, By), NoAnswer> {
        let options = CallOptions::default().attempt_timeout(LIMIT);
        let copies = AtomicU32::new(0);
        loop {
            let sent = self.client.with_leader_opts("request", options, |channel| {
                copies.fetch_add(1, Ordering::Relaxed);
                let request = request.clone();
                async move { sent(channel, id, &request).await.map(Positioned::of) }
            });
            match sent.await {
                Ok(positioned) => {
                    let (RequestAnswer(answer, _), by) = positioned.into_parts();
                    let repeated = copies.load(Ordering::Relaxed) > 1;
                    return Ok((answer, By { repeated, ..by }));
                }
                Err(ClientError::Rpc(error)) if !error.code.retryable() => {
                    return Err(match error.code {
                        ErrorCode::SessionUnknown | ErrorCode::RequestForgotten => {
                            NoAnswer::Forgotten
                        }
                        _ => NoAnswer::Refused(error),
                    });
                }
                Err(_) if self.shared.stopping() => return Err(NoAnswer::Stopping),
                Err(_) => {}
            }
        }
    }

    /// Sends a request in the name of an epoch that is over. It must be refused and have no effect.
    async fn lie(&mut self, session: &Session) {
        let (epoch, cluster) = (self.client.coord_epoch(), self.client.cluster_id());
        let Some(leader) = self.client.leader().filter(|_| epoch > 1) else { return };
        let Some((_, channel)) = self.raw.iter().find(|(name, _)| *name == leader.name) else {
            return;
        };
        let (stamp, claimed) = (Stamp::default(), epoch - 1);
        stamp.update(&cluster, claimed);
        let channel = InterceptedService::new(channel.clone(), stamp);
        self.sent += 1;
        let name = format!("stale-{}-{}", self.name, self.sent);
        let request = v1::CreateRunRequest {
            request: Some(session.request().id()),
            namespace: NAMESPACE.into(),
            name,
            spec: Some(spec(false)),
            folder: String::new(),
        };
        let mut runs = services::runs(channel);
        let request = runs.create_run(request);
        let answered = match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().header.map_or(0, |h| h.coord_epoch)),
            Ok(Err(status)) => Err(RpcError::from_status(&status).code),
            Err(_) => return,
        };
        let Some(taken_by) = taken(answered) else { return };
        self.shared.recorder.event(EventKind::Stale {
            observer: self.name.into(),
            what: "create run".into(),
            claimed,
            taken_by,
        });
    }

    /// Reads why a run is paused. True if it was answered.
    pub(super) async fn get(&mut self, number: u64) -> bool {
        let recorder = self.shared.recorder.clone();
        let (name, made) = (register(number), self.shared.made(number));
        let op = recorder.invoke("get", name.clone(), Value::Null, None);
        let request =
            v1::DescribeRunRequest { namespace: NAMESPACE.into(), name, ..Default::default() };
        let options = CallOptions::read().timeout(LIMIT * 2);
        let read = self.client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await.map(Positioned::of) }
        });
        match read.await {
            Ok(positioned) => {
                let (answer, by) = positioned.into_parts();
                let run = answer.run.unwrap_or_default();
                let paused = run.state() == v1::RunState::Paused;
                let seen = if paused { run.reason } else { String::new() };
                recorder.ok(&op, json!(seen), by);
                true
            }
            // A read changes nothing, whatever its outcome.
            Err(error) => {
                self.shared.refused(number, made, error.code());
                recorder.fail(&op, error.to_string());
                false
            }
        }
    }
}

/// Whether a change in the name of an epoch that is over was accepted, and in which epoch, if the answer says it;
/// `None` if the answer does not show it. Only a refusal that names the epoch as its reason counts as one.
fn taken(answered: Result<u64, ErrorCode>) -> Option<Option<u64>> {
    match answered {
        Ok(epoch) => Some(Some(epoch)),
        Err(ErrorCode::StaleEpoch) => Some(None),
        Err(_) => None,
    }
}

/// The answer to a request.
struct RequestAnswer(String, Option<v1::ClusterHeader>);

impl rollout_proto::HasHeader for RequestAnswer {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        self.1.as_ref()
    }
}

async fn send(
    channel: Channel,
    id: v1::RequestId,
    request: &Request,
) -> Result<String, tonic::Status> {
    Ok(sent(channel, id, request).await?.into_inner().0)
}

async fn sent(
    channel: Channel,
    id: v1::RequestId,
    request: &Request,
) -> Result<tonic::Response<RequestAnswer>, tonic::Status> {
    let mut runs = services::runs(channel);
    let (namespace, id) = (NAMESPACE.to_owned(), Some(id));
    let (name, action, reason) = match request.clone() {
        Request::Pause(number, reason) => (register(number), v1::RunAction::Pause, reason),
        Request::Resume(number) => (register(number), v1::RunAction::Resume, String::new()),
        Request::Create(name) => {
            let spec = Some(spec(false));
            let folder = String::new();
            let create = v1::CreateRunRequest { request: id, namespace, name, spec, folder };
            let answer = runs.create_run(create).await?;
            return Ok(answer.map(|answer| {
                let made = if answer.created { "created" } else { "found" };
                RequestAnswer(format!("run {} {made}", answer.run), answer.header)
            }));
        }
    };
    let action = action.into();
    let control = v1::ControlRunRequest { request: id, namespace, name, action, reason };
    let answer = runs.control_run(control).await?;
    Ok(answer.map(|answer| RequestAnswer("done".to_owned(), answer.header)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_request_that_is_taken_is_no_refusal_whatever_its_answer_says() {
        for epoch in [0, 3, 9] {
            assert_eq!(taken(Ok(epoch)), Some(Some(epoch)));
        }
        assert_eq!(taken(Err(ErrorCode::StaleEpoch)), Some(None));
        for code in [ErrorCode::NotLeader, ErrorCode::NoQuorum, ErrorCode::SessionUnknown] {
            assert_eq!(taken(Err(code)), None, "{code}");
        }
    }
}
