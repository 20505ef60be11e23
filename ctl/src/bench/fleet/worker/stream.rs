//! Owns: the stream of one simulated worker to its leader: heartbeats, reports and the leader's answers.
//!
//! Invariant: as in `worker`: rows start only while an answered heartbeat allows it.
//! Absent: finding a leader and registering.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{LocalBoxFuture, pending};
use rollout_proto::{Channel, ErrorCode, MemberRef, RpcError, services, v1};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

use super::{BACKOFF, End, Worker};
use crate::bench::fleet::slot::{Slot, to_wire};

/// Messages that may wait for the network, besides two for each slot.
const OUTBOX: usize = 16;
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// After a heartbeat is unanswered for this long, the worker looks for another leader.
const LEADER_SILENT: Duration = Duration::from_secs(1);
const UNANSWERED_MAX: usize = 32;
/// The shortest time between two reports that a slot has run out of rows.
const DRY_EVERY: Duration = Duration::from_millis(50);

/// The state of one stream.
struct Live {
    out: mpsc::Sender<v1::WorkerMessage>,
    leader: MemberRef,
    unanswered: VecDeque<(u64, Instant)>,
    last_beat: u64,
    next_beat: Instant,
    dry_last: Option<Instant>,
    dry: Option<Instant>,
    search: Option<LocalBoxFuture<'static, MemberRef>>,
}

impl Worker {
    pub(super) async fn stream(
        &mut self,
        leader: &MemberRef,
        channel: Channel,
    ) -> anyhow::Result<End> {
        let (out, queue) = mpsc::channel(OUTBOX + 2 * self.slots.len());
        let now = Instant::now();
        let mut live = Live {
            out,
            leader: leader.clone(),
            unanswered: VecDeque::new(),
            last_beat: 0,
            next_beat: now,
            dry_last: None,
            dry: None,
            search: None,
        };
        self.beat(&mut live, now);
        let mut worker = services::worker(channel);
        let open = timeout(OPEN_TIMEOUT, worker.work(ReceiverStream::new(queue)));
        let mut incoming = match self.meanwhile(open).await {
            None => return Ok(End::Ordered),
            Some(Err(_)) => return Ok(End::Broken("the stream did not open in time".into())),
            Some(Ok(Err(status))) => return Ok(ended(&status)),
            Some(Ok(Ok(response))) => response.into_inner(),
        };
        self.serve(&mut live, &mut incoming).await
    }

    async fn serve(
        &mut self,
        live: &mut Live,
        incoming: &mut Streaming<v1::LeaderMessage>,
    ) -> anyhow::Result<End> {
        loop {
            let flush = self.orders.borrow().stop;
            self.act(live, flush);
            if flush && self.slots.iter().all(Slot::is_settled) {
                return Ok(End::Settled);
            }
            let wake = self.slots.iter().filter_map(|slot| slot.next_wake(&self.plan)).min();
            let wake = wake.into_iter().chain(live.dry).fold(live.next_beat, Instant::min);
            tokio::select! {
                biased;
                Ok(()) = self.orders.changed() => {
                    let orders = self.orders.borrow().clone();
                    if self.is_lost(&orders) {
                        self.be_lost().await;
                        return Ok(End::Ordered);
                    }
                }
                message = incoming.message() => match message {
                    Ok(Some(message)) => {
                        if let Some(end) = self.take(live, message) {
                            return Ok(end);
                        }
                    }
                    Ok(None) => return Ok(End::Broken("the leader closed the stream".into())),
                    Err(status) => return Ok(ended(&status)),
                },
                other = found(&mut live.search) => {
                    return Ok(End::Left(format!("{other} leads")));
                }
                () = sleep_until(wake.into()) => {}
            }
            if live.unanswered.len() > UNANSWERED_MAX {
                return Ok(End::Left("the leader is silent".into()));
            }
        }
    }

    /// Does everything that is due: rows, heartbeats, exchanges.
    fn act(&mut self, live: &mut Live, flush: bool) {
        let now = Instant::now();
        let dry = self.advance(now);
        self.note_return(now);
        if dry && live.dry.is_none() {
            live.dry = Some(live.dry_last.map_or(now, |last| now.max(last + DRY_EVERY)));
        }
        if live.dry.is_some_and(|due| due <= now) {
            (live.dry, live.dry_last) = (None, Some(now));
            if live.unanswered.len() <= 2 {
                self.beat(live, now);
            }
        }
        if now >= live.next_beat {
            self.beat(live, now);
            if live.search.is_none() {
                live.search = self.search(live);
            }
        }
        let may_pull = self.fence.is_some_and(|until| now < until);
        let record = self.record.borrow();
        for slot in &mut self.slots {
            slot.make(now, (may_pull, flush), &self.plan, &record);
            let from = (self.session, self.instance, self.epoch);
            // A message that does not fit is sent later: the leader hangs, which heartbeats show.
            slot.send(|exchange| live.out.try_send(message(from, Up::Exchange(exchange))).is_ok());
        }
    }

