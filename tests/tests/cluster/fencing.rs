//! No process can act in an epoch that is over, that never opened, or that belongs to another cluster; and a leader
//! that has lost its epoch releases everything or exits.

use anyhow::{Context, Result};
use rollout_proto::{
    CLUSTER_HEADER, ChannelOptions, ClientTls, DialMap, EPOCH_HEADER, Endpoint, ErrorCode,
    RpcError, channel, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, create_run, eventually};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Request, Status};

const PATIENCE: Duration = Duration::from_secs(60);

/// A plain channel to one member, which does not check or send epochs by itself.
fn dial(fleet: &Fleet, member: &str, role: &str, name: &str) -> Result<Channel> {
    let tls = ClientTls::load(&fleet.security(role, name))?;
    let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
    Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
}

/// A request whose sender claims to know this cluster and epoch.
fn claiming<T>(message: T, cluster: &str, epoch: u64) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(EPOCH_HEADER, epoch.into());
    request.metadata_mut().insert(CLUSTER_HEADER, cluster.parse().expect("ascii"));
    request
}

fn code(status: &Status) -> ErrorCode {
    RpcError::from_status(status).code
}

/// Every `coordinator_fenced` of a member's log, as (stale, observed).
fn fencings(fleet: &mut Fleet, member: &str) -> Vec<(u64, u64)> {
    let log = std::fs::read_to_string(&fleet.member_process(member).log).unwrap_or_default();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events
        .filter(|line| line["event"] == "coordinator_fenced")
        .filter_map(|line| Some((line["stale"].as_u64()?, line["observed"].as_u64()?)))
        .collect()
}

async fn header(channel: &Channel) -> Result<v1::ClusterHeader> {
    let mut cluster = v1::cluster_client::ClusterClient::new(channel.clone());
    let status = cluster.status(v1::StatusRequest::default()).await?.into_inner();
    status.header.context("a status has a header")
}

