//! `rolloutctl bench rendezvous --ranks`: how long the processes of a job take to meet, and then to exchange keys.
//!
//! Invariant: each simulated node has its own connection to the cluster, with mutual TLS, and its ranks share it as
//! the processes of a host share their gateway. Every rank compares what it reads with what its peer wrote.
//! Connections and sessions are open when the clock starts, as in an agent that waits for its job.
//! Absent: the connections between ranks and their gateway, which do not leave the host.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rollout_gateway::{JobStore, Waiting};
use rollout_proto::{CallOptions, Client, Session, services, v1};
use serde::Serialize;
use tokio::task::JoinSet;
use v1::rendezvous_wait_response::Outcome;
use v1::store_answer::Kind as AnswerKind;
use v1::store_op::Kind as Op;

use super::open_files;
use super::rendezvous::{WAIT_ATTEMPT, WAIT_MS};
use super::target::Target;
use crate::output::{self, Format, Report};

/// Connections of a node: one to each member.
const CONNECTIONS: u64 = 3;
/// Other files of this process.
const OTHER_FILES: u64 = 500;
/// So long that no node is lost during the measurement, because a lost node has no store: nodes send no keep-alives
/// while their ranks exchange keys.
const KEEP_ALIVE_MS: u32 = 60_000;
/// Nodes that connect at a time.
const CONNECTING: usize = 32;

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) nodes: u32,
    pub(super) ranks: u32,
    /// Keys of each rank.
    pub(super) keys: u32,
}

