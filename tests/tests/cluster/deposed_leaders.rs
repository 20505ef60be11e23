//! A leader that was paused or cut off does no harm: it commits nothing, grants nothing, and soon answers that it does
//! not know the outcome. `fencing.rs` tests the other side: requests with an epoch that is over, and what such a leader
//! releases.

use anyhow::{Result, ensure};
use rollout_proto::{
    ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Outcome, RpcError, Security, channel,
    v1,
};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually, output};
use std::time::{Duration, Instant};

fn worker(fleet: &Fleet, name: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 32\nlatency_ms_min = 20\nlatency_ms_max = 80\n\
         side_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

fn once_each(fleet: &Fleet, workers: &[&str], rows: u64) -> Result<()> {
    let files: Vec<_> = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    let executions = Executions::read(&files)?;
    let twice: Vec<_> = executions.attempts.iter().filter(|a| a.1.len() > 1).collect();
    assert!(twice.is_empty() && executions.started == rows, "run again: {twice:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_leader_that_is_resumed_commits_nothing_and_grants_nothing() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "paused", 12_000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 500 && c.running >= 64);
    let old = fleet.leader();
    let runs = client_of(&fleet, &old)?;
    let accepted = open_session(runs.clone()).await;
    ensure!(accepted.refusal.is_none(), "it still leads: {accepted:?}");
    fleet.member_process(&old).signal(libc::SIGSTOP)?;
    let new = fleet.leader_other_than(&old);
    let seen = batch.until(&fleet, "work goes on", |c| c.done >= 1500);
    // These reach it before it knows that it leads no more.
    let waiting: Vec<_> = (0..16).map(|_| tokio::spawn(open_session(runs.clone()))).collect();
    // Time for the requests to enter the sockets of the stopped process. The leader must also refuse a request that is
    // sent later, so the result does not depend on this time.
    tokio::time::sleep(Duration::from_millis(100)).await;
    fleet.member_process(&old).signal(libc::SIGCONT)?;
    for answered in waiting {
        let answered = answered.await?;
        ensure!(answered.refusal.is_some(), "it accepted a write: {answered:?}{}", fleet.logs());
    }
    let more = (seen.done + 500).min(12_000);
    batch.until(&fleet, "it still goes on", |c| c.done >= more);
    assert_eq!(fleet.leader(), new, "the paused one must not lead again by itself");
    batch.finish(&fleet)?;
    fleet.verify()?;
    once_each(&fleet, &["w1", "w2"], 12_000)?;
    fleet.passed()
}

#[test]
fn workers_of_a_leader_in_a_minority_work_for_the_new_one_before_the_cut_is_healed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    for name in ["w1", "w2"] {
        let options = worker(&fleet, name);
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "minority", 8000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 500 && c.running >= 64);
    let old = fleet.leader();
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, true); // Its workers still reach it.
    }
    fleet.leader_other_than(&old);
    for name in ["w1", "w2"] {
        let before = fleet.rows_done_by(name).unwrap_or(0);
        eventually("each worker finishes rows for the new leader", Duration::from_secs(60), || {
            fleet.rows_done_by(name).filter(|done| *done > before)
        });
    }
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, false);
    }
    batch.finish(&fleet)?;
    fleet.verify()?;
    once_each(&fleet, &["w1", "w2"], 8000)?;
    fleet.passed()
}

/// A client that sends requests to this member only.
fn client_of(
    fleet: &Fleet,
    member: &str,
) -> Result<v1::runs_client::RunsClient<tonic::transport::Channel>> {
    let tls = ClientTls::load(&fleet.security("client", "user"))?;
    let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
    let channel = channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
    Ok(v1::runs_client::RunsClient::new(channel))
}

/// Sends a write request to a member. Returns its answer, and how long it took.
async fn open_session(runs: v1::runs_client::RunsClient<tonic::transport::Channel>) -> Answered {
    let (mut runs, began) = (runs, Instant::now());
    let request = v1::OpenSessionRequest { client_name: "cut".into() };
    let limit = Duration::from_secs(60);
    let answer = tokio::time::timeout(limit, runs.open_session(request)).await;
    let refusal = match answer {
        Ok(Ok(_)) => None,
        Ok(Err(status)) => Some(RpcError::from_status(&status)),
        Err(_) => Some(RpcError::new(ErrorCode::TimedOut, "no answer at all")),
    };
    Answered { refusal, took: began.elapsed() }
}

#[derive(Debug)]
struct Answered {
    refusal: Option<RpcError>,
    took: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_says_soon_that_it_does_not_know() -> Result<()> {
    let fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let old = fleet.leader();
    let runs = client_of(&fleet, &old)?;
    let mut asking = Vec::new();
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    for round in 0..120 {
        pace.tick().await;
        if round == 20 {
            for other in fleet.member_names().iter().filter(|name| **name != old) {
                fleet.set_cut(&old, other, true);
            }
        }
        asking.push(tokio::spawn(open_session(runs.clone())));
    }
    let mut in_doubt = 0;
    for asking in asking {
        let answered = asking.await?;
        ensure!(answered.took < Duration::from_secs(10), "{answered:?}{}", fleet.logs());
        let Some(refusal) = &answered.refusal else { continue };
        ensure!(refusal.retryable && refusal.code != ErrorCode::TimedOut, "{answered:?}");
        if refusal.code == ErrorCode::NoQuorum && refusal.outcome == Outcome::Unknown {
            in_doubt += 1;
        }
    }
    ensure!(in_doubt > 0, "nothing was under way when it was cut off{}", fleet.logs());

    // A client that knows only this member learns at once that there is no majority, and prints on stderr what it
    // waits for.
    let mut command = fleet.program("rolloutctl");
    command.args(["--endpoint", fleet.client_addr(&old), "--timeout", "8s", "run", "pause", "x"]);
    let Security::Mtls(files) = fleet.security("admin", "operator") else { unreachable!() };
    command
        .arg("--ca-cert")
        .arg(files.ca)
        .arg("--cert")
        .arg(files.cert)
        .arg("--key")
        .arg(files.key);
    for other in fleet.member_names().iter().filter(|name| **name != old) {
        command.arg("--dial-map").arg(format!("{other}=127.0.0.1:9"));
    }
    let out = output(command, Duration::from_secs(60))?;
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(out.status.code() == Some(3), "{:?}: {stderr}", out.status);
    ensure!(stderr.matches("waiting: no leader").count() == 1, "{stderr}");

    for other in fleet.member_names().iter().filter(|name| **name != old) {
        fleet.set_cut(&old, other, false);
    }
    fleet.passed()
}
