//! One worker of the load: a session, one stream, and an exchange in flight for each slot.
//!
//! Invariant: it speaks the protocol of a real worker: it registers with what it holds, heartbeats, leaves a leader
//! whose stream breaks, and resumes its session at the next one. Absent: engines and a spool.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rollout_proto::{CallOptions, Channel, Client, MemberRef, RpcError, services, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

use super::load::{Load, NAMESPACE};
use super::objects::Objects;
use super::slot::Slot;

pub(super) struct Worker {
    name: String,
    client: Client,
    load: Load,
    objects: Rc<Objects>,
    instance: u64,
    session: u64,
    cluster_id: String,
    heartbeat: Duration,
    heartbeats: u64,
    slots: Vec<Slot>,
}

/// How a stream ended.
enum StreamEnd {
    /// Every slot is done.
    Done,
    /// The leader is gone, or no longer leads.
    Left(String),
    /// The cluster does not know the session, so the worker starts over.
    Forgotten,
}

impl Worker {
    /// Worker `number`, not connected yet.
    pub(super) fn new(
        name: String,
        number: u64,
        client: Client,
        load: Load,
        objects: Rc<Objects>,
        slots: u32,
        batch: u32,
    ) -> Self {
        let instance: u64 = rand::random();
        let slots = (0..slots).map(|slot| Slot::new(slot, number, instance, batch)).collect();
        Self {
            name,
            client,
            load,
            objects,
            instance,
            session: 0,
            cluster_id: String::new(),
            heartbeat: Duration::from_millis(500),
            heartbeats: 0,
            slots,
        }
    }

