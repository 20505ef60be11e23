//! `rolloutctl bench rendezvous`: how long a job's participants take to find each other.
//!
//! Invariant: each simulated node joins, is acknowledged (which means fsynced on a quorum), and waits independently.
//! The clock starts before the first request and stops when the last node has its rank. The first round of a size is
//! not counted.
//! Absent: a last call, because `min` is `max`; and a node's own start.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use rollout_proto::{CallOptions, Client, Session, services, v1};
use serde::Serialize;
use tokio::task::JoinSet;
use v1::rendezvous_wait_response::Outcome;

use super::ranks::{self, Size};
use super::target::{Target, TargetArgs};
use crate::output::{self, Report};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// How long a leader holds a wait.
pub(super) const WAIT_MS: u64 = 10_000;
/// Limit of one attempt of a wait: the leader's time plus the round trip.
pub(super) const WAIT_ATTEMPT: Duration = Duration::from_secs(15);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct RendezvousArgs {
    /// Sizes of the job
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8,64,256", value_parser = clap::value_parser!(u32).range(1..=4096))]
    nodes: Vec<u32>,
    /// Rounds of each size
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Ranks per node; they meet through the round's store, then exchange keys. 0: only nodes join
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    ranks: u32,
    /// With --ranks: keys that each rank sets, and as many that it reads from another rank
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    keys: u32,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RendezvousFigures {
    nodes: u32,
    rounds: u32,
    median_seconds: f64,
    worst_seconds: f64,
}

impl Report for RendezvousFigures {
    const KIND: &'static str = "BenchRendezvous";

    fn table(&self) -> String {
        format!("{} nodes {:.4} s\n", self.nodes, self.median_seconds)
    }
}

impl Verb for RendezvousArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut target = Target::open(&globals.connect, &self.target).await?;
        if self.ranks > 0 {
            for &nodes in &self.nodes {
                let size = Size { nodes, ranks: self.ranks, keys: self.keys };
                ranks::run(&mut target, globals.format, size, self.rounds).await?;
            }
            return target.close().await;
        }
        let client = target.admin().clone();
        let session = client.open_session("bench-rendezvous").await?;
        for &nodes in &self.nodes {
            let job = format!("bench-{:016x}", rand::random::<u64>());
            let mut seconds = Vec::new();
            for round in 0..=self.rounds {
                let taken = meet(&client, &session, &job, nodes).await?;
                if round > 0 {
                    seconds.push(taken.as_secs_f64());
                }
                target.check_alive()?;
            }
            seconds.sort_by(f64::total_cmp);
            output::emit_next(
                globals.format,
                &RendezvousFigures {
                    nodes,
                    rounds: self.rounds,
                    median_seconds: seconds[seconds.len() / 2],
                    worst_seconds: seconds.last().copied().unwrap_or_default(),
                },
            )?;
        }
        target.close().await
    }
}

/// One round: every node joins, or joins again if it was a member, and waits for its rank.
async fn meet(
    client: &Client,
    session: &Session,
    job: &str,
    nodes: u32,
) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for number in 0..nodes {
        let (client, session, job) = (client.clone(), session.clone(), job.to_owned());
        all.spawn(async move { join(&client, &session, &job, (number, nodes)).await });
    }
    let mut ranks = BTreeSet::new();
    while let Some(rank) = all.join_next().await {
        ranks.insert(rank??);
    }
    if !ranks.iter().copied().eq(0..nodes) {
        bail!("the ranks of {nodes} nodes are {ranks:?}");
    }
    Ok(begun.elapsed())
}

async fn join(
    client: &Client,
    session: &Session,
    job: &str,
    (number, nodes): (u32, u32),
) -> anyhow::Result<u32> {
    let job = v1::JobName { namespace: String::new(), job: job.to_owned() };
    let pending = session.request();
    let name = format!("node-{number}");
    let request = v1::JoinRequest {
        request: Some(pending.id()),
        job: Some(job.clone()),
        participant: Some(v1::Participant { name, ..v1::Participant::default() }),
        min: nodes,
        max: nodes,
        ..v1::JoinRequest::default()
    };
    let joined = client
        .with_leader("join", |channel| {
            let request = request.clone();
            async move { services::rendezvous(channel).join(request).await }
        })
        .await?;
    pending.ack();
    let ticket = joined.ticket;
    let request = v1::RendezvousWaitRequest {
        job: Some(job),
        ticket,
        wait_ms: WAIT_MS,
        without_members: false,
    };
    let options = CallOptions::read().attempt_timeout(WAIT_ATTEMPT);
    loop {
        let answer = client
            .with_leader_opts("wait for the round", options, |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).wait(request).await }
            })
            .await?;
        match answer.outcome {
            Some(Outcome::Completed(round)) => return Ok(round.rank),
            Some(Outcome::Pending(_)) | None => {}
            other => bail!("the rendezvous ended otherwise: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report =
            RendezvousFigures { nodes: 8, rounds: 10, median_seconds: 0.025, worst_seconds: 0.05 };
        crate::golden::report("bench-rendezvous.txt", &report);
    }
}
