//! Owns: one stream to one leader, from its first heartbeat to its end.
//!
//! Invariant: messages of an older epoch are ignored. Rows may be started only for as long as an answered heartbeat
//! allows. A leader that falls silent is left as soon as another member is known to lead.
//! Absent: what follows the end; the session decides.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use rollout_proto::pki::RENEWAL_WITHIN_S;
use rollout_proto::trace::{self, Span, SpanKind};
use rollout_proto::v1::leader_message::Kind;
use rollout_proto::{Channel, ErrorCode, MemberRef, RpcError, services, v1};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Observed, Session};
use crate::agent_error::AgentError;
use crate::drain::DrainOrder;
use crate::lease_table::to_wire;
use crate::leased_rows::{NamedRows, first_ranges};
use crate::slot::{SlotCommand, Uplink};

/// Messages that may wait for the network.
const OUTBOX: usize = 512;
/// The number of unanswered heartbeats that ends the stream, even if the leader has not changed.
const UNANSWERED_MAX: usize = 32;
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum of row ranges that a heartbeat asks about: a megabyte.
const UNFINISHED_RANGES_MAX: usize = 65_536;
/// The shortest time between two reports that a slot has run out of rows.
const DRY_EVERY: Duration = Duration::from_millis(50);
/// With this many unanswered heartbeats, no extra one is sent.
const DRY_UNANSWERED_MAX: usize = 2;
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a stream ended.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// The connection is gone, or an invalid message arrived.
    Broken(String),
    /// Too many heartbeats are unanswered.
    Silent(String),
    /// The leader closed it and said why.
    Refused(RpcError),
    /// Another member leads.
    Other(MemberRef),
    /// The worker has a change to register.
    Reregister,
}

/// The state of one stream.
struct Live {
    uplink: Uplink,
    leader: MemberRef,
    /// Unanswered heartbeats, and when each was sent.
    unanswered: VecDeque<(u64, Instant)>,
    last_heartbeat: u64,
    /// Searches for another leader while this one is silent.
    search: Option<BoxFuture<'static, MemberRef>>,
    /// Waits until the slots are quiet before the worker registers again.
    rest: Option<BoxFuture<'static, ()>>,
    /// Checks whether the store, which was unusable, is usable now.
    probe: Option<BoxFuture<'static, bool>>,
    /// When a heartbeat goes out for a slot that has run out of rows, and when the last one did.
    dry: Option<Instant>,
    dry_last: Option<Instant>,
    served: bool,
}

impl Session {
    /// Serves one stream; returns why it ended, and whether a heartbeat was answered on it.
    pub(super) async fn stream(
        &mut self,
        leader: &MemberRef,
        channel: Channel,
    ) -> Result<(StreamEnd, bool), AgentError> {
        let (messages, queue) = mpsc::channel(OUTBOX);
        let uplink = Uplink {
            messages,
            session: self.state.session,
            instance: self.instance,
            client: self.client.clone(),
            eligible: false,
        };
        let mut live = Live {
            uplink,
            leader: leader.clone(),
            unanswered: VecDeque::new(),
            last_heartbeat: 0,
            search: None,
            rest: None,
            probe: None,
            dry: None,
            dry_last: None,
            served: false,
        };
        self.heartbeat(&mut live);
        let mut incoming = match self.open(&mut live, channel, queue).await {
            Ok(incoming) => incoming,
            Err(end) => return Ok((end, false)),
        };
        tracing::info!(leader = %leader, session = self.state.session, "connected");
        for (slot, eligible) in self.slots.iter().zip(&self.link.eligible) {
            let uplink = Uplink { eligible: *eligible, ..live.uplink.clone() };
            // A slot that has ended sends nothing.
            let _ = slot.commands.send(SlotCommand::Online(uplink)).await;
        }
        let end = self.serve(&mut live, &mut incoming).await?;
        if live.rest.is_some() && !matches!(end, StreamEnd::Reregister) {
            // The worker was about to register again; notify again, so that the next stream learns of it.
            self.eligibility.notify_one();
        }
        Ok((end, live.served))
    }

