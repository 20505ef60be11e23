//! A full disk loses nothing that was acknowledged and kills no cluster, and the cluster recovers as soon as there is
//! room; a leader whose disk stalls steps down.

use anyhow::{Context, Result, ensure};
use rollout_powerloss::{Disk, DiskFault};
use rollout_proto::{
    ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Outcome, RpcError, channel, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, create_run, eventually};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tonic::Status;

const PATIENCE: Duration = Duration::from_secs(60);
/// Above all bounds, whatever this machine's disk has.
const WELL: DiskFault = DiskFault::Left(64 << 20);
/// Below `low_bytes`, above `reserve_bytes`; and below both.
const LITTLE: DiskFault = DiskFault::Left(1 << 20);
const NONE: DiskFault = DiskFault::Left(100 << 10);

type Runs = v1::runs_client::RunsClient<tonic::transport::Channel>;
type Disks = BTreeMap<String, &'static Disk>;

/// Starts a fleet with every member's data directory on a disk of its own, without faults.
fn fleet() -> Result<(Fleet, Disks)> {
    fleet_of(FleetOptions { disks: Some(|data_dir| data_dir), ..FleetOptions::default() })
}

/// As [`fleet`], with these options.
fn fleet_of(options: FleetOptions) -> Result<(Fleet, Disks)> {
    let fleet = Fleet::start(options)?;
    let disks = fleet.disks()?;
    disks.values().for_each(|disk| disk.set(WELL));
    eventually("all are well", PATIENCE, || alarms(&fleet)?.is_empty().then_some(()));
    fleet.leader();
    Ok((fleet, disks))
}

/// The alarms now, as `KIND member`.
fn alarms(fleet: &Fleet) -> Option<Vec<String>> {
    let list = fleet.ctl_json(&["--timeout", "5s", "alarm", "list"]).ok()?;
    let all = list["alarms"].as_array()?.iter();
    Some(all.map(|a| format!("{} {}", a["kind"], a["member"]).replace('"', "")).collect())
}

fn until_alarm(fleet: &Fleet, wanted: &str) {
    eventually(wanted, PATIENCE, || alarms(fleet)?.contains(&wanted.to_owned()).then_some(()));
}

/// A client of the leader without retries, so that a refusal is visible.
async fn runs_at_leader(fleet: &Fleet) -> Result<Runs> {
    let leader = fleet.leader();
    let tls = ClientTls::load(&fleet.security("client", "user"))?;
    let endpoint = Endpoint::with_name(&leader, fleet.client_addr(&leader))?;
    let channel = channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
    Ok(Runs::new(channel))
}

async fn session(runs: &mut Runs) -> Result<u64> {
    let open = v1::OpenSessionRequest { client_name: "a test".into() };
    Ok(runs.open_session(open).await?.into_inner().session)
}