    /// Works until the load stops and every granted row is done.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        loop {
            self.register().await?;
            let (leader, channel) = self.client.leader_channel().await?;
            match self.stream(&leader, channel).await? {
                StreamEnd::Done => break,
                StreamEnd::Left(why) => {
                    tracing::debug!(worker = self.name, leader = leader.name, why, "left a leader");
                    self.client.leader_failed(&leader.addr);
                }
                StreamEnd::Forgotten => self.begin_anew(),
            }
        }
        let (session, instance) = (self.session, self.instance);
        let request = v1::DeregisterRequest { session, instance, ..Default::default() };
        self.client
            .with_leader("deregister", |channel| {
                let request = request.clone();
                async move { services::worker(channel).deregister(request).await }
            })
            .await?;
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.session = 0;
        for slot in &mut self.slots {
            let held = slot.held();
            self.load.with(|record| record.released(&held));
            slot.reset();
        }
    }

    async fn register(&mut self) -> anyhow::Result<()> {
        let offer = |slot| v1::SlotOffer {
            slot,
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            labels: self.load.labels(),
            ..v1::SlotOffer::default()
        };
        let request = v1::RegisterRequest {
            namespace: NAMESPACE.into(),
            name: self.name.clone(),
            instance: self.instance,
            resume_session: self.session,
            coord_epoch_seen: self.client.coord_epoch(),
            cluster_id: self.cluster_id.clone(),
            slots: (0..self.slots.len() as u32).map(offer).collect(),
            held: self.slots.iter().flat_map(Slot::held).collect(),
            address: "rolloutctl bench".into(),
            ..v1::RegisterRequest::default()
        };
        let start = Instant::now();
        let options = CallOptions::default().attempt_timeout(Duration::from_secs(2));
        let answer = self
            .client
            .with_leader_opts("register", options, |channel| {
                let request = request.clone();
                async move { services::worker(channel).register(request).await }
            })
            .await?;
        self.load.with(|record| record.register.record_us(start.elapsed().as_micros() as u64));
        if self.session != 0 && !answer.resumed {
            self.begin_anew();
        }
        self.session = answer.session;
        self.cluster_id = answer.header.map(|header| header.cluster_id).unwrap_or_default();
        self.heartbeat = Duration::from_millis(u64::from(answer.heartbeat_ms).max(10));
        Ok(())
    }

    async fn stream(&mut self, leader: &MemberRef, channel: Channel) -> anyhow::Result<StreamEnd> {
        let (out, outbound) = mpsc::channel(self.slots.len() + 4);
        for at in 0..self.slots.len() {
            let exchange = self.slots[at].first(&self.load, &self.objects).await?;
            if let Some(exchange) = exchange
                && out.send(self.message(Up::Exchange(exchange))).await.is_err()
            {
                return Ok(StreamEnd::Left("the stream is closed".into()));
            }
        }
        let opened = services::worker(channel).work(ReceiverStream::new(outbound)).await;
        let mut inbound = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(ended_by(&status)),
        };
        // A leader that hangs breaks no stream: the worker leaves when another member leads.
        let client = self.client.clone();
        let silent = Silence::new(client, leader.clone());
        self.exchange(&out, &mut inbound, silent).await
    }

    async fn exchange(
        &mut self,
        out: &mpsc::Sender<v1::WorkerMessage>,
        inbound: &mut Streaming<v1::LeaderMessage>,
        silent: Silence,
    ) -> anyhow::Result<StreamEnd> {
        let mut beat = tokio::time::interval(self.heartbeat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        loop {
            if self.slots.iter().all(Slot::done) {
                return Ok(StreamEnd::Done);
            }
            tokio::select! {
                biased;
                message = inbound.message() => {
                    heard_at = Instant::now();
                    match message {
                        Ok(Some(message)) => {
                            if let Some(ended) = self.take(out, message).await? {
                                return Ok(ended);
                            }
                        }
                        Ok(None) => {
                            return Ok(StreamEnd::Left("the leader closed the stream".into()));
                        }
                        Err(status) => return Ok(ended_by(&status)),
                    }
                }
                _ = beat.tick() => {
                    if heard_at.elapsed() > self.heartbeat * 3 && silent.other_leads().await {
                        return Ok(StreamEnd::Left("silent while another one leads".into()));
                    }
                    self.heartbeats += 1;
                    let heartbeat =
                        v1::Heartbeat { seq: self.heartbeats, ..Default::default() };
                    // A full channel is a slow leader, which the exchanges show anyway.
                    let _ = out.try_send(self.message(Up::Heartbeat(heartbeat)));
                }
            }
        }
    }

    async fn take(
        &mut self,
        out: &mpsc::Sender<v1::WorkerMessage>,
        message: v1::LeaderMessage,
    ) -> anyhow::Result<Option<StreamEnd>> {
        let header = message.header.unwrap_or_default();
        if let Err(error) = self.client.observe(&header) {
            return Ok(Some(StreamEnd::Left(error.message)));
        }
        match message.kind {
            Some(Down::Exchange(answer)) => {
                let at = answer.slot as usize;
                let Some(slot) = self.slots.get_mut(at) else { return Ok(None) };
                if !slot.answered(&self.load, answer, header.coord_epoch) {
                    return Ok(None);
                }
                let Some(exchange) = slot.next(&self.load, &self.objects).await? else {
                    return Ok(None);
                };
                if out.send(self.message(Up::Exchange(exchange))).await.is_err() {
                    return Ok(Some(StreamEnd::Left("the stream is closed".into())));
                }
            }
            Some(Down::Revoke(revoke)) => {
                // If it completes some of them, the leader refuses these, and they are counted there.
                self.load.with(|record| record.released(&revoke.rows));
            }
            Some(Down::Heartbeat(_) | Down::Drain(_) | Down::Yield(_)) | None => {}
        }
        Ok(None)
    }

    fn message(&self, kind: Up) -> v1::WorkerMessage {
        v1::WorkerMessage {
            session: self.session,
            coord_epoch: self.client.coord_epoch(),
            kind: Some(kind),
            instance: self.instance,
        }
    }
}

fn ended_by(status: &tonic::Status) -> StreamEnd {
    let error = RpcError::from_status(status);
    match error.code {
        rollout_proto::ErrorCode::SessionUnknown => StreamEnd::Forgotten,
        _ => StreamEnd::Left(error.to_string()),
    }
}

/// Detects whether a silent leader was replaced.
struct Silence {
    client: Client,
    leader: MemberRef,
}

impl Silence {
    fn new(client: Client, leader: MemberRef) -> Self {
        Self { client, leader }
    }

    async fn other_leads(&self) -> bool {
        let limit = Duration::from_millis(200);
        tokio::time::timeout(limit, self.client.other_leader(&self.leader)).await.is_ok()
    }
}