    async fn open(
        &self,
        live: &mut Live,
        channel: Channel,
        queue: mpsc::Receiver<v1::WorkerMessage>,
    ) -> Result<Streaming<v1::LeaderMessage>, StreamEnd> {
        let mut worker = services::worker(channel);
        let mut span = Span::part(SpanKind::Client, "work");
        span.note("rollout.session", self.state.session);
        let work = trace::within(span.context(), worker.work(ReceiverStream::new(queue)));
        let open = timeout(OPEN_TIMEOUT, work);
        let silent = self.search(&live.leader);
        let opened = tokio::select! {
            opened = open => match opened {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(ended(&status)),
                Err(_) => Err(StreamEnd::Broken("it did not open in time".to_owned())),
            },
            other = silent => Err(StreamEnd::Other(other)),
        };
        match &opened {
            Ok(_) => span.done(),
            Err(end) => span.failed(|| format!("{end:?}")),
        }
        opened
    }

    async fn serve(
        &mut self,
        live: &mut Live,
        incoming: &mut Streaming<v1::LeaderMessage>,
    ) -> Result<StreamEnd, AgentError> {
        let mut heartbeats = heartbeats_every(self.link.heartbeat);
        let (eligibility, ran_dry) = (self.eligibility.clone(), self.ran_dry.clone());
        let mut drains = self.drains.watch();
        let probe_every = Duration::from_millis(self.config.timing.probe_ms);
        let mut probe = interval(probe_every);
        probe.reset();
        loop {
            tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(message)) => {
                        if let Some(end) = self.message(live, message).await? {
                            return Ok(end);
                        }
                        if heartbeats.period() != self.link.heartbeat {
                            heartbeats = heartbeats_every(self.link.heartbeat);
                        }
                    }
                    Ok(None) => return Ok(StreamEnd::Broken("the leader closed it".to_owned())),
                    Err(status) => return Ok(ended(&status)),
                },
                _ = heartbeats.tick() => {
                    self.heartbeat(live);
                    if live.unanswered.len() > UNANSWERED_MAX {
                        return Ok(StreamEnd::Silent("the leader is silent".to_owned()));
                    }
                    // The search sends nothing before the oldest heartbeat has been unanswered for long enough.
                    if live.search.is_none() {
                        live.search = Some(self.search_after_silence(live));
                    }
                }
                () = ran_dry.notified(), if live.dry.is_none() => {
                    let now = Instant::now();
                    live.dry = Some(live.dry_last.map_or(now, |last| now.max(last + DRY_EVERY)));
                }
                () = until(live.dry) => {
                    (live.dry, live.dry_last) = (None, Some(Instant::now()));
                    if live.unanswered.len() <= DRY_UNANSWERED_MAX {
                        self.heartbeat(live);
                    }
                }
                // A draining worker reports it at once, so that rows that it cannot finish move to other workers in
                // time.
                Ok(()) = drains.changed() => self.heartbeat(live),
                other = ready(&mut live.search) => return Ok(StreamEnd::Other(other)),
                () = eligibility.notified(), if live.rest.is_none() => {
                    live.rest = Some(self.quiesce());
                }
                _ = probe.tick(), if self.link.store_reason.is_some() && live.probe.is_none() => {
                    live.probe = Some(self.store_usable());
                }
                usable = ready(&mut live.probe) => {
                    live.probe = None;
                    if usable && live.rest.is_none() {
                        live.rest = Some(self.quiesce());
                    }
                }
                () = ready(&mut live.rest) => return Ok(StreamEnd::Reregister),
            }
        }
    }

    async fn message(
        &mut self,
        live: &mut Live,
        message: v1::LeaderMessage,
    ) -> Result<Option<StreamEnd>, AgentError> {
        match self.observe(message.header.as_ref()).await {
            Ok(()) => {}
            Err(Observed::Refused(error)) => return Ok(Some(StreamEnd::Broken(error.to_string()))),
            Err(Observed::Fatal(error)) => return Err(error),
        }
        match message.kind {
            Some(Kind::Heartbeat(answer)) => {
                self.set_heartbeat(answer.heartbeat_ms);
                // After such a silence this worker may have lost rows: it asks which before it starts one.
                if self.fence.is_open() {
                    self.heartbeat_answered(live, answer.seq);
                } else if live.rest.is_none() {
                    tracing::info!("the leader answers again after a silence; registering again");
                    live.rest = Some(self.quiesce());
                }
            }
            Some(Kind::Exchange(answer)) => {
                let Some(slot) = self.slots.get(answer.slot as usize) else {
                    return Ok(Some(StreamEnd::Broken(format!(
                        "an answer to slot {}",
                        answer.slot
                    ))));
                };
                // A slot has at most two exchanges in flight, so its queue is full only if it hangs.
                if slot.commands.try_send(SlotCommand::Answer(answer)).is_err() {
                    return Ok(Some(StreamEnd::Broken("a slot does not follow".to_owned())));
                }
            }
            Some(Kind::Revoke(revoke)) => {
                tracing::info!(reason = revoke.reason, "rows are revoked");
                let named = Arc::new(NamedRows::new(revoke.rows));
                for slot in &self.slots {
                    let gone = SlotCommand::Gone(named.clone());
                    if let Err(TrySendError::Full(_)) = slot.commands.try_send(gone) {
                        return Ok(Some(StreamEnd::Broken("a slot does not follow".to_owned())));
                    }
                }
            }
            Some(Kind::Drain(drain)) => {
                self.asked_to_go(drain.deadline_ms, drain.reason);
            }
            Some(Kind::Yield(request)) => {
                if let Some(slot) = self.slots.get(request.slot as usize) {
                    // A slot with a full queue is busy; the leader asks another slot.
                    let _ = slot.commands.try_send(SlotCommand::Yield(request));
                }
            }
            None => tracing::debug!("unknown kind of message, ignored"),
        }
        Ok(None)
    }

    /// The leader's drain request; 0 uses the configured time for rows.
    pub(super) fn asked_to_go(&self, within_ms: u64, reason: String) {
        self.drains.request(match within_ms {
            0 => DrainOrder::rows_for(Duration::from_millis(self.config.timing.drain_ms), reason),
            ms => DrainOrder::gone_within(Duration::from_millis(ms), reason),
        });
    }

    fn heartbeat(&self, live: &mut Live) {
        let mut started = Vec::with_capacity(self.slots.len());
        let mut unfinished = Vec::with_capacity(self.slots.len());
        let mut loads = Vec::with_capacity(self.slots.len());
        let (mut busy, mut unsettled, mut concurrency) = (0, 0, 0);
        for (index, slot) in (0..).zip(&self.slots) {
            let lease_table = slot.lease_table.lock();
            busy += lease_table.busy();
            concurrency += lease_table.concurrency();
            let (queued, running) = lease_table.load();
            loads.push(v1::SlotLoad {
                slot: index,
                queued: queued as u32,
                running: running as u32,
                concurrency: lease_table.concurrency() as u32,
            });
            let held = lease_table.started();
            unsettled += held.len();
            started.push(held);
            unfinished.push(lease_table.unfinished());
        }
        metrics::gauge!("rollout_worker_rows_busy").set(busy as f64);
        metrics::gauge!("rollout_worker_concurrency").set(concurrency as f64);
        metrics::gauge!("rollout_worker_rows_started").set(unsettled as f64);
        metrics::gauge!("rollout_worker_fenced").set(if self.fence.is_open() { 0.0 } else { 1.0 });
        if let Some(validity) = self.client.certificate_validity() {
            let renewal = validity.renewal_unix(RENEWAL_WITHIN_S) as f64;
            let expiry = validity.not_after_unix as f64;
            metrics::gauge!("rollout_worker_certificate_renewal_timestamp_seconds").set(renewal);
            metrics::gauge!("rollout_worker_certificate_expiry_timestamp_seconds").set(expiry);
        }
        live.last_heartbeat += 1;
        let seq = live.last_heartbeat;
        let drain = self.drains.current().map(|order| v1::Drain {
            // 0 would mean no limit.
            deadline_ms: (order.left().as_millis() as u64).max(1),
            reason: order.reason,
        });
        let started = to_wire(&started);
        let unfinished = first_ranges(to_wire(&unfinished), UNFINISHED_RANGES_MAX);
        let heartbeat = v1::Heartbeat { seq, started, slots: loads, drain, unfinished };
        // Even if it does not fit into the stream, it counts as an unanswered heartbeat.
        live.uplink.post(v1::worker_message::Kind::Heartbeat(heartbeat));
        live.unanswered.push_back((seq, Instant::now()));
    }

    fn heartbeat_answered(&self, live: &mut Live, seq: u64) {
        while let Some((first, sent)) = live.unanswered.front().copied() {
            if first > seq {
                break;
            }
            live.unanswered.pop_front();
            if first == seq {
                self.fence.answered(sent, self.link.self_fence);
                metrics::histogram!("rollout_worker_heartbeat_seconds")
                    .record(sent.elapsed().as_secs_f64());
            }
        }
        live.served = true;
        live.search = None;
    }

    /// Resolves when another member leads; asks only after the leader has been silent for long enough.
    fn search(&self, leader: &MemberRef) -> BoxFuture<'static, MemberRef> {
        let (client, leader) = (self.client.clone(), leader.clone());
        let silent = Duration::from_millis(self.config.timing.leader_silent_ms);
        async move {
            tokio::time::sleep(silent).await;
            tracing::warn!(leader = %leader, "the leader is silent, looking for another");
            client.other_leader(&leader).await
        }
        .boxed()
    }

    /// The same, counted from the oldest unanswered heartbeat.
    fn search_after_silence(&self, live: &Live) -> BoxFuture<'static, MemberRef> {
        let (client, leader) = (self.client.clone(), live.leader.clone());
        let silent = Duration::from_millis(self.config.timing.leader_silent_ms);
        let since = live.unanswered.front().map_or_else(Instant::now, |(_, sent)| *sent);
        async move {
            tokio::time::sleep_until((since + silent).into()).await;
            tracing::warn!(leader = %leader, "the leader is silent, looking for another");
            client.other_leader(&leader).await
        }
        .boxed()
    }

    /// Resolves once no slot waits for rows, so that none is granted any during registration. Unanswered messages are
    /// sent again afterward.
    fn quiesce(&self) -> BoxFuture<'static, ()> {
        let commands: Vec<_> = self.slots.iter().map(|slot| slot.commands.clone()).collect();
        let rest = async move {
            let mut quiet = Vec::new();
            for slot in commands {
                let (done, rest) = oneshot::channel();
                // A slot that has ended is quiet.
                let _ = slot.send(SlotCommand::Quiesce(done)).await;
                quiet.push(rest);
            }
            futures::future::join_all(quiet).await;
        };
        timeout(QUIESCE_TIMEOUT, rest).map(|_| ()).boxed()
    }
}

/// Ticks with this period from now on.
fn heartbeats_every(period: Duration) -> Interval {
    let mut heartbeats = interval(period);
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeats.reset();
    heartbeats
}

/// Resolves at that time, if there is one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// The result of a future, if there is one.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

fn ended(status: &tonic::Status) -> StreamEnd {
    if rollout_proto::ConnectError::find(status).is_some() {
        return StreamEnd::Broken(status.message().to_owned());
    }
    match RpcError::from_status(status) {
        error if error.code == ErrorCode::ConnectFailed => StreamEnd::Broken(error.message),
        error => StreamEnd::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_the_leader_ended_for_a_newer_one_counts_as_broken() {
        let reason =
            RpcError::new(ErrorCode::ConnectFailed, "the worker has opened another stream");
        assert!(matches!(ended(&reason.into()), StreamEnd::Broken(_)));
    }
}
