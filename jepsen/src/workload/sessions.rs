//! A worker that comes, leaves, and comes back in sessions that have ended, and in the name of epochs that are over.
//!
//! *Invariant:* a session counts as ended once the cluster has said so; from then on a leader that accepts any sign
//! of life of it is a violation.

use super::session::Shared;
use super::submitter::NAMESPACE;
use crate::events::EventKind;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::{CallOptions, Client, ErrorCode, RpcError, services, v1};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

const LIMIT: Duration = Duration::from_millis(1500);
/// The most ended sessions to come back in.
const ENDED_MAX: usize = 30;

pub(super) struct Visitor {
    name: &'static str,
    client: Client,
    shared: Arc<Shared>,
    rng: StdRng,
    instance: u64,
    ended: Vec<u64>,
}

impl Visitor {
    pub(super) fn new(name: &'static str, client: Client, shared: Arc<Shared>, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let instance = rng.random();
        Self { name, client, shared, rng, instance, ended: Vec::new() }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if let Some(session) = self.come().await {
                let epoch = self.client.coord_epoch();
                if epoch > 1 {
                    self.speak(session, epoch - 1, false).await;
                }
                if let Some(old) = self.an_ended_one() {
                    self.speak(old, epoch, true).await;
                }
                self.leave(session).await;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(50..500))).await;
        }
        Ok(())
    }

    fn event(&self, what: EventKind) {
        self.shared.recorder.event(what);
    }

    fn an_ended_one(&mut self) -> Option<u64> {
        let which = self.rng.random_range(0..self.ended.len().max(1));
        self.ended.get(which).copied()
    }

    /// Registers, half of the time under a session that has ended.
    async fn come(&mut self) -> Option<u64> {
        let ended = self.an_ended_one().filter(|_| self.rng.random_bool(0.5));
        let offer = v1::SlotOffer {
            slot: 0,
            models: vec!["nothing".into()],
            tasks: vec!["nothing".into()],
            engine: "mock".into(),
            ..v1::SlotOffer::default()
        };
        let request = v1::RegisterRequest {
            namespace: NAMESPACE.into(),
            name: self.name.into(),
            instance: self.instance,
            resume_session: ended.unwrap_or_default(),
            coord_epoch_seen: self.client.coord_epoch(),
            cluster_id: self.client.cluster_id(),
            slots: vec![offer],
            address: "rollout-jepsen".into(),
            ..v1::RegisterRequest::default()
        };
        let options = CallOptions::default().attempt_timeout(LIMIT);
        let answer = self.client.with_leader_opts("register", options, |channel| {
            let request = request.clone();
            async move { services::worker(channel).register(request).await }
        });
        let answer = answer.await.ok()?;
        let (observer, session) = (self.name.to_owned(), answer.session);
        if ended == Some(session) || (ended.is_some() && answer.resumed) {
            self.event(EventKind::Revived { observer, session, how: "it was resumed".into() });
        } else {
            self.event(EventKind::Opened { observer, session });
        }
        Some(session)
    }

    /// Sends a heartbeat and an exchange for a session in an epoch, at least one of which is over.
    async fn speak(&mut self, session: u64, coord_epoch: u64, has_ended: bool) {
        let Ok(Ok((_, channel))) = tokio::time::timeout(LIMIT, self.client.leader_channel()).await
        else {
            return;
        };
        let (out, outbound) = mpsc::channel(2);
        let heartbeat = Up::Heartbeat(v1::Heartbeat { seq: 1, ..Default::default() });
        let pull = v1::Exchange { seq: 1 << 40, credit_rows: 1, ..Default::default() };
        for kind in [heartbeat, Up::Exchange(pull)] {
            let kind = Some(kind);
            let instance = self.instance;
            let message = v1::WorkerMessage { session, coord_epoch, kind, instance };
            // invariant: the channel has room for both.
            let _ = out.try_send(message);
        }
        let conversation = async {
            let opened = services::worker(channel).work(ReceiverStream::new(outbound)).await;
            let mut inbound = opened?.into_inner();
            while let Some(message) = inbound.message().await? {
                // Only these kinds count: a leader announces its epoch before it knows the sender.
                if matches!(message.kind, Some(Down::Heartbeat(_) | Down::Exchange(_))) {
                    return Ok(message.header.unwrap_or_default().coord_epoch);
                }
            }
            Err(tonic::Status::cancelled("the stream ended"))
        };
        let outcome = tokio::time::timeout(LIMIT, conversation).await;
        drop(out);
        let (observer, what) = (self.name.to_owned(), "heartbeat".to_owned());
        match outcome {
            Ok(Ok(_)) if has_ended => {
                let how = "a heartbeat was answered".to_owned();
                self.event(EventKind::Revived { observer, session, how });
            }
            // A member that still leads in that very epoch may answer.
            Ok(Ok(epoch)) if epoch > coord_epoch => {
                let taken_by = Some(epoch);
                self.event(EventKind::Stale { observer, what, claimed: coord_epoch, taken_by });
            }
            Ok(Err(status)) => match RpcError::from_status(&status).code {
                ErrorCode::StaleEpoch => {
                    let taken_by = None;
                    self.event(EventKind::Stale { observer, what, claimed: coord_epoch, taken_by });
                }
                ErrorCode::SessionUnknown if has_ended => {
                    self.event(EventKind::EndedRefused { observer, session });
                }
                _ => {}
            },
            Ok(Ok(_)) | Err(_) => {}
        }
    }

    /// Ends its session, and repeats the request until it is answered.
    async fn leave(&mut self, session: u64) {
        let options = CallOptions::default().attempt_timeout(LIMIT);
        while !self.shared.stopping() {
            let instance = self.instance;
            let request = v1::DeregisterRequest { session, instance, ..Default::default() };
            let answer = self.client.with_leader_opts("deregister", options, |channel| {
                let request = request.clone();
                async move { services::worker(channel).deregister(request).await }
            });
            let over = match answer.await {
                Ok(_) => true,
                Err(error) => error.code() == Some(ErrorCode::SessionUnknown),
            };
            if over {
                self.event(EventKind::Ended { observer: self.name.into(), session });
                self.ended.push(session);
                let surplus = self.ended.len().saturating_sub(ENDED_MAX);
                self.ended.drain(..surplus);
                return;
            }
        }
    }
}
