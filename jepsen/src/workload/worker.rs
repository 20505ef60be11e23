//! A raw worker: it speaks the protocol of a real one and behaves worse.
//!
//! *Invariant:* at most one exchange is in flight. It is sent again unchanged, under its number, until it is answered
//! or its session is gone; then its outcome is unknown. In its next session the worker may still try to complete a
//! row of the lost session: the leader must refuse that.

mod answer;
mod exchange;

use super::item::{Shared, Style};
use super::submitter::NAMESPACE;
use crate::events::EventKind;
use crate::recorder::{By, Op};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::{CallOptions, Client, ErrorCode, MemberRef, RpcError, services, v1};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

const HEARTBEAT: Duration = Duration::from_millis(200);
/// The most heartbeats with answers in transit.
const BEATS_MAX: usize = 64;
/// A pause longer than the fleet's failure timeout: the session lapses.
const HANG_MS: std::ops::Range<u64> = 2500..3500;
/// A pause shorter than that: it must have no effect.
const SLOW_MS: std::ops::Range<u64> = 300..1500;

/// A row under an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    run: u32,
    attempt: u64,
    row: u64,
    /// An engine runs it; until then it can be yielded.
    started: bool,
}

impl Lease {
    fn held(&self) -> v1::HeldRows {
        let rows = Some(v1::Rows::from_rows([self.row]));
        v1::HeldRows { run: self.run, attempt: self.attempt, rows }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.run, self.row)
    }
}

struct SentExchange {
    exchange: v1::Exchange,
    ops: Vec<(Lease, Op)>,
    at_ns: u64,
    /// How often it went out.
    copies: u32,
}

pub(super) struct Worker {
    name: &'static str,
    client: Client,
    shared: Arc<Shared>,
    rng: StdRng,
    instance: u64,
    session: u64,
    cluster_id: String,
    seq: u64,
    beats: u64,
    /// The last heartbeats and when they were sent.
    beaten: VecDeque<(u64, u64)>,
    held: Vec<Lease>,
    sent: Option<SentExchange>,
    parts: u64,
    /// Slow at its work, so that others must help.
    sluggish: bool,
    /// The leader's pending steal request.
    yield_request: Option<v1::Yield>,
    /// Rows that it yielded, and may finish anyway.
    ghosts: Vec<Lease>,
}

enum StreamEnd {
    Left,
    Forgotten,
}

