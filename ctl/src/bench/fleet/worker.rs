//! One simulated worker: its own certificate, connections, session and stream, and the rules of a real one.
//!
//! Invariant: it registers with what it holds, starts rows only while an answered heartbeat vouches for it, leaves a silent
//! leader once another one leads, and believes no epoch below the highest seen. Its rows go on while it is not connected.
//! Deliberately absent: a disk; a worker of the generator never restarts.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{LocalBoxFuture, pending};
use rollout_proto::{
    Channel, Client, ClientConfig, ErrorCode, MemberRef, RpcError, Security, TlsFiles, services, v1,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

use super::book::Shared;
use super::plan::Plan;
use super::slot::{Slot, to_wire};

/// Messages that may wait for the network, besides two for each slot.
const OUTBOX: usize = 16;
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A heartbeat unanswered for so long has another leader looked for.
const LEADER_SILENT: Duration = Duration::from_secs(1);
const UNANSWERED_MAX: usize = 32;
/// A slot that has run out of rows is told of at once, but not more often than this.
const DRY_EVERY: Duration = Duration::from_millis(50);
/// Of reconnections, as a worker's: growing, and drawn from nothing up to the present step.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The heartbeat interval of a small fleet, and how much of what it is above that a large one takes to come back. These and
/// the next are the rules of `worker/src/session.rs`; other ones here would measure another worker.
const HEARTBEAT_OF_FEW: Duration = Duration::from_millis(500);
const SPREAD_FACTOR: u32 = 3;
const SPREAD_MAX: Duration = Duration::from_secs(6);
/// A stream that breaks sooner is not opened again at once.
const STEADY_AFTER: Duration = SPREAD_MAX;
const GONE_AFTER: Duration = Duration::from_millis(10);
const NEVER: Duration = Duration::from_secs(3600);

/// What the parent wants of all workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Orders {
    /// Of a thousand workers, so many are cut off now.
    pub(super) lost_per_mille: u32,
    /// Since when those that were cut off may come back.
    pub(super) returned: Option<Instant>,
    /// Report what is finished, ask for no more, deregister.
    pub(super) stop: bool,
}

/// Why a stream ended.
enum End {
    /// Everything is reported.
    Settled,
    /// The parent wants something else.
    Ordered,
    /// It registers anew.
    Reregister,
    /// The connection is gone.
    Broken(String),
    /// The leader refused it, is silent, or leads no more.
    Left(String),
}

/// Over what time a fleet with such heartbeats comes back when all lose their leader at the same moment.
fn reconnect_spread(heartbeat: Duration) -> Duration {
    (heartbeat.saturating_sub(HEARTBEAT_OF_FEW) * SPREAD_FACTOR).min(SPREAD_MAX)
}

pub(super) struct Worker {
    number: u32,
    plan: Rc<Plan>,
    book: Shared,
    orders: watch::Receiver<Orders>,
    gate: Arc<Semaphore>,
    /// Held until the first answer on the first stream.
    permit: Option<OwnedSemaphorePermit>,
    client: Option<Client>,
    instance: u64,
    session: u64,
    registered: bool,
    heartbeat: Duration,
    self_fence: Duration,
    fence: Option<Instant>,
    epoch: u64,
    slots: Vec<Slot>,
    backoff: Duration,
    /// The present connection follows a broken one without a pause.
    at_once: bool,
    /// Whether a heartbeat was answered on the present stream.
    served: bool,
    /// When the last stream ended that was served; none before the first, and while one is.
    offline_since: Option<Instant>,
    lost: bool,
    /// Since when it may work again; until it does.
    returned: Option<Instant>,
}

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

/// The name of a worker.
pub(super) fn name(number: u32) -> String {
    format!("bench-w{number}")
}

/// The files of its certificate.
pub(super) fn tls_files(tls: &std::path::Path, number: u32) -> TlsFiles {
    TlsFiles {
        ca: tls.join("ca.pem"),
        cert: tls.join(format!("{}.pem", name(number))),
        key: tls.join("worker.key"),
    }
}

