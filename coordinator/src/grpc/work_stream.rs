//! One worker's stream: heartbeats and exchanges in, answers and control out.
//!
//! *Invariant:* every message is answered, or the stream is closed with the reason. The stream ends with its epoch, at
//! the first message after the lease has expired, and when its worker has opened another one.

use super::Shared;
use super::answer_queue::{AnswerQueue, Answers, NewestStreams};
use super::exchange_room::{self, ExchangeRoom, ExchangeRooms};
use crate::grpc::convert;
use crate::grpc::epoch_gate;
use crate::leader::dispatch;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::{LeaderState, Outbox};
use crate::leader::worker_stream::WorkerStream;
use rollout_ledger::HeldRows;
use rollout_ledger::id::SessionId;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::cmp::Ordering;
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Streaming;
use tracing::Instrument;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

/// Answers that wait for a slow worker.
const OUTBOX: usize = 256;

/// Serves a stream in a task of its own.
pub(super) fn start(
    shared: Arc<Shared>,
    leader: Arc<LeaderState>,
    (rooms, newest): (ExchangeRooms, NewestStreams),
    identity: Identity,
    inbound: Streaming<v1::WorkerMessage>,
) -> Answers {
    let (out, queue) = mpsc::channel(OUTBOX);
    let (queue, answers) = newest.open(queue);
    // The first message carries the epoch, before the worker sends anything in an older one.
    let sent_membership = leader.node.membership_index();
    let welcome = v1::LeaderMessage { header: Some(leader.full_header()), kind: None };
    let _ = out.try_send(Ok(welcome));
    let own = WorkerStream::new(out.clone());
    let compared = false;
    let (session, room) = (None, None);
    let serving = Serving {
        shared,
        leader,
        rooms,
        newest,
        queue,
        identity,
        out,
        own,
        session,
        room,
        compared,
        sent_membership,
    };
    tokio::spawn(serving.run(inbound).in_current_span());
    answers
}

struct Serving {
    shared: Arc<Shared>,
    leader: Arc<LeaderState>,
    rooms: ExchangeRooms,
    newest: NewestStreams,
    /// The answers that the worker has not read. The next stream of the worker drops them.
    queue: Arc<AnswerQueue>,
    identity: Identity,
    out: Outbox,
    /// The handle through which other tasks reach this stream.
    own: Arc<WorkerStream>,
    /// The session for which this stream speaks, once the worker has named it, and the process that had registered it
    /// then.
    session: Option<(SessionId, u64)>,
    /// The room for exchanges of the worker that has the session, shared with those of its earlier streams.
    room: Option<Arc<ExchangeRoom>>,
    /// Whether rows that have ended at the worker were compared with the ledger.
    compared: bool,
    /// The last membership that was sent to it.
    sent_membership: u64,
}

/// What the ledger has of a worker when a message arrives.
#[derive(Default)]
struct WorkerInLedger {
    instance: Option<u64>,
    slots: usize,
    /// The number of registered workers.
    workers: usize,
    index: u64,
}

/// The rows that a heartbeat names. Refuses more than a worker with this many slots can have.
pub(super) fn held_rows_in(held: &[v1::HeldRows], slots: usize) -> Result<Vec<HeldRows>, RpcError> {
    let rows: u64 = held.iter().flat_map(|set| &set.rows).map(v1::Rows::count).sum();
    let most = exchange_room::slots_rows_max(slots);
    if rows > most {
        let text = format!("a heartbeat names {rows} rows; {slots} slots have {most} at most");
        return Err(convert::invalid(text));
    }
    held.iter().map(convert::held_in).collect()
}

