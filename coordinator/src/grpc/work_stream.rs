//! One worker's stream: heartbeats and exchanges in, answers and control out.
//!
//! *Invariant:* every message is answered, or the stream is closed with the reason. The stream
//! ends with its epoch, and at the first message after the lease has run out.

use super::Shared;
use crate::convert;
use crate::dispatch;
use crate::epoch_gate;
use crate::leading::{Leading, Outbox};
use crate::ledger_read::ReadLedger;
use crate::worker_stream::WorkerStream;
use rollout_ledger::id::SessionId;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::cmp::Ordering;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tracing::Instrument;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

/// Answers that wait for a slow worker.
const OUTBOX: usize = 256;
/// Exchanges of one stream that are under way: each slot has one at a time.
const EXCHANGES_MAX: usize = 256;

/// Serves a stream in a task of its own.
pub(super) fn start(
    shared: Arc<Shared>,
    leading: Arc<Leading>,
    identity: Identity,
    inbound: Streaming<v1::WorkerMessage>,
) -> ReceiverStream<Result<v1::LeaderMessage, Status>> {
    let (out, stream) = mpsc::channel(OUTBOX);
    // The first message tells the epoch before the worker says anything in an older one.
    let welcome = v1::LeaderMessage { header: Some(leading.full_header()), kind: None };
    let _ = out.try_send(Ok(welcome));
    let slots = Arc::new(Semaphore::new(EXCHANGES_MAX));
    let own = WorkerStream::new(out.clone());
    let (session, compared) = (None, false);
    let serving = Serving { shared, leading, identity, out, own, session, compared, slots };
    tokio::spawn(serving.run(inbound).in_current_span());
    ReceiverStream::new(stream)
}

struct Serving {
    shared: Arc<Shared>,
    leading: Arc<Leading>,
    identity: Identity,
    out: Outbox,
    /// What others reach this stream by.
    own: Arc<WorkerStream>,
    /// The session that this stream speaks for, once it has said so, and the process that had
    /// registered it then.
    session: Option<(SessionId, u64)>,
    /// Whether what has ended at the worker was compared with the ledger.
    compared: bool,
    slots: Arc<Semaphore>,
}

impl Serving {
    async fn run(mut self, mut inbound: Streaming<v1::WorkerMessage>) {
        let (ended, overrun) = (self.leading.ended.clone(), self.own.overrun.clone());
        loop {
            let message = tokio::select! {
                biased;
                () = ended.cancelled() => {
                    let leader = self.shared.node.leader();
                    let mut error = RpcError::new(ErrorCode::NotLeader, "FENCED: this member was deposed");
                    if let Some(leader) = leader {
                        error = error.with_leader(leader.name, leader.client_addr);
                    }
                    let _ = self.out.try_send(Err(error.into()));
                    break;
                }
                // It does not read what it has to know: on its next stream it asks.
                () = overrun.cancelled() => break,
                message = inbound.message() => message,
            };
            let Ok(Some(message)) = message else { break };
            // A worker that reads nothing fills its outbox: waiting for room must end with the
            // epoch, or the watchdog would take this member down for it.
            let taken = tokio::select! {
                biased;
                () = ended.cancelled() => continue,
                () = overrun.cancelled() => break,
                taken = self.take(message) => taken,
            };
            if let Err(error) = taken {
                let _ = self.out.try_send(Err(error.into()));
                break;
            }
        }
        if let Some((session, _)) = self.session {
            let mut streams = self.leading.streams.lock();
            if streams.get(&session).is_some_and(|s| Arc::ptr_eq(s, &self.own)) {
                streams.remove(&session);
            }
        }
    }