/// Makes another member leader by pausing the present one until that has happened.
fn depose(fleet: &mut Fleet) -> Result<(String, String)> {
    let old = fleet.leader();
    fleet.member_process(&old).signal(libc::SIGSTOP)?;
    let new = fleet.leader_other_than(&old);
    fleet.member_process(&old).signal(libc::SIGCONT)?;
    Ok((old, new))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_a_forged_and_another_clusters_epoch_change_nothing_and_say_why() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    depose(&mut fleet)?;
    let leader = fleet.leader();
    let channel = dial(&fleet, &leader, "client", "user")?;
    let known = header(&channel).await?;
    let (cluster, epoch) = (known.cluster_id.as_str(), known.coord_epoch);
    assert!(epoch > 1, "one leader was deposed");
    let mut runs = v1::runs_client::RunsClient::new(channel);

    let open = v1::OpenSessionRequest { client_name: "forger".into() };
    let session = runs.open_session(claiming(open, cluster, epoch)).await?.into_inner().session;
    let create = |seq| create_run(v1::RequestId { session, seq, ack_upto: 0 }, "forged");
    let others = "00000000000000000000000000000000";
    let cases = [
        (cluster, epoch - 1, ErrorCode::StaleEpoch, "is over"),
        (cluster, epoch + 1000, ErrorCode::EpochUnknown, "a quorum has just confirmed"),
        (others, epoch, ErrorCode::OtherCluster, cluster),
    ];
    for (cluster, claimed, wanted, says) in cases {
        let refused = runs.create_run(claiming(create(1), cluster, claimed)).await.unwrap_err();
        assert_eq!(code(&refused), wanted, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
        assert_eq!(RpcError::from_status(&refused).outcome, rollout_proto::Outcome::NotApplied);
        let listed = runs.list_runs(v1::ListRunsRequest { namespace: "default".into() }).await?;
        assert!(listed.into_inner().runs.is_empty(), "{claimed} changed something");
    }
    // The same request id, with the right epoch, is not a repeat of anything.
    let created = runs.create_run(claiming(create(1), cluster, epoch)).await?.into_inner();
    assert!(created.created);
    assert_eq!(fleet.leader(), leader, "a forged future epoch deposes nobody");
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_and_shown_a_higher_epoch_confirms_nothing_and_says_so()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let old = fleet.leader();
    let channel = dial(&fleet, &old, "client", "user")?;
    let known = header(&channel).await?;
    // Paused and cut off, it still believes for a moment that it leads.
    fleet.member_process(&old).signal(libc::SIGSTOP)?;
    for other in fleet.member_names().iter().filter(|name| **name != old) {
        fleet.set_cut(&old, other, true);
    }
    let new = fleet.leader_other_than(&old);
    let epoch = header(&dial(&fleet, &new, "client", "user")?).await?.coord_epoch;
    assert!(epoch > known.coord_epoch);
    let mut runs = v1::runs_client::RunsClient::new(channel);
    let open = claiming(v1::OpenSessionRequest::default(), &known.cluster_id, epoch);
    let asked = tokio::spawn(async move { runs.open_session(open).await });
    fleet.member_process(&old).signal(libc::SIGCONT)?;
    let answer = tokio::time::timeout(Duration::from_secs(10), asked).await;
    let refused = answer.context("it says nothing at all")??.unwrap_err();
    let wanted = [ErrorCode::NotLeader, ErrorCode::NoQuorum, ErrorCode::NoLeader];
    assert!(wanted.contains(&code(&refused)), "{refused}");
    assert_eq!(RpcError::from_status(&refused).outcome, rollout_proto::Outcome::NotApplied);
    for other in fleet.member_names().iter().filter(|name| **name != old) {
        fleet.set_cut(&old, other, false);
    }
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workers_stream_of_another_epoch_is_refused() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    depose(&mut fleet)?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    eventually("the worker is there", PATIENCE, || fleet.rows_done_by("w1"));
    let leader = fleet.leader();
    let channel = dial(&fleet, &leader, "worker", "w1")?;
    let epoch = header(&channel).await?.coord_epoch;
    let list = fleet.ctl_json(&["worker", "list"])?;
    let text = list.to_string();
    let session = text.split("\"session\":\"").nth(1).and_then(|t| t.split('"').next());
    let session = session.and_then(|s| s.parse().ok()).context(text.clone())?;
    for (claimed, wanted) in
        [(epoch - 1, ErrorCode::StaleEpoch), (epoch + 9, ErrorCode::EpochUnknown)]
    {
        let heartbeat = v1::Heartbeat { seq: 1, ..Default::default() };
        let message = v1::WorkerMessage {
            session,
            coord_epoch: claimed,
            kind: Some(v1::worker_message::Kind::Heartbeat(heartbeat)),
            ..Default::default()
        };
        let mut worker = v1::worker_client::WorkerClient::new(channel.clone());
        let mut answers = worker.work(tokio_stream::iter([message])).await?.into_inner();
        let welcome = answers.message().await?.context("the epoch is said first")?;
        assert_eq!(welcome.header.map(|h| h.coord_epoch), Some(epoch));
        let refused = answers.message().await.unwrap_err();
        assert_eq!(code(&refused), wanted, "{refused}");
    }
    fleet.passed()
}

#[test]
fn split_brain_old_coord_self_fences() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let engine = "kind = \"mock\"\nconcurrency = 16\nlatency_ms_min = 5\nlatency_ms_max = 20\n";
    fleet.start_worker("w1", &WorkerOptions { engine: engine.into(), ..Default::default() })?;
    let mut batch = Batch::submit(&fleet, "split", 6000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 300);
    let old = fleet.leader();
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, true);
    }
    let new = fleet.leader_other_than(&old);
    batch.until(&fleet, "work goes on under the new one", |c| c.done >= 1200);
    for other in fleet.member_names().iter().filter(|n| **n != old) {
        fleet.set_cut(&old, other, false);
    }
    let fenced = eventually("the old one fences itself", PATIENCE, || {
        Some(fencings(&mut fleet, &old)).filter(|f| !f.is_empty())
    });
    batch.finish(&fleet)?;
    fleet.verify()?;
    let (stale, observed) = fenced[0];
    assert!(observed > stale, "{fenced:?}");
    assert_eq!(fencings(&mut fleet, &old).len(), 1, "once a lost epoch");
    assert!(fleet.member_process(&old).runs(), "it let go in time and lives on as a follower");
    assert!(fencings(&mut fleet, &new).is_empty());
    fleet.passed()
}

/// Longer than the watchdog waits: a process alive after this was not aborted.
const WATCHDOG: Duration = Duration::from_secs(6);

