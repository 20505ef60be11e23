//! A raw worker: it speaks the protocol of a real one and behaves worse.
//!
//! *Invariant:* at most one exchange in flight, which goes out again unchanged, under its number,
//! until it is answered or its session is gone; then its outcome is unknown. What it held in a lost
//! session it may still try to complete in the next: that has to be refused.

use super::item::{Shared, Style};
use super::submitter::{NAMESPACE, hex};
use crate::events::What;
use crate::history::LogPosition;
use crate::recorder::{By, Op};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::{CallOptions, Client, ErrorCode, MemberRef, RpcError, services, v1};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::Exchange;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

const HEARTBEAT: Duration = Duration::from_millis(200);
/// Heartbeats whose answers may still be on the way.
const BEATS_MAX: usize = 64;
/// Longer than the fleet's failure timeout: its session lapses.
const HANG_MS: std::ops::Range<u64> = 2500..3500;
/// Shorter than that: nothing may come of it.
const SLOW_MS: std::ops::Range<u64> = 300..1500;

/// A row under an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    run: u32,
    attempt: u64,
    row: u64,
    /// An engine runs it; until then it can be given up.
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

/// What becomes of a row in an exchange.
#[derive(Clone, Copy)]
enum Fate {
    Complete,
    /// True: for good.
    Fail(bool),
    Nack,
    Yield,
    Keep,
}

struct Sent {
    exchange: v1::Exchange,
    ops: Vec<(Lease, Op)>,
    at_ns: u64,
    /// How often it went out.
    copies: u32,
}

/// Where the operations of an exchange stand, which begins at `first`: the parts, the failures, all
/// nacks, all that was given up, the pull.
struct Layout<'a> {
    first: LogPosition,
    exchange: &'a v1::Exchange,
}

impl Layout<'_> {
    fn behind(&self, before: usize) -> LogPosition {
        let position = self.first.position + u32::try_from(before).unwrap_or_default();
        LogPosition { position, ..self.first }
    }

    fn of(&self, f: &str, lease: &Lease) -> LogPosition {
        let Exchange { parts, failures, .. } = self.exchange;
        match f {
            "complete" => {
                let mine = |part: &v1::PartResult| part.run == lease.run;
                self.behind(parts.iter().position(mine).unwrap_or_default())
            }
            "fail" => {
                let mine = |one: &v1::FailedAttempt| {
                    one.attempt == lease.attempt && one.rows == lease.held().rows
                };
                self.behind(parts.len() + failures.iter().position(mine).unwrap_or_default())
            }
            "yield" => self.behind(self.results()),
            _ => self.behind(parts.len() + failures.len()),
        }
    }

    /// How many operations parts, failures and nacks are.
    fn results(&self) -> usize {
        let Exchange { parts, failures, nacks, .. } = self.exchange;
        parts.len() + failures.len() + usize::from(!nacks.is_empty())
    }

    fn pull(&self) -> LogPosition {
        self.behind(self.results() + usize::from(!self.exchange.yielded.is_empty()))
    }
}

/// See the module.
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
    sent: Option<Sent>,
    parts: u64,
    /// Slow at its work, so that others have to help.
    sluggish: bool,
    /// What the leader wants for somebody else.
    asked: Option<v1::Yield>,
    /// Rows that it gave up, and may finish all the same.
    ghosts: Vec<Lease>,
}