fn is_full(status: &Status) -> bool {
    let error = RpcError::from_status(status);
    error.code == ErrorCode::DiskFull && error.outcome == Outcome::NotApplied && error.retryable
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_full_disks_reads_and_deletes_and_accepts_growth_once_there_is_room()
-> Result<()> {
    let (mut fleet, disks) = fleet()?;
    let set_all = |fault: DiskFault| disks.values().for_each(|disk| disk.set(fault));
    let mut runs = runs_at_leader(&fleet).await?;
    let id = session(&mut runs).await?;
    let request = |seq| v1::RequestId { session: id, seq, ack_upto: seq - 1 };
    runs.create_run(create_run(request(1), "before")).await?;
    ensure!(alarms(&fleet).is_some_and(|a| a.is_empty()), "{:?}", alarms(&fleet));

    set_all(LITTLE);
    until_alarm(&fleet, "DISK_LOW c1");
    runs.create_run(create_run(request(2), "little")).await?;

    set_all(NONE);
    for name in fleet.member_names() {
        until_alarm(&fleet, &format!("DISK_FULL {name}"));
        let told = |metric: &str| fleet.counted(&name, metric);
        ensure!(told("rollout_alarm{kind=\"disk_full\"}") == Some(1), "of {name}");
        let free = told("rollout_storage_disk_free_bytes").context("the page")?;
        ensure!(free < told("rollout_storage_disk_reserve_bytes").context("the page")?, "{free}");
    }
    // Every member's disk is full, including the leader's.
    let refused = eventually("a write that grows is refused", PATIENCE, || {
        let asked = async {
            let mut runs = runs_at_leader(&fleet).await.ok()?;
            runs.create_run(create_run(request(3), "full")).await.err()
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(asked))
            .filter(is_full)
    });
    ensure!(refused.message().contains("MiB left"), "{refused}");
    let listed = fleet.ctl_json(&["run", "list"])?.to_string();
    ensure!(listed.contains("before") && !listed.contains("\"full\""), "{listed}");
    for args in [&["run", "cancel", "before", "--yes"][..], &["run", "delete", "before", "--yes"]] {
        let out = fleet.ctl(args)?;
        ensure!(out.status.success(), "{args:?}: {out:?}");
    }

    set_all(WELL);
    eventually("the same request is taken", PATIENCE, || {
        let asked = async {
            let mut runs = runs_at_leader(&fleet).await.ok()?;
            runs.create_run(create_run(request(3), "full")).await.ok()
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(asked))
            .filter(|answer| answer.get_ref().created)
    });
    eventually("no alarm is left", PATIENCE, || alarms(&fleet)?.is_empty().then_some(()));
    for (name, disk) in &disks {
        ensure!(fleet.member_process(name).runs(), "{name} went: {}", fleet.logs());
        ensure!(disk.fault() == WELL);
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_leader_whose_disk_is_full_hands_over_to_the_voter_that_has_room() -> Result<()> {
    let (mut fleet, disks) = fleet()?;
    let old = fleet.leader();
    // Of two members with equally long logs the last is asked first to lead, unless the disks are compared.
    let roomy = fleet.member_names().into_iter().find(|name| *name != old).context("another")?;
    for (name, disk) in &disks {
        disk.set(if *name == roomy { WELL } else { NONE });
    }
    eventually("the member with room leads", PATIENCE, || (fleet.leader() == roomy).then_some(()));
    // Operations that grow are accepted again, although two of three disks are full.
    let mut batch = Batch::submit(&fleet, "elsewhere", 10, "")?;
    disks.values().for_each(|disk| disk.set(WELL));
    fleet.start_worker(
        "w1",
        &WorkerOptions { engine: "kind = \"mock\"\n".into(), ..Default::default() },
    )?;
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn workers_finish_on_a_full_disk_what_they_have_and_get_no_more_until_there_is_room() -> Result<()>
{
    let (mut fleet, disks) = fleet()?;
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 40\n";
    fleet.start_worker("w1", &WorkerOptions { engine: engine.into(), ..Default::default() })?;
    let mut batch = Batch::submit(&fleet, "filling", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    disks.values().for_each(|disk| disk.set(NONE));
    until_alarm(&fleet, "DISK_FULL c1");
    batch.until(&fleet, "nothing runs any more", |c| c.running == 0);
    let stopped = batch.counts(&fleet).context("counts")?;
    ensure!(stopped.done >= 100 && stopped.done < 3000, "{stopped:?}");
    ensure!(stopped.failed == 0 && stopped.done + stopped.pending == 3000, "{stopped:?}");
    disks.values().for_each(|disk| disk.set(WELL));
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// Checks that a member whose writes find no room exits, whether it is the leader or a follower, and comes back.
fn ends_and_comes_back(of_leader: bool) -> Result<()> {
    let (mut fleet, disks) = fleet()?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "through", 6000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    let leader = fleet.leader();
    let other = || fleet.member_names().into_iter().find(|name| *name != leader);
    let victim = if of_leader { leader.clone() } else { other().context("a follower")? };
    // The disk reports room, but writes fail.
    disks[&victim].set(DiskFault::Full);
    let status = fleet.member_process(&victim).wait(PATIENCE)?;
    ensure!(status.code() == Some(74), "{status}{}", fleet.logs());
    ensure!(disks[&victim].met() > 0, "the disk had no trouble");
    let log = std::fs::read_to_string(&fleet.member_process(&victim).log)?;
    ensure!(log.contains("the disk is full") && log.contains("No space left"), "{log}");
    until_alarm(&fleet, &format!("MEMBER_UNREACHABLE {victim}"));

    // Without room it exits again, and does no harm.
    fleet.start_member(&victim)?;
    let status = fleet.member_process(&victim).wait(PATIENCE)?;
    ensure!(status.code() == Some(74), "{status}{}", fleet.logs());

    disks[&victim].set(WELL);
    fleet.start_member(&victim)?;
    batch.finish(&fleet)?;
    eventually("it is a member again", PATIENCE, || {
        alarms(&fleet).filter(|a| a.iter().all(|a| !a.starts_with("MEMBER_UNREACHABLE")))
    });
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_follower_whose_log_finds_no_room_ends_with_status_74_and_continues_with_room() -> Result<()> {
    ends_and_comes_back(false)
}

#[test]
fn a_leader_whose_log_finds_no_room_ends_with_status_74_and_nothing_is_lost() -> Result<()> {
    ends_and_comes_back(true)
}

#[test]
fn a_snapshot_whose_image_finds_no_room_ends_the_leader_with_status_74() -> Result<()> {
    // Only a request for a snapshot, or a member's end, writes the image.
    let member_lines = vec![("raft", "image_interval_ms = 3600000")];
    let (mut fleet, disks) = fleet_of(FleetOptions {
        member_lines,
        disks: Some(|data_dir: PathBuf| data_dir.join("image")),
        ..FleetOptions::default()
    })?;
    // So that each member has an image.
    for name in fleet.member_names() {
        fleet.member_process(&name).terminate(PATIENCE)?;
        fleet.start_member(&name)?;
        // Wait until it is back before restarting the next one: two absent members of three would be one too many.
        eventually("it is back", PATIENCE, || alarms(&fleet)?.is_empty().then_some(()));
        fleet.leader();
    }
    let victim = fleet.leader();
    disks[&victim].set(DiskFault::Full);
    let file = fleet.path("full.snap");
    let save = fleet.ctl(&["--timeout", "5s", "snapshot", "save", &file.to_string_lossy()])?;
    let status = fleet.member_process(&victim).wait(PATIENCE)?;
    ensure!(status.code() == Some(74), "{status}: {save:?}{}", fleet.logs());
    let log = std::fs::read_to_string(&fleet.member_process(&victim).log)?;
    ensure!(log.contains("the image of the ledger cannot be written"), "{log}");

    // The changes drained from its ledger come back from its log.
    disks[&victim].set(WELL);
    fleet.start_member(&victim)?;
    eventually("it is a member again", PATIENCE, || alarms(&fleet).filter(Vec::is_empty));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_leader_whose_disk_stalls_for_a_while_hands_over_and_survives() -> Result<()> {
    let (mut fleet, disks) = fleet()?;
    // About twenty seconds of load, so that fsyncs continue.
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 40\n";
    fleet.start_worker("w1", &WorkerOptions { engine: engine.into(), ..Default::default() })?;
    let mut batch = Batch::submit(&fleet, "slow", 6000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    let slow = fleet.leader();
    disks[&slow].set(DiskFault::SlowSync(2500));
    let next = fleet.leader_other_than(&slow);
    ensure!(disks[&slow].met() > 0, "the disk was never slow");
    ensure!(fleet.member_process(&slow).runs(), "{slow} went: {}", fleet.logs());
    let done = batch.counts(&fleet).context("counts")?.done;
    batch.until(&fleet, "it goes on", |c| c.done > done);
    disks[&slow].set(WELL);
    ensure!(fleet.member_process(&slow).runs(), "{slow} went: {}", fleet.logs());
    // What is left of the load need not take long any more.
    fleet.start_worker("fast", &WorkerOptions::default())?;
    batch.finish(&fleet)?;
    ensure!(fleet.member_process(&next).runs(), "{next} went: {}", fleet.logs());
    fleet.verify()?;
    fleet.passed()
}