#[test]
fn a_leader_that_is_deposed_twice_fences_itself_once_an_epoch_and_lives_on() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine = "kind = \"mock\"\nconcurrency = 16\nlatency_ms_min = 5\nlatency_ms_max = 20\n";
    fleet.start_worker("w1", &WorkerOptions { engine: engine.into(), ..Default::default() })?;
    let mut batch = Batch::submit(&fleet, "twice", 12_000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 300);
    let old = fleet.leader();
    let pid = fleet.member_process(&old).pid();
    for time in 1..=2 {
        if fleet.leader() != old {
            eventually("it has caught up, and leads again", PATIENCE, || {
                fleet.ctl_json(&["leader", "transfer", &old]).ok()
            });
        }
        let (deposed, _) = depose(&mut fleet)?;
        assert_eq!(deposed, old, "it led again");
        eventually("it fences itself", PATIENCE, || {
            Some(fencings(&mut fleet, &old)).filter(|f| f.len() == time)
        });
    }
    // The watchdog has had time to act, and every loss of an epoch was reported once.
    let begun = Instant::now();
    while begun.elapsed() < WATCHDOG {
        assert!(fleet.member_process(&old).runs(), "aborted{}", fleet.logs());
        std::thread::sleep(Duration::from_millis(100)); // The poll; that it goes on living is the condition.
    }
    let fenced = fencings(&mut fleet, &old);
    assert_eq!(fenced.len(), 2, "once a lost epoch: {fenced:?}");
    assert!(fenced[0].0 < fenced[1].0, "of two epochs: {fenced:?}");
    assert!(fenced.iter().all(|(stale, observed)| observed > stale), "{fenced:?}");
    assert_eq!(fleet.counted(&old, "rollout_coordinator_fenced_total"), Some(2));
    assert_eq!(fleet.member_process(&old).pid(), pid, "the same process");
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_reads_nothing_does_not_take_a_deposed_leader_down() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.certify_worker("w1")?;
    let old = fleet.leader();
    let channel = dial(&fleet, &old, "worker", "w1")?;
    let epoch = header(&channel).await?.coord_epoch;
    let register = v1::RegisterRequest {
        namespace: "default".into(),
        name: "w1".into(),
        instance: 1,
        slots: vec![v1::SlotOffer {
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut worker = v1::worker_client::WorkerClient::new(channel.clone());
    let session = worker.register(register).await?.into_inner().session;
    // Cause far more answers than the windows and the outbox hold, and read none.
    let (out, queue) = tokio::sync::mpsc::channel(64);
    let beating = tokio::spawn(async move {
        for seq in 1.. {
            let heartbeat = v1::Heartbeat { seq, ..Default::default() };
            let kind = Some(v1::worker_message::Kind::Heartbeat(heartbeat));
            let message = v1::WorkerMessage { session, coord_epoch: epoch, kind, instance: 1 };
            let sent = out.send(message);
            if tokio::time::timeout(Duration::from_secs(2), sent).await.is_err() {
                return seq; // The member has stopped reading: it waits for room.
            }
        }
        0
    });
    let mut worker = v1::worker_client::WorkerClient::new(channel);
    let unread = worker.work(tokio_stream::wrappers::ReceiverStream::new(queue)).await?;
    let sent = beating.await?;
    assert!(sent > 256, "{sent} heartbeats filled it");

    let (deposed, _) = depose(&mut fleet)?;
    assert_eq!(deposed, old);
    eventually("it fences itself", PATIENCE, || {
        Some(fencings(&mut fleet, &old)).filter(|f| !f.is_empty())
    });
    let begun = Instant::now();
    while begun.elapsed() < WATCHDOG {
        assert!(fleet.member_process(&old).runs(), "aborted{}", fleet.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(unread);
    fleet.passed()
}

#[test]
fn fence_aborts_within_5s() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine = "kind = \"mock\"\nconcurrency = 16\nlatency_ms_min = 5\nlatency_ms_max = 20\n";
    fleet.start_worker("w1", &WorkerOptions { engine: engine.into(), ..Default::default() })?;
    let mut batch = Batch::submit(&fleet, "stuck", 3000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 300);
    let old = fleet.leader();
    // Every thread but the watchdog is frozen: the member cannot learn that it is deposed, and closes nothing.
    let frozen = fleet.member_process(&old).freeze_threads(|name| name != "fence")?;
    let begun = Instant::now();
    frozen.until_the_process_ends(PATIENCE)?;
    let took = begun.elapsed();
    let status = fleet.member_process(&old).wait(PATIENCE)?;
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let log = std::fs::read_to_string(&fleet.member_process(&old).log)?;
    assert!(log.contains("the runtime of a leader stands still: abort"), "{log}");
    batch.until(&fleet, "work goes on under another one", |c| c.done >= 600);
    fleet.start_member(&old)?;
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_rebuilt_cluster_is_another_one_to_its_old_workers() -> Result<()> {
    let mut old = Fleet::start(FleetOptions::default())?;
    old.start_worker("w1", &WorkerOptions::default())?;
    eventually("the worker is there", PATIENCE, || old.rows_done_by("w1"));
    let id =
        |fleet: &Fleet| -> Result<Value> { Ok(fleet.ctl_json(&["status"])?["clusterId"].clone()) };
    let before = id(&old)?;
    old.worker_process("w1").terminate(PATIENCE)?;
    old.rebuild()?;
    assert_ne!(id(&old)?, before, "epochs of the two must never be compared");
    old.start_worker("w1", &WorkerOptions::default())?;
    let log = old.worker_process("w1").log.clone();
    eventually("the worker says that the members are another cluster's", PATIENCE, || {
        std::fs::read_to_string(&log).ok().filter(|log| log.contains("RO-1005"))
    });
    old.passed()
}