    fn beat(&mut self, live: &mut Live, now: Instant) {
        live.last_beat += 1;
        let heartbeat = v1::Heartbeat {
            seq: live.last_beat,
            started: to_wire(self.slots.iter().flat_map(Slot::started).collect()),
            slots: self.slots.iter().map(|slot| slot.load(&self.plan)).collect(),
            drain: None,
            unfinished: to_wire(self.slots.iter().flat_map(Slot::unfinished).collect()),
        };
        let from = (self.session, self.instance, self.epoch);
        // One that does not fit counts as an unanswered heartbeat.
        let _ = live.out.try_send(message(from, Up::Heartbeat(heartbeat)));
        live.unanswered.push_back((live.last_beat, now));
        live.next_beat = now + self.heartbeat;
    }

    /// Resolves once another member leads; asks only after the leader has been silent for long enough.
    fn search(&self, live: &Live) -> Option<LocalBoxFuture<'static, MemberRef>> {
        let (client, leader) = (self.client.clone()?, live.leader.clone());
        let since = live.unanswered.front().map_or_else(Instant::now, |(_, sent)| *sent);
        let search = async move {
            sleep_until((since + LEADER_SILENT).into()).await;
            client.other_leader(&leader).await
        };
        Some(search.boxed_local())
    }

    fn take(&mut self, live: &mut Live, message: v1::LeaderMessage) -> Option<End> {
        let now = Instant::now();
        if let (Some(header), Some(client)) = (&message.header, &self.client) {
            if let Err(error) = client.observe(header) {
                return Some(End::Broken(error.message));
            }
            let epoch = client.coord_epoch();
            if epoch < self.epoch {
                let own = self.epoch;
                self.record.borrow_mut().violation(|| format!("epoch {epoch} after {own}"));
            }
            self.epoch = epoch;
        }
        match message.kind {
            Some(Down::Heartbeat(answer)) => return self.beat_answered(live, &answer, now),
            Some(Down::Exchange(answer)) => {
                let mut record = self.record.borrow_mut();
                match self.slots.get_mut(answer.slot as usize) {
                    Some(slot) => slot.answered(&answer, now, &mut record),
                    None => record.violation(|| format!("an answer to slot {}", answer.slot)),
                }
            }
            Some(Down::Revoke(revoke)) => {
                for slot in &mut self.slots {
                    self.record.borrow_mut().counts.rows_revoked += slot.take_away(&revoke.rows);
                }
            }
            Some(Down::Yield(request)) => {
                if let Some(slot) = self.slots.get_mut(request.slot as usize) {
                    slot.give_up(&request, &self.plan);
                }
            }
            Some(Down::Drain(_)) | None => {}
        }
        None
    }

    fn beat_answered(
        &mut self,
        live: &mut Live,
        answer: &v1::HeartbeatAnswer,
        now: Instant,
    ) -> Option<End> {
        let mut vouched = None;
        while live.unanswered.front().is_some_and(|(seq, _)| *seq <= answer.seq) {
            vouched = live.unanswered.pop_front().filter(|(seq, _)| *seq == answer.seq);
        }
        let mut record = self.record.borrow_mut();
        let Some((_, sent)) = vouched else {
            record
                .violation(|| format!("an answer to heartbeat {}, which was not sent", answer.seq));
            return None;
        };
        record.counts.heartbeats += 1;
        record.spreads.heartbeat.record_us(now.saturating_duration_since(sent).as_micros() as u64);
        live.search = None;
        if !std::mem::replace(&mut self.served, true) {
            record.connected += 1;
            if let Some(since) = self.offline_since.take() {
                record
                    .spreads
                    .reconnect
                    .record_us(now.saturating_duration_since(since).as_micros() as u64);
            }
            (self.permit, self.backoff) = (None, BACKOFF.0);
        }
        // After such a silence it may have lost rows: it asks which before it starts one.
        if self.fence.is_some_and(|until| now >= until) {
            record.counts.fenced += 1;
            return Some(End::Reregister);
        }
        let until = sent + self.self_fence;
        self.fence = Some(self.fence.map_or(until, |old| old.max(until)));
        drop(record);
        if answer.heartbeat_ms > 0 {
            self.set_heartbeat(answer.heartbeat_ms);
            live.next_beat = live.next_beat.min(now + self.heartbeat);
        }
        None
    }
}

pub(super) fn message(
    (session, instance, coord_epoch): (u64, u64, u64),
    kind: Up,
) -> v1::WorkerMessage {
    v1::WorkerMessage { session, instance, coord_epoch, kind: Some(kind) }
}

fn ended(status: &tonic::Status) -> End {
    let error = RpcError::from_status(status);
    match error.code {
        ErrorCode::SessionUnknown | ErrorCode::WorkerNotEligible => End::Reregister,
        ErrorCode::ConnectFailed => End::Broken(error.to_string()),
        _ => End::Left(error.to_string()),
    }
}

async fn found(search: &mut Option<LocalBoxFuture<'static, MemberRef>>) -> MemberRef {
    match search {
        Some(search) => search.await,
        None => pending().await,
    }
}
