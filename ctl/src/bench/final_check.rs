//! The proof at the end: nothing lost, nothing done twice, all members alike.
//!
//! Invariant: the ledger's counts of done rows are compared with the answers that the load got, run by run, and the
//! digests are taken after that. Absent: tolerance.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollout_proto::{CallOptions, Client, Session, services, v1};
use serde::Serialize;

use super::load::{Load, NAMESPACE};
use crate::output::u64_string;
use crate::rolloutctl::cluster::verify;

/// The proven figures.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settled {
    pub(super) runs: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) done: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) granted_twice: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) refused: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) returned: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) digest_index: u64,
    pub(super) digests_equal: bool,
}

#[cfg(test)]
pub(super) fn sample() -> Settled {
    Settled {
        runs: 1,
        rows: 20_000,
        done: 20_000,
        granted_twice: 0,
        refused: 0,
        returned: 0,
        digest_index: 5_000,
        digests_equal: true,
    }
}

/// Compares the ledger with the load, and the members with each other.
///
/// # Errors
/// The first difference, naming the run or the member.
pub(super) async fn check(client: &Client, load: &Load) -> anyhow::Result<Settled> {
    let mut settled = Settled {
        runs: 0,
        rows: 0,
        done: 0,
        granted_twice: 0,
        refused: load.with(|record| record.refused_rows),
        returned: 0,
        digest_index: 0,
        digests_equal: false,
    };
    let runs: Vec<u32> = load.with(|record| record.runs.keys().copied().collect());
    for run in runs {
        let counts = counts(client, NAMESPACE, run).await?;
        let sum = counts.pending + counts.running + counts.waiting + counts.done + counts.failed;
        ensure!(sum == counts.rows, "run {run}: {sum} rows are somewhere, it has {}", counts.rows);
        ensure!(counts.failed == 0, "run {run}: {} rows failed", counts.failed);
        ensure!(counts.running == 0, "run {run}: {} rows are still held", counts.running);
        let (done, twice, again, beyond) = load.with(|record| {
            let coverage = &record.runs[&run].coverage;
            (coverage.done_rows, coverage.done_twice, coverage.granted_twice, coverage.beyond)
        });
        ensure!(beyond == 0, "run {run}: {beyond} rows were granted that it does not have");
        ensure!(
            twice == 0,
            "run {run}: {twice} rows were granted or accepted after they were done"
        );
        ensure!(
            counts.done == done,
            "run {run}: the ledger has {} rows done, the workers were told of {done}",
            counts.done
        );
        settled.runs += 1;
        settled.rows += counts.rows;
        settled.done += done;
        settled.granted_twice += again;
        settled.returned += counts.returned;
    }
    let verification = verify::verify(client, Duration::from_secs(120)).await?;
    settled.digest_index = verification.index;
    settled.digests_equal = verification.agree;
    ensure!(verification.agree, "the members do not agree: {}", verification.complaint());
    Ok(settled)
}

/// The state of a run's rows in the ledger.
pub(in crate::bench) async fn counts(
    client: &Client,
    namespace: &str,
    run: u32,
) -> anyhow::Result<v1::RunCounts> {
    let request = v1::DescribeRunRequest { namespace: namespace.into(), name: String::new(), run };
    let answer = client
        .with_leader_opts("describe run", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        })
        .await?;
    answer.run.and_then(|run| run.counts).with_context(|| format!("run {run} has no counts"))
}

/// Ends the runs, so that none of their rows is granted to other workers.
pub(super) async fn cancel_runs(session: &Session, load: &Load) -> anyhow::Result<()> {
    let names: Vec<String> =
        load.with(|record| record.runs.values().map(|run| run.name.clone()).collect());
    for name in names {
        cancel(session, NAMESPACE, &name).await?;
    }
    Ok(())
}

/// Ends a run, if it has not ended by itself.
pub(in crate::bench) async fn cancel(
    session: &Session,
    namespace: &str,
    name: &str,
) -> anyhow::Result<()> {
    let result = rollout_batch::submission::submit::cancel(
        session,
        namespace,
        name,
        "the benchmark is over",
    )
    .await;
    match result {
        Err(rollout_proto::ClientError::Rpc(error))
            if error.code == rollout_proto::ErrorCode::RunEnded =>
        {
            Ok(())
        }
        other => other.map(drop).with_context(|| format!("cannot cancel {name}")),
    }
}