enum Ended {
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
            asked: None,
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
                Ended::Left => {}
                Ended::Forgotten => self.forget("the session is gone"),
            }
        }
        self.forget("the run ended");
        Ok(())
    }

    /// The session is another one: what was in flight may have been applied.
    fn forget(&mut self, why: &str) {
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
        self.shared.recorder.event(What::Registered {
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
                    self.forget("the session is gone");
                }
                return false;
            }
        };
        if self.session != 0 && !answer.resumed {
            self.forget("the session was not resumed");
        }
        self.session = answer.session;
        self.cluster_id = answer.header.map(|header| header.cluster_id).unwrap_or_default();
        true
    }

    async fn stream(&mut self) -> Ended {
        let Ok((leader, channel)) = self.client.leader_channel().await else { return Ended::Left };
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
            return Ended::Left;
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
    ) -> Ended {
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        while !self.shared.stopping() {
            tokio::select! {
                biased;
                message = inbound.message() => {
                    heard = Instant::now();
                    let message = match message {
                        Ok(Some(message)) => message,
                        Ok(None) => return Ended::Left,
                        Err(status) => return ended_by(&status),
                    };
                    if !self.take(leader, message) {
                        return Ended::Left;
                    }
                    if self.sent.is_none() {
                        // A question is forgotten after a while: it is answered before all work.
                        if self.asked.is_none() {
                            self.work().await;
                        }
                        let exchange = self.next();
                        if out.send(self.message(Up::Exchange(exchange))).await.is_err() {
                            return Ended::Left;
                        }
                    }
                }
                _ = beat.tick() => {
                    if heard.elapsed() > HEARTBEAT * 5 {
                        let other = self.client.other_leader(leader);
                        let limit = Duration::from_millis(200);
                        if tokio::time::timeout(limit, other).await.is_ok() {
                            return Ended::Left;
                        }
                    }
                    self.beats += 1;
                    self.beaten.push_back((self.beats, self.shared.recorder.now_ns()));
                    self.beaten.drain(..self.beaten.len().saturating_sub(BEATS_MAX));
                    let heartbeat = self.heartbeat();
                    // A full channel is a slow leader, which the exchange shows anyway.
                    let _ = out.try_send(self.message(Up::Heartbeat(heartbeat)));
                }
            }
        }
        Ended::Left
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

    /// The engine: mostly quick, sometimes silent for a while, sometimes for so long that the lease
    /// lapses.
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
        v1::WorkerMessage { session: self.session, coord_epoch, kind: Some(kind) }
    }

    /// The next exchange: something becomes of most rows that it holds.
    fn next(&mut self) -> v1::Exchange {
        self.seq += 1;
        let (slot, seq) = (0, self.seq);
        let mut exchange = v1::Exchange { slot, seq, ..v1::Exchange::default() };
        let id = format!("{}/{}", self.session, seq);
        self.parts += 1;
        let unique = format!("{}-{}-{}", self.instance, self.name, self.parts);
        let digest = *blake3::hash(unique.as_bytes()).as_bytes();
        let mut ops = Vec::new();
        let given_up = self.give_up(&mut exchange);
        let late = self.late_results();
        let held = std::mem::take(&mut self.held);
        for (fate, lease) in self.fates(held, given_up, late) {
            let attempt = lease.attempt;
            let (f, value) = match fate {
                Fate::Complete => ("complete", json!([attempt, hex(&digest)[..16].to_owned()])),
                Fate::Fail(last) => ("fail", json!([attempt, last])),
                Fate::Nack => ("nack", json!([attempt])),
                Fate::Yield => ("yield", json!([attempt])),
                Fate::Keep => {
                    self.held.push(lease);
                    continue;
                }
            };
            self.shared.recorder.event(What::Settles {
                session: self.session,
                key: lease.key(),
                attempt,
            });
            let op = self.shared.recorder.invoke(f, lease.key(), value.clone(), Some(id.clone()));
            self.add(&mut exchange, &lease, f, value[1] == json!(true), &digest);
            ops.push((lease, op));
        }
        exchange.credit_rows = match self.shared.style {
            Style::Item if self.held.len() < 3 => self.rng.random_range(1..3),
            Style::Steal if self.held.is_empty() => self.rng.random_range(6..12),
            _ => 0,
        };
        let at_ns = self.shared.recorder.now_ns();
        self.sent = Some(Sent { exchange: exchange.clone(), ops, at_ns, copies: 1 });
        exchange
    }

    /// Answers the leader's question: the rows that it would start last.
    fn give_up(&mut self, exchange: &mut v1::Exchange) -> Vec<Lease> {
        let Some(asked) = self.asked.take() else { return Vec::new() };
        exchange.r#yield = asked.id;
        let mut given_up = Vec::new();
        let mut at = self.held.len();
        while at > 0 && given_up.len() < asked.rows_max as usize {
            at -= 1;
            if !self.held[at].started && asked.runs.contains(&self.held[at].run) {
                given_up.push(self.held.remove(at));
            }
        }
        self.ghosts.extend(given_up.iter().cloned());
        given_up
    }

    /// Some of the rows that it gave up in exchanges before are finished all the same.
    fn late_results(&mut self) -> Vec<Lease> {
        let asking = self.ghosts.len().saturating_sub(16);
        self.ghosts.drain(..asking);
        let mut late = Vec::new();
        for lease in std::mem::take(&mut self.ghosts) {
            let rests = self.rng.random_bool(0.6);
            if rests { self.ghosts.push(lease) } else { late.push(lease) }
        }
        late
    }

    /// What becomes of every row that it has, or has no more.
    fn fates(
        &mut self,
        held: Vec<Lease>,
        given_up: Vec<Lease>,
        late: Vec<Lease>,
    ) -> Vec<(Fate, Lease)> {
        let mut fates = Vec::new();
        // A row that is given up in this very exchange is late in a later one.
        let now = |lease: &Lease| given_up.contains(lease);
        let (again, late): (Vec<_>, Vec<_>) = late.into_iter().partition(now);
        self.ghosts.extend(again);
        for lease in held {
            let may_fail = self.shared.run(lease.run).is_none_or(|run| !run.duplicates);
            let chance = self.rng.random_range(0..100);
            let fate = match self.shared.style {
                _ if self.shared.dutiful() => Fate::Complete,
                Style::Item => match chance {
                    0..30 => Fate::Complete,
                    30..34 => Fate::Fail(true),
                    34..38 => Fate::Fail(false),
                    38..80 => Fate::Nack,
                    _ => Fate::Keep,
                },
                Style::Steal if !lease.started => Fate::Keep,
                Style::Steal => match chance {
                    0..30 => Fate::Complete,
                    30..33 if may_fail => Fate::Fail(false),
                    33..38 => Fate::Nack,
                    _ => Fate::Keep,
                },
            };
            fates.push((fate, lease));
        }
        fates.extend(late.into_iter().map(|lease| (Fate::Complete, lease)));
        fates.extend(given_up.into_iter().map(|lease| (Fate::Yield, lease)));
        fates
    }

    fn add(&self, to: &mut v1::Exchange, lease: &Lease, f: &str, last: bool, digest: &[u8; 32]) {
        match f {
            "complete" => {
                let at = to.parts.iter().position(|part| part.run == lease.run);
                let at = at.unwrap_or_else(|| {
                    let run = self.shared.run(lease.run);
                    let folder = run.map_or_else(String::new, |run| run.folder);
                    let part = v1::BlobRef {
                        key: format!("runs/{NAMESPACE}/{folder}/parts/{}", hex(digest)),
                        digest: digest.to_vec().into(),
                        bytes: 100,
                    };
                    let (run, part) = (lease.run, Some(part));
                    to.parts.push(v1::PartResult { run, part, ..v1::PartResult::default() });
                    to.parts.len() - 1
                });
                to.parts[at].sets.push(lease.held());
            }
            "fail" => {
                let class = match last {
                    true => v1::FailureClass::InvalidRow,
                    false => v1::FailureClass::Transient,
                };
                to.failures.push(v1::FailedAttempt {
                    run: lease.run,
                    attempt: lease.attempt,
                    rows: lease.held().rows,
                    class: class.into(),
                    code: "jepsen".into(),
                    message: "made to fail".into(),
                    evidence: None,
                });
            }
            "yield" => to.yielded.push(lease.held()),
            _ => to.nacks.push(lease.held()),
        }
    }

    /// Takes a message of the leader; false: it no longer leads.
    fn take(&mut self, leader: &MemberRef, message: v1::LeaderMessage) -> bool {
        let header = message.header.unwrap_or_default();
        if self.client.observe(&header).is_err() {
            return false;
        }
        self.shared.recorder.event(What::Heard {
            observer: self.name.into(),
            leader: leader.name.clone(),
            epoch: header.coord_epoch,
        });
        if let Some(Down::Heartbeat(answer)) = &message.kind {
            let sent = self.beaten.iter().find(|(seq, _)| *seq == answer.seq);
            if let Some(&(_, sent_ns)) = sent {
                let (session, epoch) = (self.session, header.coord_epoch);
                self.shared.recorder.event(What::Beat { session, epoch, sent_ns });
            }
        }
        if let Some(Down::Yield(asked)) = message.kind {
            self.asked = Some(asked);
        } else if let Some(Down::Exchange(answer)) = message.kind {
            let (member, epoch) = (Some(leader.name.clone()), Some(header.coord_epoch));
            self.answered(answer, By { member, epoch, ..By::default() });
        }
        true
    }

    fn answered(&mut self, answer: v1::ExchangeAnswer, by: By) {
        let Some(sent) = self.sent.take_if(|sent| sent.exchange.seq == answer.seq) else { return };
        let recorder = &self.shared.recorder;
        let at = answer.at.map(|at| LogPosition { index: at.index, position: at.position });
        let layout = at.map(|first| Layout { first, exchange: &sent.exchange });
        let repeated = sent.copies > 1;
        for (lease, op) in &sent.ops {
            let refused = answer.refused.iter().any(|refused| {
                refused.run == lease.run
                    && refused.attempt == lease.attempt
                    && refused.rows.iter().flat_map(v1::Rows::iter).any(|row| row == lease.row)
            });
            if refused && repeated && op.f() == "fail" {
                // The copy before may have been taken, which makes this one late.
                recorder.info(op, "a repeat was refused".to_owned());
                continue;
            }
            let at = layout.as_ref().map(|layout| layout.of(op.f(), lease));
            recorder.ok(op, Value::Bool(!refused), By { at, repeated, ..by.clone() });
        }
        let id = format!("{}/{}", self.session, answer.seq);
        for grant in answer.grants {
            for row in grant.rows.iter().flat_map(v1::Rows::iter) {
                let lease = Lease { run: grant.run, attempt: grant.attempt, row, started: false };
                let (key, id) = (lease.key(), Some(id.clone()));
                // Beside another attempt, perhaps, that may still finish first.
                let beside = self.shared.run(lease.run).is_some_and(|run| run.duplicates);
                let f = if beside { "lease" } else { "claim" };
                if !beside && !repeated {
                    let (session, attempt) = (self.session, grant.attempt);
                    let (epoch, asked_ns) = (by.epoch.unwrap_or_default(), sent.at_ns);
                    let key = lease.key();
                    recorder.event(What::Granted { session, key, attempt, epoch, asked_ns });
                }
                let op = recorder.invoke_at(sent.at_ns, f, key, Value::Null, id);
                let at = layout.as_ref().map(Layout::pull);
                recorder.ok(&op, json!(grant.attempt), By { at, repeated, ..by.clone() });
                self.held.push(lease);
            }
        }
    }
}

fn ended_by(status: &tonic::Status) -> Ended {
    match RpcError::from_status(status).code {
        ErrorCode::SessionUnknown => Ended::Forgotten,
        _ => Ended::Left,
    }
}