    async fn take(&mut self, message: v1::WorkerMessage) -> Result<(), RpcError> {
        if !self.leading.node.lease_valid() {
            return Err(RpcError::new(ErrorCode::NoQuorum, "NO_QUORUM: the lease has run out"));
        }
        match message.coord_epoch.cmp(&self.leading.epoch) {
            Ordering::Equal => {}
            _ if seeded(Bug::EpochUnchecked) => {}
            Ordering::Less => return Err(epoch_gate::behind(&self.leading, message.coord_epoch)),
            Ordering::Greater => {
                let claimed = message.coord_epoch;
                return Err(epoch_gate::ahead(&self.shared, &self.leading, claimed).await);
            }
        }
        let session = SessionId(message.session);
        let instance = self.speak_for(session, message.instance)?;
        self.leading.liveness.heard(session, self.leading.now());
        match message.kind {
            Some(Up::Heartbeat(heartbeat)) => self.heartbeat(session, heartbeat).await,
            Some(Up::Exchange(exchange)) => {
                let (leading, out) = (self.leading.clone(), self.out.clone());
                // invariant: nobody closes this semaphore.
                let Ok(permit) = self.slots.clone().acquire_owned().await else { return Ok(()) };
                let serve = async move {
                    dispatch::exchange(leading, (session, instance), exchange, out).await;
                    drop(permit);
                };
                tokio::spawn(serve.in_current_span());
                Ok(())
            }
            None => Err(convert::invalid("a message says nothing")),
        }
    }

    /// A stream speaks for one session, whose name the certificate has, and for the process that has registered it: as
    /// soon as another one has, this one has to register anew, which is refused for as long as the other lives.
    fn speak_for(&mut self, session: SessionId, instance: u64) -> Result<u64, RpcError> {
        let registered = self.shared.node.ledger(|l| l.worker_instance(session));
        let known = self.session;
        if known.is_some_and(|(spoken, _)| spoken != session) {
            return Err(convert::invalid("a stream speaks for one session"));
        }
        if known.is_none() {
            self.shared.check_session(&self.identity, session)?;
        }
        // 0: a worker that does not say it.
        let own = known.map_or(instance, |(_, own)| own);
        if registered.is_some_and(|registered| own != 0 && own != registered) {
            let text = format!("another process has registered session {session} since");
            return Err(RpcError::new(ErrorCode::SessionUnknown, text));
        }
        let own = if own == 0 { registered.unwrap_or_default() } else { own };
        if known.is_none() {
            self.session = Some((session, own));
            self.leading.streams.lock().insert(session, self.own.clone());
        }
        Ok(own)
    }

    async fn heartbeat(
        &mut self,
        session: SessionId,
        heartbeat: v1::Heartbeat,
    ) -> Result<(), RpcError> {
        self.shared.check_session(&self.identity, session)?;
        let held_in = |held: &[v1::HeldRows]| -> Result<Vec<_>, RpcError> {
            held.iter().map(convert::held_in).collect()
        };
        let (started, unfinished) = (held_in(&heartbeat.started)?, held_in(&heartbeat.unfinished)?);
        // What has ended there, too, is among what was started. It is asked for once a stream: later on, what decided it
        // may be the worker's own result, whose answer is on its way.
        let ended_too = !std::mem::replace(&mut self.compared, true);
        let ended = if ended_too { &started[..] } else { &[] };
        self.leading.revoke_lost(session, &unfinished, ended);
        let index = self.shared.node.ledger(|l| l.applied().index);
        self.leading.liveness.heartbeat(session, self.leading.now(), (started, index));
        let idle = self.leading.stealing.heard(session, &heartbeat.slots);
        if idle && !self.leading.parked.is_empty() {
            self.leading.wake();
        }
        let answer = v1::LeaderMessage {
            header: Some(self.leading.full_header()),
            kind: Some(Down::Heartbeat(v1::HeartbeatAnswer { seq: heartbeat.seq })),
        };
        let _ = self.out.send(Ok(answer)).await;
        // After the answer: a drain that has to wait for a quorum must not look like silence.
        self.leading.heard_of_drain(session, heartbeat.drain).await;
        Ok(())
    }
}
