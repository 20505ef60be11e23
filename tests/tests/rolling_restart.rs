//! A rolling restart under load: every member gets SIGTERM in turn, and what that costs is printed.
//!
//! Invariant: what was acknowledged is there, once, whoever led when. Absent: a bound on the pauses that a busy machine could
//! break; the figures are told with the time of an fsync beside them, which bounds them.

use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, ClientConfig, services, v1};
use rollout_tests::{Fleet, FleetOptions, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// How often each member is restarted.
const ROUNDS: usize = 5;
const WRITERS: usize = 4;
/// No pause of a planned restart is like that of a lost majority.
const OUTAGE: Duration = Duration::from_secs(10);

fn store() -> Option<v1::StoreName> {
    Some(v1::StoreName { job: "rolling".into(), ..Default::default() })
}

fn client(fleet: &Fleet, role: &str, name: &str) -> Result<Client> {
    let members = fleet.member_names();
    let endpoints = members.iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let mut config = ClientConfig::new(endpoints, fleet.security(role, name));
    config.timeout = PATIENCE;
    Ok(Client::new(config)?)
}

/// Adds one to a number of its own, again and again; returns when each was acknowledged.
async fn write(client: Client, writer: usize, stop: Arc<AtomicBool>) -> Result<Vec<Instant>> {
    let session = client.open_session("rolling restart").await?;
    let mut acknowledged = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let pending = session.request();
        let add = v1::StoreAdd { key: format!("writer-{writer}").into_bytes().into(), delta: 1 };
        let request = v1::StoreApplyRequest {
            request: Some(pending.id()),
            store: store(),
            ops: vec![v1::StoreOp { kind: Some(v1::store_op::Kind::Add(add)) }],
        };
        let answer = client
            .with_leader("add", |channel| {
                let request = request.clone();
                async move { services::store(channel).apply(request).await }
            })
            .await?;
        acknowledged.push(Instant::now());
        let said = answer.answers.first().and_then(|a| a.kind.clone());
        let sum = acknowledged.len() as i64;
        let wanted = Some(v1::store_answer::Kind::Number(sum));
        ensure!(said == wanted, "writer {writer}: {said:?} after {sum} acknowledgements");
    }
    Ok(acknowledged)
}

/// The number under each writer's key.
async fn sums(client: &Client) -> Result<Vec<i64>> {
    let keys = (0..WRITERS).map(|n| format!("writer-{n}").into_bytes().into()).collect();
    let request = v1::StoreReadRequest { store: store(), keys, ..Default::default() };
    let read = client
        .with_leader("read", |channel| {
            let request = request.clone();
            async move { services::store(channel).read(request).await }
        })
        .await?;
    let number = |answer: &v1::StoreAnswer| -> Result<i64> {
        let Some(v1::store_answer::Kind::Value(value)) = &answer.kind else {
            anyhow::bail!("no value: {answer:?}");
        };
        Ok(std::str::from_utf8(value)?.parse()?)
    };
    read.values.iter().map(number).collect()
}

/// One restart: when it began and ended, and whether the member led.
struct Restart {
    member: String,
    led: bool,
    from: Instant,
    to: Instant,
}

fn restart(fleet: &mut Fleet, name: &str) -> Result<Restart> {
    let led = fleet.leader() == name;
    let from = Instant::now();
    let status = fleet.member_process(name).terminate(Duration::from_secs(30))?;
    ensure!(status.success(), "{name} ended with {status}{}", fleet.logs());
    fleet.start_member(name)?;
    eventually("it follows, and is up to date", PATIENCE, || caught_up(fleet, name));
    Ok(Restart { member: name.to_owned(), led, from, to: Instant::now() })
}

/// Whether a member has what the leader had a moment ago, and someone leads.
fn caught_up(fleet: &Fleet, name: &str) -> Option<()> {
    let status = fleet.ctl_json(&["--timeout", "2s", "status"]).ok()?;
    status["leader"].as_str()?;
    let member = status["members"].as_array()?.iter().find(|m| m["name"] == name)?;
    let says = member.get("says")?;
    let behind: u64 = says.get("behind")?.as_str()?.parse().ok()?;
    (says["role"] == "follower" || says["role"] == "leader").then_some(())?;
    (behind < 1000).then_some(())
}

/// The longest time within the restart in which nobody was told that a write is durable.
fn pause(acknowledged: &[Instant], restart: &Restart) -> Duration {
    let within = acknowledged.iter().filter(|at| (restart.from..=restart.to).contains(*at));
    let mut last = restart.from;
    let mut longest = Duration::ZERO;
    for at in within.copied().chain([restart.to]) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

fn shown(pauses: &mut [Duration]) -> String {
    pauses.sort();
    match &*pauses {
        [] => "none".into(),
        all @ [.., worst] => format!("median {:?}, worst {worst:?}", all[all.len() / 2]),
    }
}

/// The 99th percentile of an fsync of each member's log, in microseconds.
async fn fsync_p99_us(fleet: &Fleet) -> Result<Vec<u64>> {
    let operator = client(fleet, "admin", "operator")?;
    let asked = operator.each_member(|_, channel| async move {
        services::cluster(channel).counters(v1::CountersRequest {}).await
    });
    asked.await.into_iter().map(|(_, answer)| Ok(answer?.fsync_us_p99)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restarts_lose_nothing_and_their_pauses_are_told() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = client(&fleet, "client", "user")?;
        writers.push(tokio::spawn(write(client, writer, stop.clone())));
    }
    let mut restarts = Vec::new();
    for _ in 0..ROUNDS {
        for name in fleet.member_names() {
            restarts.push(tokio::task::block_in_place(|| restart(&mut fleet, &name))?);
        }
    }
    let fsync = fsync_p99_us(&fleet).await?;
    stop.store(true, Ordering::Relaxed);
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    for writer in writers {
        let acknowledged = writer.await??;
        counts.push(acknowledged.len() as i64);
        all.extend(acknowledged);
    }
    all.sort();
    let (mut of_leaders, mut of_others) = (Vec::new(), Vec::new());
    for restart in &restarts {
        let pause = pause(&all, restart);
        println!("{} restarted, led: {}, longest pause {pause:?}", restart.member, restart.led);
        if restart.led { of_leaders.push(pause) } else { of_others.push(pause) }
    }
    println!("handovers: {} of {}: {}", of_leaders.len(), restarts.len(), shown(&mut of_leaders));
    println!("restarts of followers: {}", shown(&mut of_others));
    println!("{} writes; fsync p99 of the members: {fsync:?} us", all.len());
    ensure!(of_leaders.len() * 2 >= ROUNDS, "hardly anybody led who was restarted");
    let worst = of_leaders.iter().chain(&of_others).max().context("restarts")?;
    ensure!(*worst < OUTAGE, "{worst:?} is no pause of a restart{}", fleet.logs());
    let there = sums(&client(&fleet, "client", "user")?).await?;
    ensure!(there == counts, "{counts:?} were acknowledged, {there:?} are there");
    fleet.verify()?;
    fleet.passed()
}