impl Serving {
    async fn run(mut self, mut inbound: Streaming<v1::WorkerMessage>) {
        let (ended, overrun) = (self.leader.ended.clone(), self.own.overrun.clone());
        let superseded = self.queue.superseded.clone();
        loop {
            let message = tokio::select! {
                biased;
                () = ended.cancelled() => {
                    let leader = self.shared.node.leader();
                    let mut error = RpcError::new(ErrorCode::NotLeader, "FENCED: this member was deposed");
                    if let Some(leader) = leader {
                        error = error.with_leader(leader.name, leader.client_addr);
                    }
                    let _ = self.out.try_send(Err(error));
                    break;
                }
                // The worker does not read its revocations; on its next stream it asks for them.
                () = overrun.cancelled() => break,
                // The reader of the answers has the reason.
                () = superseded.cancelled() => break,
                message = inbound.message() => message,
            };
            let Ok(Some(message)) = message else { break };
            // A worker that reads nothing fills its outbox. Waiting for room must end with the epoch, or the watchdog
            // would abort this member. It must also end with the next stream: a small message that waits counts in no
            // budget, so a worker may have only one.
            let taken = tokio::select! {
                biased;
                () = ended.cancelled() => continue,
                () = overrun.cancelled() => break,
                () = superseded.cancelled() => break,
                taken = self.take(message) => taken,
            };
            if let Err(error) = taken {
                let _ = self.out.try_send(Err(error));
                break;
            }
        }
        if let Some((session, _)) = self.session {
            let mut streams = self.leader.streams.lock();
            if streams.get(&session).is_some_and(|s| Arc::ptr_eq(s, &self.own)) {
                streams.remove(&session);
            }
        }
    }

    async fn take(&mut self, message: v1::WorkerMessage) -> Result<(), RpcError> {
        if !self.leader.node.lease_valid() {
            return Err(RpcError::new(ErrorCode::NoQuorum, "NO_QUORUM: the lease has run out"));
        }
        match message.coord_epoch.cmp(&self.leader.epoch) {
            Ordering::Equal => {}
            _ if seeded(Bug::EpochUnchecked) => {}
            Ordering::Less => return Err(epoch_gate::behind(&self.leader, message.coord_epoch)),
            Ordering::Greater => {
                let claimed = message.coord_epoch;
                // The stream may be one of many that name no worker.
                drop(message);
                return Err(epoch_gate::ahead(&self.shared, &self.leader, claimed).await);
            }
        }
        let session = SessionId(message.session);
        let worker = self.shared.node.ledger(|l| WorkerInLedger {
            instance: l.worker_instance(session),
            slots: l.slots_of(session).unwrap_or(0),
            workers: l.worker_count(),
            index: l.applied().index,
        });
        let instance = self.speak_for(session, message.instance, &worker)?;
        self.leader.liveness.record_message(session, self.leader.now());
        match message.kind {
            Some(Up::Heartbeat(heartbeat)) => self.heartbeat(session, heartbeat, &worker).await,
            Some(Up::Exchange(exchange)) => {
                let (leader, out) = (self.leader.clone(), self.out.clone());
                let room = self.room.clone().ok_or_else(|| session_unknown(session))?;
                let permit = room.acquire(&exchange, worker.slots).await;
                // Without a session there are no slots, and the bound does not apply.
                let permit = permit.map_err(|error| match worker.instance {
                    Some(_) => error,
                    None => session_unknown(session),
                })?;
                let Some(permit) = permit else { return Ok(()) };
                let namespace = room.namespace().to_owned();
                let origin = dispatch::Origin { session, instance, namespace };
                let serve = async move {
                    dispatch::exchange(leader, origin, exchange, out).await;
                    drop(permit);
                };
                tokio::spawn(serve.in_current_span());
                Ok(())
            }
            None => Err(convert::invalid("a message is empty")),
        }
    }

    /// A stream speaks for one session, whose name is in the certificate, and for the process that registered it. Once
    /// another process has registered the session, this one must register again, which is refused while the other one
    /// is alive.
    fn speak_for(
        &mut self,
        session: SessionId,
        instance: u64,
        at: &WorkerInLedger,
    ) -> Result<u64, RpcError> {
        let (registered, spoken_for) = (at.instance, self.session);
        if spoken_for.is_some_and(|(spoken, _)| spoken != session) {
            return Err(convert::invalid("a stream serves only one session"));
        }
        if spoken_for.is_none() {
            self.shared.check_session(&self.identity, session)?;
        }
        let own = spoken_for.map_or(instance, |(_, own)| own);
        check_instance(session, own, registered)?;
        if spoken_for.is_none() {
            let worker = self.shared.node.ledger(|l| {
                l.worker_name(session).map(|(space, name)| (space.to_owned(), name.to_owned()))
            });
            let worker = worker.ok_or_else(|| session_unknown(session))?;
            let (leader, stream) = (&self.leader, &self.own);
            let enter = || drop(leader.streams.lock().insert(session, stream.clone()));
            self.newest.supersede(&worker, &self.queue, enter)?;
            self.room = Some(self.rooms.of(worker));
            self.session = Some((session, own));
        }
        Ok(own)
    }