impl Size {
    fn world(self) -> u32 {
        self.nodes * self.ranks
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RanksFigures {
    nodes: u32,
    ranks: u32,
    keys: u32,
    rounds: u32,
    meet_median_seconds: f64,
    meet_worst_seconds: f64,
    exchange_median_seconds: f64,
    exchange_worst_seconds: f64,
}

impl Report for RanksFigures {
    const KIND: &'static str = "BenchRendezvousRanks";

    fn table(&self) -> String {
        format!(
            "{} nodes of {} ranks meet in {:.3} s, and exchange {} keys in {:.3} s\n",
            self.nodes,
            self.ranks,
            self.meet_median_seconds,
            self.nodes * self.ranks * self.keys,
            self.exchange_median_seconds
        )
    }
}

/// One node: its connection, a session for its rendezvous and sessions for its stores.
#[derive(Clone)]
struct Node {
    number: u32,
    client: Client,
    session: Session,
    store: JobStore,
}

pub(super) async fn run(
    target: &mut Target,
    format: Format,
    size: Size,
    rounds: u32,
) -> anyhow::Result<()> {
    let needed = u64::from(size.nodes) * CONNECTIONS + OTHER_FILES;
    let allowed = open_files::raise();
    ensure!(
        needed <= allowed,
        "{} nodes need {needed} open files, and this process may have {allowed}: raise the limit (ulimit -n), or measure fewer nodes",
        size.nodes
    );
    let config = target.admin().config().clone();
    let connect = |number| {
        let config = config.clone();
        async move {
            let client = Client::new(config)?;
            let session = client.open_session("bench-rendezvous").await?;
            let store = JobStore::new(client.clone(), name("bench-warm", 0));
            store.use_it().await?;
            anyhow::Ok(Node { number, client, session, store })
        }
    };
    let nodes = stream::iter((0..size.nodes).map(connect)).buffer_unordered(CONNECTING);
    let nodes: Vec<Node> = nodes.try_collect().await.context("a node cannot connect")?;
    let (mut meets, mut exchanges) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let job = format!("bench-{:016x}", rand::random::<u64>());
        let (met, exchanged) = round(&nodes, &job, size).await?;
        meets.push(met.as_secs_f64());
        exchanges.push(exchanged.as_secs_f64());
        target.check_alive()?;
    }
    meets.sort_by(f64::total_cmp);
    exchanges.sort_by(f64::total_cmp);
    output::emit_next(
        format,
        &RanksFigures {
            nodes: size.nodes,
            ranks: size.ranks,
            keys: size.keys,
            rounds,
            meet_median_seconds: meets[meets.len() / 2],
            meet_worst_seconds: meets.last().copied().unwrap_or_default(),
            exchange_median_seconds: exchanges[exchanges.len() / 2],
            exchange_worst_seconds: exchanges.last().copied().unwrap_or_default(),
        },
    )
}

fn name(job: &str, round: u64) -> v1::StoreName {
    v1::StoreName { namespace: "default".into(), job: job.to_owned(), round, ticket: 0 }
}

/// How long the ranks take to meet, and to exchange their keys.
async fn round(nodes: &[Node], job: &str, size: Size) -> anyhow::Result<(Duration, Duration)> {
    let begun = Instant::now();
    let mut meeting = JoinSet::new();
    for node in nodes {
        let (node, job) = (node.clone(), job.to_owned());
        meeting.spawn(async move { meet(&node, &job, size).await });
    }
    let mut ranks = Vec::new();
    while let Some(met) = meeting.join_next().await {
        ranks.extend(met??);
    }
    let met = begun.elapsed();
    let mut numbers: Vec<u32> = ranks.iter().map(|(rank, _)| *rank).collect();
    numbers.sort_unstable();
    ensure!(numbers.iter().copied().eq(0..size.world()), "each rank is there once");

    let begun = Instant::now();
    let mut exchanging = JoinSet::new();
    for (rank, store) in ranks {
        exchanging.spawn(async move { exchange(&store, rank, size).await });
    }
    while let Some(exchanged) = exchanging.join_next().await {
        exchanged??;
    }
    Ok((met, begun.elapsed()))
}

/// A node joins, and each of its ranks waits until all ranks have arrived.
async fn meet(node: &Node, job: &str, size: Size) -> anyhow::Result<Vec<(u32, JobStore)>> {
    let round = join(node, job, size).await?;
    ensure!(round.processes == u64::from(size.world()), "{} ranks", round.processes);
    let store = node.store.other(round.store.context("a round has a store")?);
    let mut ranks = JoinSet::new();
    for local in 0..size.ranks {
        let (store, first) = (store.clone(), round.first_process as u32);
        ranks.spawn(async move {
            arrive(&store, Vec::new(), "arrived", size).await.map(|()| (first + local, store))
        });
    }
    let mut met = Vec::new();
    while let Some(rank) = ranks.join_next().await {
        met.push(rank??);
    }
    Ok(met)
}

async fn join(node: &Node, job: &str, size: Size) -> anyhow::Result<v1::RendezvousRound> {
    let job = v1::JobName { namespace: String::new(), job: job.to_owned() };
    let pending = node.session.request();
    let name = format!("node-{:05}", node.number);
    let local_world_size = size.ranks;
    let participant = v1::Participant {
        name,
        local_world_size,
        keep_alive_interval_ms: KEEP_ALIVE_MS,
        ..v1::Participant::default()
    };
    let request = v1::JoinRequest {
        request: Some(pending.id()),
        job: Some(job.clone()),
        participant: Some(participant),
        min: size.nodes,
        max: size.nodes,
        ..v1::JoinRequest::default()
    };
    let ask = |channel| {
        let request = request.clone();
        async move { services::rendezvous(channel).join(request).await }
    };
    let ticket = node.client.with_leader("join", ask).await?.ticket;
    pending.ack();
    let (job, without_members) = (Some(job), true);
    let request = v1::RendezvousWaitRequest { job, ticket, wait_ms: WAIT_MS, without_members };
    let options = CallOptions::read().attempt_timeout(WAIT_ATTEMPT);
    loop {
        let ask = |channel| {
            let request = request.clone();
            async move { services::rendezvous(channel).wait(request).await }
        };
        match node.client.with_leader_opts("wait for the round", options, ask).await?.outcome {
            Some(Outcome::Completed(round)) => return Ok(round),
            Some(Outcome::Pending(_)) | None => {}
            other => bail!("the rendezvous ended otherwise: {other:?}"),
        }
    }
}

/// Sets the given pairs, arrives at `key`, and returns when all ranks have.
async fn arrive(
    store: &JobStore,
    pairs: Vec<v1::StorePair>,
    key: &'static str,
    size: Size,
) -> anyhow::Result<()> {
    let key = Bytes::from_static(key.as_bytes());
    let mut ops = vec![Op::Add(v1::StoreAdd { key: key.clone(), delta: 1 })];
    if !pairs.is_empty() {
        ops.insert(0, Op::Set(v1::StoreSet { pairs }));
    }
    for answer in store.change_all(ops).await? {
        if let AnswerKind::Refused(why) = answer {
            bail!("the store refuses: {why}");
        }
    }
    let all = v1::StoreAwaited { key, at_least: Some(i64::from(size.world())) };
    Ok(store.wait(&Waiting::new(vec![all])).await?)
}

fn key(rank: u32, number: u32) -> Bytes {
    format!("rank-{rank}-{number}").into()
}

fn value(rank: u32, number: u32) -> Bytes {
    format!("{rank:032}-{number:031}").into()
}

/// A rank sets its keys, and reads those of a rank of another node once all exist.
async fn exchange(store: &JobStore, rank: u32, size: Size) -> anyhow::Result<()> {
    let pair = |n| v1::StorePair { key: key(rank, n), value: value(rank, n) };
    arrive(store, (0..size.keys).map(pair).collect(), "exchanged", size).await?;
    let other = (rank + size.ranks) % size.world();
    let read = store.values((0..size.keys).map(|n| key(other, n)).collect()).await?;
    let all = (0..size.keys).map(|n| Some(value(other, n)));
    ensure!(read.into_iter().eq(all), "rank {rank} reads other values than rank {other} has set");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = RanksFigures {
            nodes: 1250,
            ranks: 8,
            keys: 10,
            rounds: 3,
            meet_median_seconds: 1.5,
            meet_worst_seconds: 1.75,
            exchange_median_seconds: 0.75,
            exchange_worst_seconds: 0.875,
        };
        crate::golden::report("bench-rendezvous-ranks.txt", &report);
    }
}