impl Worker {
    pub(super) fn new(
        number: u32,
        plan: Rc<Plan>,
        book: Shared,
        orders: watch::Receiver<Orders>,
        gate: Arc<Semaphore>,
    ) -> Self {
        let instance = rand::random();
        let slots = (0..plan.shape.slots).map(|slot| Slot::new(&plan, (number, slot), instance));
        Self {
            slots: slots.collect(),
            number,
            plan,
            book,
            orders,
            gate,
            permit: None,
            client: None,
            instance,
            session: 0,
            registered: false,
            heartbeat: Duration::from_millis(500),
            self_fence: Duration::from_secs(4),
            fence: None,
            epoch: 0,
            backoff: BACKOFF.0,
            at_once: false,
            served: false,
            offline_since: None,
            lost: false,
            returned: None,
        }
    }

    /// Works until the parent says that it is over and everything is reported.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if self.is_lost(&orders) {
                if orders.stop {
                    return Ok(());
                }
                self.be_lost().await;
                continue;
            }
            if self.client.is_none() {
                if self.offline_since.is_none() && self.permit.is_none() {
                    self.permit = Some(self.gate.clone().acquire_owned().await?);
                }
                let files = tls_files(&self.plan.tls, self.number);
                let endpoints = self.plan.endpoints.clone();
                self.client =
                    Some(Client::new(ClientConfig::new(endpoints, Security::Mtls(files)))?);
            }
            let Some(client) = self.client.clone() else { continue };
            if !self.registered && !Box::pin(self.register(&client)).await? {
                continue;
            }
            let (leader, channel) = match self.meanwhile(client.leader_channel()).await {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    tracing::debug!(%error, worker = self.number, "no leader");
                    continue;
                }
                None => continue,
            };
            self.epoch = self.epoch.max(client.coord_epoch());
            let begun = Instant::now();
            let end = tokio::select! {
                end = Box::pin(self.stream(&leader, channel)) => end?,
                never = client.keep_standby_connections() => match never {},
            };
            let served = self.went_offline();
            match end {
                End::Settled => break,
                End::Ordered => {}
                End::Reregister => self.registered = false,
                End::Broken(why) => {
                    let same = client.leader().is_some_and(|known| known == leader);
                    let steady = same && begun.elapsed() >= STEADY_AFTER;
                    self.left(&client, &leader, why, (served, steady)).await;
                }
                End::Left(why) => self.left(&client, &leader, why, (served, false)).await,
            }
        }
        self.deregister().await
    }

    /// Pauses as a worker does before it connects again: not at all if its stream was `steady` and broke, and for its part
    /// of the fleet's time if that did not help.
    async fn left(
        &mut self,
        client: &Client,
        leader: &MemberRef,
        why: String,
        (served, steady): (bool, bool),
    ) {
        tracing::debug!(why, worker = self.number, "left a leader");
        let failed = std::mem::take(&mut self.at_once) && !served;
        self.at_once = served && steady;
        if self.at_once {
            client.leader_failed(&leader.addr);
            self.meanwhile(tokio::time::sleep(GONE_AFTER)).await;
            return;
        }
        if served || failed {
            let wait = reconnect_spread(self.heartbeat).mul_f64(rand::random());
            self.meanwhile(tokio::time::sleep(wait)).await;
        }
        client.leader_failed(&leader.addr);
        self.rest().await;
    }

    fn is_lost(&self, orders: &Orders) -> bool {
        // Neighbors differ, so that all models and namespaces lose their share.
        let place = ((u64::from(self.number) * 2_654_435_761) >> 8) % 1000;
        place < u64::from(orders.lost_per_mille)
    }

    /// All its connections are gone at once; its rows go on.
    async fn be_lost(&mut self) {
        self.lost = true;
        if let Some(client) = &self.client {
            client.disconnect();
            if let Some(leader) = client.leader() {
                client.leader_failed(&leader.addr);
            }
        }
        while self.is_lost(&self.orders.borrow().clone()) && !self.orders.borrow().stop {
            self.meanwhile(pending::<()>()).await;
        }
        self.returned = self.orders.borrow().returned;
        // Where it was in the pause between two tries.
        let wait = (BACKOFF.1 + reconnect_spread(self.heartbeat)).mul_f64(rand::random());
        self.meanwhile(tokio::time::sleep(wait)).await;
        self.lost = false;
    }

    /// Whether a heartbeat had been answered on its stream.
    fn went_offline(&mut self) -> bool {
        self.slots.iter_mut().for_each(Slot::stream_broke);
        let mut book = self.book.borrow_mut();
        let served = std::mem::take(&mut self.served);
        if served {
            book.connected -= 1;
            book.counts.streams_ended += 1;
            self.offline_since = Some(Instant::now());
        }
        served
    }

    async fn rest(&mut self) {
        let longest = BACKOFF.1 + reconnect_spread(self.heartbeat);
        let wait = self.backoff.min(longest).mul_f64(rand::random());
        self.backoff = (self.backoff * 2).min(longest);
        self.meanwhile(tokio::time::sleep(wait)).await;
    }

    /// Waits for something while rows go on; `None` when the parent wants something else.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let wake = self.next_wake().unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                biased;
                Ok(()) = self.orders.changed() => return None,
                done = &mut work => return Some(done),
                () = sleep_until(wake.into()) => {}
            }
            self.advance(Instant::now());
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.next_end()).min()
    }

    /// Lets rows end and start; true when a slot has run out of rows that wait.
    fn advance(&mut self, now: Instant) -> bool {
        let may_start = self.fence.is_some_and(|until| now < until);
        let mut book = self.book.borrow_mut();
        let mut dry = false;
        for slot in &mut self.slots {
            dry |= slot.advance(now, may_start, &self.plan, &mut book);
            if self.lost {
                slot.absent(&mut book);
            }
        }
        dry
    }

    /// Registers; false where it is to be tried again.
    async fn register(&mut self, client: &Client) -> anyhow::Result<bool> {
        let request = self.registration(client);
        let sent = Instant::now();
        let call = client.with_leader("register", |channel| {
            let request = request.clone();
            async move { services::worker(channel).register(request).await }
        });
        let answer = match self.meanwhile(call).await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                tracing::debug!(%error, worker = self.number, "cannot register yet");
                self.rest().await;
                return Ok(false);
            }
            None => return Ok(false),
        };
        let shared = self.book.clone();
        let mut book = shared.borrow_mut();
        book.counts.registrations += 1;
        book.spreads.register.record_us(sent.elapsed().as_micros() as u64);
        for slot in &mut self.slots {
            book.counts.rows_dropped += slot.take_away(&answer.dropped);
        }
        self.session = answer.session;
        self.registered = true;
        self.self_fence = Duration::from_millis(answer.self_fence_ms.max(1).into());
        self.set_heartbeat(answer.heartbeat_ms);
        self.fence = Some(sent + self.self_fence);
        Ok(true)
    }

    fn registration(&self, client: &Client) -> v1::RegisterRequest {
        let labels = self.plan.shape.label.iter();
        let labels: std::collections::HashMap<_, _> =
            labels.map(|label| (crate::bench::load::LABEL.to_owned(), label.clone())).collect();
        let offer = |(number, slot): (u32, &Slot)| v1::SlotOffer {
            slot: number,
            models: vec![slot.model.clone()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            labels: labels.clone(),
            ..v1::SlotOffer::default()
        };
        v1::RegisterRequest {
            namespace: self.plan.shape.worker_namespace(self.number),
            name: name(self.number),
            instance: self.instance,
            resume_session: self.session,
            coord_epoch_seen: client.coord_epoch(),
            cluster_id: client.cluster_id(),
            slots: (0..).zip(&self.slots).map(offer).collect(),
            held: to_wire(self.slots.iter().flat_map(Slot::held).collect()),
            address: "rolloutctl bench".into(),
            ..v1::RegisterRequest::default()
        }
    }

    fn set_heartbeat(&mut self, ms: u32) {
        if ms > 0 {
            self.heartbeat =
                Duration::from_millis(ms.clamp(10, 10_000).into()).min(self.self_fence / 2);
            if let Some(client) = &self.client {
                client.wait_at_most(BACKOFF.1 + reconnect_spread(self.heartbeat));
            }
        }
    }

    async fn stream(&mut self, leader: &MemberRef, channel: Channel) -> anyhow::Result<End> {
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

    /// Does all that is due: rows, heartbeats, exchanges.
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
        let book = self.book.borrow();
        for slot in &mut self.slots {
            slot.make(now, (may_pull, flush), &self.plan, &book);
            let from = (self.session, self.instance, self.epoch);
            // What does not fit now is sent later: the leader hangs, which heartbeats show.
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
        // What does not fit is a heartbeat without an answer.
        let _ = live.out.try_send(message(from, Up::Heartbeat(heartbeat)));
        live.unanswered.push_back((live.last_beat, now));
        live.next_beat = now + self.heartbeat;
    }

    /// Resolves once another member leads, asked only after the leader was silent for long enough.
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
                self.book.borrow_mut().violation(|| format!("epoch {epoch} after {own}"));
            }
            self.epoch = epoch;
        }
        match message.kind {
            Some(Down::Heartbeat(answer)) => return self.beat_answered(live, &answer, now),
            Some(Down::Exchange(answer)) => {
                let mut book = self.book.borrow_mut();
                match self.slots.get_mut(answer.slot as usize) {
                    Some(slot) => slot.answered(&answer, now, &mut book),
                    None => book.violation(|| format!("an answer to slot {}", answer.slot)),
                }
            }
            Some(Down::Revoke(revoke)) => {
                for slot in &mut self.slots {
                    self.book.borrow_mut().counts.rows_revoked += slot.take_away(&revoke.rows);
                }
            }
            Some(Down::Yield(asked)) => {
                if let Some(slot) = self.slots.get_mut(asked.slot as usize) {
                    slot.give_up(&asked, &self.plan);
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
        let mut book = self.book.borrow_mut();
        let Some((_, sent)) = vouched else {
            book.violation(|| format!("an answer to heartbeat {}, which was not sent", answer.seq));
            return None;
        };
        book.counts.heartbeats += 1;
        book.spreads.heartbeat.record_us(now.saturating_duration_since(sent).as_micros() as u64);
        live.search = None;
        if !std::mem::replace(&mut self.served, true) {
            book.connected += 1;
            if let Some(since) = self.offline_since.take() {
                book.spreads
                    .reconnect
                    .record_us(now.saturating_duration_since(since).as_micros() as u64);
            }
            (self.permit, self.backoff) = (None, BACKOFF.0);
        }
        // Silent for so long, it may have lost rows: it asks which before it starts one.
        if self.fence.is_some_and(|until| now >= until) {
            book.counts.fenced += 1;
            return Some(End::Reregister);
        }
        let until = sent + self.self_fence;
        self.fence = Some(self.fence.map_or(until, |old| old.max(until)));
        drop(book);
        if answer.heartbeat_ms > 0 {
            self.set_heartbeat(answer.heartbeat_ms);
            live.next_beat = live.next_beat.min(now + self.heartbeat);
        }
        None
    }

    /// A worker that was lost works again once a slot runs a row; one without runs, once it is connected.
    fn note_return(&mut self, now: Instant) {
        let busy = || self.slots.iter().filter(|slot| slot.is_busy());
        let works = self.served && (busy().any(Slot::runs) || busy().next().is_none());
        if let Some(since) = self.returned.take_if(|_| works) {
            let us = now.saturating_duration_since(since).as_micros() as u64;
            self.book.borrow_mut().spreads.work_again.record_us(us);
        }
    }

    async fn deregister(&mut self) -> anyhow::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        let _turn = self.gate.clone().acquire_owned().await?;
        let request = v1::DeregisterRequest {
            session: self.session,
            instance: self.instance,
            ..Default::default()
        };
        client
            .with_leader("deregister", |channel| {
                let request = request.clone();
                async move { services::worker(channel).deregister(request).await }
            })
            .await?;
        let mut book = self.book.borrow_mut();
        self.slots.iter().for_each(|slot| slot.absent(&mut book));
        Ok(())
    }
}

fn message((session, instance, coord_epoch): (u64, u64, u64), kind: Up) -> v1::WorkerMessage {
    v1::WorkerMessage { session, instance, coord_epoch, kind: Some(kind) }
}

async fn found(search: &mut Option<LocalBoxFuture<'static, MemberRef>>) -> MemberRef {
    match search {
        Some(search) => search.await,
        None => pending().await,
    }
}

fn ended(status: &tonic::Status) -> End {
    let error = RpcError::from_status(status);
    match error.code {
        ErrorCode::SessionUnknown | ErrorCode::WorkerNotEligible => End::Reregister,
        ErrorCode::ConnectFailed => End::Broken(error.to_string()),
        _ => End::Left(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_comes_back_over_seconds_as_one_of_real_workers_does() {
        let spread = |ms| reconnect_spread(Duration::from_millis(ms)).as_millis();
        assert_eq!([50, 500, 1000, 2000, 10_000].map(spread), [0, 0, 1500, 4500, 6000]);
    }
}