    /// The header, with the members if they have changed since it last had them.
    fn header(&mut self) -> v1::ClusterHeader {
        let now = self.leader.node.membership_index();
        match std::mem::replace(&mut self.sent_membership, now) == now {
            true => self.leader.header(),
            false => self.leader.full_header(),
        }
    }

    async fn heartbeat(
        &mut self,
        session: SessionId,
        heartbeat: v1::Heartbeat,
        worker: &WorkerInLedger,
    ) -> Result<(), RpcError> {
        // The stream's first message decided for which session it may speak.
        if worker.instance.is_none() {
            return Err(session_unknown(session));
        }
        let started = held_rows_in(&heartbeat.started, worker.slots)?;
        let unfinished = held_rows_in(&heartbeat.unfinished, worker.slots)?;
        // Started rows include those that have ended at the worker. They are compared once per stream: later, the
        // worker's own result may have decided them, and the answer to it is on its way.
        let ended_too = !std::mem::replace(&mut self.compared, true);
        let ended = if ended_too { &started[..] } else { &[] };
        self.leader.revoke_lost(session, &unfinished, ended);
        self.leader.liveness.heartbeat(session, self.leader.now(), (started, worker.index));
        let idle = self.leader.record_loads(session, &heartbeat.slots);
        if idle && !self.leader.parked_pulls.is_empty() {
            self.leader.wake();
        }
        let heartbeat_ms = self.leader.heartbeat_ms(worker.workers);
        let answer = v1::HeartbeatAnswer { seq: heartbeat.seq, heartbeat_ms };
        let answer =
            v1::LeaderMessage { header: Some(self.header()), kind: Some(Down::Heartbeat(answer)) };
        let _ = self.out.send(Ok(answer)).await;
        // After the answer, so that a drain that waits for a quorum does not look like silence.
        self.leader.handle_drain(session, heartbeat.drain).await;
        Ok(())
    }
}

/// Refuses a process other than the one that registered the session. Session numbers are positions in the log, so a
/// copy of the worker's key alone must not suffice to speak for a live session.
pub(super) fn check_instance(
    session: SessionId,
    instance: u64,
    registered: Option<u64>,
) -> Result<(), RpcError> {
    match registered {
        Some(registered) if instance != registered => {
            let text = format!("another process has registered session {session}");
            Err(RpcError::new(ErrorCode::SessionUnknown, text))
        }
        _ => Ok(()),
    }
}

fn session_unknown(session: SessionId) -> RpcError {
    RpcError::new(ErrorCode::SessionUnknown, format!("no session {session}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::limits;

    #[test]
    fn a_heartbeat_names_no_more_rows_than_its_workers_slots_can_have() {
        let most = limits::SLOT_ROWS_MAX * 2;
        let set = |start, len| v1::HeldRows {
            run: 1,
            attempt: 7,
            rows: Some(v1::Rows::from_ranges([(start, len)])),
        };
        assert_eq!(held_rows_in(&[set(0, most)], 1).map(|held| held.len()), Ok(1));
        assert!(held_rows_in(&[set(0, most), set(u64::from(most), 1)], 1).is_err());
        assert!(held_rows_in(&[set(0, most), set(u64::from(most), 1)], 2).is_ok());
        // The cost without this check: a lookup for each row, during which nothing could be applied.
        assert!(held_rows_in(&[set(0, 100_000_000)], 64).is_err());
        assert!(held_rows_in(&[set(0, 1)], 0).is_err(), "of a worker that is not registered");
    }
}
