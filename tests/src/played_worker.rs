//! A worker with one slot, played by the test: it can send what no honest worker sends, and keep what an honest one
//! drops.
//!
//! *Invariant:* on its own it sends only heartbeats, and only while it waits for something.

use crate::fleet::Fleet;
use anyhow::{Context, Result, ensure};
use rollout_proto::{ChannelOptions, ClientTls, DialMap, Endpoint, channel, v1};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

/// Time limit for a leader's message on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A plain channel to one member under one of the fleet's certificates, which does not send epochs by itself.
///
/// # Errors
/// When there is no such certificate.
pub fn dial(fleet: &Fleet, member: &str, role: &str, name: &str) -> Result<Channel> {
    let tls = ClientTls::load(&fleet.security(role, name))?;
    let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
    Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
}

pub struct PlayedWorker {
    /// The contents of each heartbeat, except for its number.
    pub heartbeat: v1::Heartbeat,
    name: String,
    session: u64,
    epoch: u64,
    seq: u64,
    beats: u64,
    out: mpsc::Sender<v1::WorkerMessage>,
    answers: Streaming<v1::LeaderMessage>,
}

impl PlayedWorker {
    /// Registers with the leader, for any model and the task `generate`, and opens its stream.
    ///
    /// # Errors
    /// When it is refused, or its certificate cannot be issued.
    pub async fn come(fleet: &Fleet, name: &str) -> Result<Self> {
        fleet.certify_worker(name)?;
        let channel = dial(fleet, &fleet.leader(), "worker", name)?;
        let slot = v1::SlotOffer {
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..Default::default()
        };
        let register = v1::RegisterRequest {
            namespace: "default".into(),
            name: name.into(),
            instance: 1,
            slots: vec![slot],
            ..Default::default()
        };
        let mut worker = v1::worker_client::WorkerClient::new(channel.clone());
        let session = worker.register(register).await?.into_inner().session;
        let (out, answers, epoch) = open(channel).await?;
        let heartbeat = v1::Heartbeat::default();
        let (name, seq, beats) = (name.to_owned(), 0, 0);
        Ok(Self { heartbeat, name, session, epoch, seq, beats, out, answers })
    }

    /// Drops its stream, as if its connection had broken, and stays silent until [`reconnect`](Self::reconnect).
    pub fn hang_up(&mut self) {
        self.out = mpsc::channel(1).0;
    }

    /// Opens another stream to the present leader without registering.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn reconnect(&mut self, fleet: &Fleet) -> Result<()> {
        let channel = dial(fleet, &fleet.leader(), "worker", &self.name)?;
        (self.out, self.answers, self.epoch) = open(channel).await?;
        Ok(())
    }

    async fn send_message(&self, kind: Up) -> Result<()> {
        let (session, coord_epoch) = (self.session, self.epoch);
        let message = v1::WorkerMessage { session, coord_epoch, kind: Some(kind), instance: 1 };
        self.out.send(message).await.context("the stream has ended")
    }

    /// Sends a heartbeat, and returns its number.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn beat(&mut self) -> Result<u64> {
        self.beats += 1;
        let seq = self.beats;
        self.send_message(Up::Heartbeat(v1::Heartbeat { seq, ..self.heartbeat.clone() })).await?;
        Ok(seq)
    }

    /// Listens until the leader sends a message of that kind, and sends heartbeats meanwhile.
    ///
    /// # Errors
    /// When no such message comes, or the stream ends.
    pub async fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(Down) -> Option<T>,
    ) -> Result<T> {
        let begun = Instant::now();
        self.beat().await?;
        loop {
            ensure!(begun.elapsed() < PATIENCE, "the leader never sent {what}");
            let message = self.answers.message();
            let Ok(message) = tokio::time::timeout(Duration::from_millis(300), message).await
            else {
                self.beat().await?;
                continue;
            };
            let kind = message?.context("the stream has ended")?.kind;
            if let Some(found) = kind.and_then(&mut look) {
                return Ok(found);
            }
        }
    }

    /// Sends an exchange under the next number, and returns the number.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn send(&mut self, exchange: v1::Exchange) -> Result<u64> {
        self.seq += 1;
        let seq = self.seq;
        self.send_message(Up::Exchange(v1::Exchange { seq, ..exchange })).await?;
        Ok(seq)
    }

    /// Sends an exchange and waits for its answer.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn exchange(&mut self, exchange: v1::Exchange) -> Result<v1::ExchangeAnswer> {
        let seq = self.send(exchange).await?;
        self.until("an answer", |kind| match kind {
            Down::Exchange(answer) if answer.seq == seq => Some(answer),
            _ => None,
        })
        .await
    }
}

type Stream = (mpsc::Sender<v1::WorkerMessage>, Streaming<v1::LeaderMessage>, u64);

/// A stream and its epoch, which the leader sends first.
async fn open(channel: Channel) -> Result<Stream> {
    let mut worker = v1::worker_client::WorkerClient::new(channel);
    let (out, queue) = mpsc::channel(16);
    let mut answers = worker.work(ReceiverStream::new(queue)).await?.into_inner();
    let welcome = answers.message().await?.context("the epoch is said first")?;
    Ok((out, answers, welcome.header.context("a header")?.coord_epoch))
}