impl Worker {
    pub(super) fn new(
        name: &'static str,
        number: u64,
        client: Client,
        shared: Arc<Shared>,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(number));
        let instance = rng.random();
        Self {
            name,
            client,
            shared,
            rng,
            instance,
            session: 0,
            cluster_id: String::new(),
            seq: 0,
            beats: 0,
            beaten: VecDeque::new(),
            held: Vec::new(),
            sent: None,
            parts: 0,
            sluggish: number < 2,
            yield_request: None,
            ghosts: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if !self.register().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            match self.stream().await {
                StreamEnd::Left => {}
                StreamEnd::Forgotten => self.drop_session("the session is gone"),
            }
        }
        self.drop_session("the run ended");
        Ok(())
    }

    /// The session is another one: what was in flight may have been applied.
    fn drop_session(&mut self, why: &str) {
        if let Some(sent) = self.sent.take() {
            sent.ops.iter().for_each(|(_, op)| self.shared.recorder.info(op, why.to_owned()));
        }
        self.session = 0;
        self.seq = 0;
    }

    async fn register(&mut self) -> bool {
        let offer = v1::SlotOffer {
            slot: 0,
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..v1::SlotOffer::default()
        };
        let (from_epoch, copies) = (self.client.coord_epoch(), AtomicU32::new(0));
        let in_flight = self.sent.iter().flat_map(|sent| sent.ops.iter().map(|(lease, _)| lease));
        let request = v1::RegisterRequest {
            namespace: NAMESPACE.into(),
            name: self.name.into(),
            instance: self.instance,
            resume_session: self.session,
            coord_epoch_seen: self.client.coord_epoch(),
            cluster_id: self.cluster_id.clone(),
            slots: vec![offer],
            held: self.held.iter().chain(in_flight).map(Lease::held).collect(),
            address: "rollout-jepsen".into(),
            ..v1::RegisterRequest::default()
        };
        let options = CallOptions::default().attempt_timeout(Duration::from_secs(2));
        let answer = self
            .client
            .with_leader_opts("register", options, |channel| {
                copies.fetch_add(1, Ordering::Relaxed);
                let request = request.clone();
                async move { services::worker(channel).register(request).await }
            })
            .await;
        self.shared.recorder.event(EventKind::Registered {
            observer: self.name.into(),
            session: answer.as_ref().map_or(0, |answer| answer.session),
            from_epoch,
            epoch: self.client.coord_epoch(),
            clean: answer.is_ok() && copies.into_inner() == 1,
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if error.code() == Some(ErrorCode::SessionUnknown) {
                    self.drop_session("the session is gone");
                }
                return false;
            }
        };
        if self.session != 0 && !answer.resumed {
            self.drop_session("the session was not resumed");
        }
        self.session = answer.session;
        self.cluster_id = answer.header.map(|header| header.cluster_id).unwrap_or_default();
        true
    }

    async fn stream(&mut self) -> StreamEnd {
        let Ok((leader, channel)) = self.client.leader_channel().await else {
            return StreamEnd::Left;
        };
        let (out, outbound) = mpsc::channel(16);
        let exchange = match &mut self.sent {
            Some(sent) => {
                sent.copies += 1;
                sent.exchange.clone()
            }
            None => self.next(),
        };
        let first = self.message(Up::Exchange(exchange));
        if out.send(first).await.is_err() {
            return StreamEnd::Left;
        }
        let opening = services::worker(channel).work(ReceiverStream::new(outbound)).await;
        let ended = match opening {
            Ok(response) => self.converse(&leader, &out, response.into_inner()).await,
            Err(status) => ended_by(&status),
        };
        self.client.leader_failed(&leader.addr);
        ended
    }

    async fn converse(
        &mut self,
        leader: &MemberRef,
        out: &mpsc::Sender<v1::WorkerMessage>,
        mut inbound: tonic::Streaming<v1::LeaderMessage>,
    ) -> StreamEnd {
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        while !self.shared.stopping() {
            tokio::select! {
                biased;
                message = inbound.message() => {
                    heard_at = Instant::now();
                    let message = match message {
                        Ok(Some(message)) => message,
                        Ok(None) => return StreamEnd::Left,
                        Err(status) => return ended_by(&status),
                    };
                    if !self.take(leader, message) {
                        return StreamEnd::Left;
                    }
                    if self.sent.is_none() {
                        // The leader drops a steal request after a while, so it is answered before all work.
                        if self.yield_request.is_none() {
                            self.work().await;
                        }
                        let exchange = self.next();
                        if out.send(self.message(Up::Exchange(exchange))).await.is_err() {
                            return StreamEnd::Left;
                        }
                    }
                }
                _ = beat.tick() => {
                    if heard_at.elapsed() > HEARTBEAT * 5 {
                        let other = self.client.other_leader(leader);
                        let limit = Duration::from_millis(200);
                        if tokio::time::timeout(limit, other).await.is_ok() {
                            return StreamEnd::Left;
                        }
                    }
                    self.beats += 1;
                    self.beaten.push_back((self.beats, self.shared.recorder.now_ns()));
                    self.beaten.drain(..self.beaten.len().saturating_sub(BEATS_MAX));
                    let heartbeat = self.heartbeat();
                    // A full channel means a slow leader, which the exchange shows anyway.
                    let _ = out.try_send(self.message(Up::Heartbeat(heartbeat)));
                }
            }
        }
        StreamEnd::Left
    }

    fn heartbeat(&self) -> v1::Heartbeat {
        let mut heartbeat = v1::Heartbeat { seq: self.beats, ..Default::default() };
        if self.shared.style == Style::Steal {
            let started = self.held.iter().filter(|lease| lease.started);
            heartbeat.started = started.map(Lease::held).collect();
            let running = u32::try_from(heartbeat.started.len()).unwrap_or_default();
            let held = u32::try_from(self.held.len()).unwrap_or_default();
            let load = v1::SlotLoad { slot: 0, queued: held - running, running, concurrency: 2 };
            heartbeat.slots = vec![load];
        }
        heartbeat
    }

    /// Plays the engine: mostly quick, sometimes silent for a while, sometimes so long that the lease lapses.
    async fn work(&mut self) {
        let rarely = if self.shared.style == Style::Steal { 40 } else { 20 };
        let (deaf, slow) = (self.rng.random_ratio(1, rarely), self.rng.random_ratio(1, 20));
        let ms = match self.shared.style {
            _ if self.shared.dutiful() => 5,
            _ if deaf && !self.held.is_empty() => self.rng.random_range(HANG_MS),
            _ if slow => self.rng.random_range(SLOW_MS),
            Style::Item => self.rng.random_range(5..60),
            Style::Steal if self.sluggish => self.rng.random_range(150..450),
            Style::Steal => self.rng.random_range(10..100),
        };
        let mut room = 2usize.saturating_sub(self.held.iter().filter(|l| l.started).count());
        for lease in self.held.iter_mut().filter(|lease| !lease.started) {
            if room == 0 {
                break;
            }
            (lease.started, room) = (true, room - 1);
        }
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn message(&self, kind: Up) -> v1::WorkerMessage {
        let coord_epoch = self.client.coord_epoch();
        let (session, instance) = (self.session, self.instance);
        v1::WorkerMessage { session, coord_epoch, kind: Some(kind), instance }
    }

    /// Takes a message of the leader; false: it no longer leads.
    fn take(&mut self, leader: &MemberRef, message: v1::LeaderMessage) -> bool {
        let header = message.header.unwrap_or_default();
        if self.client.observe(&header).is_err() {
            return false;
        }
        self.shared.recorder.event(EventKind::Heard {
            observer: self.name.into(),
            leader: leader.name.clone(),
            epoch: header.coord_epoch,
        });
        if let Some(Down::Heartbeat(answer)) = &message.kind {
            let sent = self.beaten.iter().find(|(seq, _)| *seq == answer.seq);
            if let Some(&(_, sent_ns)) = sent {
                let (session, epoch) = (self.session, header.coord_epoch);
                self.shared.recorder.event(EventKind::Beat { session, epoch, sent_ns });
            }
        }
        if let Some(Down::Yield(request)) = message.kind {
            self.yield_request = Some(request);
        } else if let Some(Down::Exchange(answer)) = message.kind {
            let (member, epoch) = (Some(leader.name.clone()), Some(header.coord_epoch));
            self.answered(answer, By { member, epoch, ..By::default() });
        }
        true
    }
}

fn ended_by(status: &tonic::Status) -> StreamEnd {
    match RpcError::from_status(status).code {
        ErrorCode::SessionUnknown => StreamEnd::Forgotten,
        _ => StreamEnd::Left,
    }
}
