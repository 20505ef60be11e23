//! A cluster is backed up while it works, lost, and restored: nothing that the snapshot holds runs twice, nothing is
//! missing, and no process of the old cluster is accepted by the new one.

use anyhow::{Context, Result, ensure};
use rollout_proto::{
    CLUSTER_HEADER, ChannelOptions, ClientTls, DialMap, EPOCH_HEADER, Endpoint, ErrorCode,
    RpcError, channel, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tonic::Request;

const PATIENCE: Duration = Duration::from_secs(90);
const NEW: [&str; 3] = ["d1", "d2", "d3"];

fn slow() -> WorkerOptions {
    let engine =
        "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = 20\nlatency_ms_max = 60\n";
    WorkerOptions { engine: engine.into(), ..WorkerOptions::default() }
}

fn printed(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr].concat()).into_owned()
}

fn save(fleet: &Fleet, name: &str) -> Result<PathBuf> {
    let file = fleet.path(name);
    let saved = fleet.ctl_json(&["snapshot", "save", &file.to_string_lossy()])?;
    ensure!(saved["salvaged"] == false && saved["file"] == *file.to_string_lossy(), "{saved}");
    Ok(file)
}

fn cluster_id(fleet: &Fleet) -> Result<String> {
    let status = fleet.ctl_json(&["status"])?;
    Ok(status["clusterId"].as_str().context("a cluster id")?.to_owned())
}

/// Ends the user's command, and submits the same batch to the present cluster.
fn resume(fleet: &Fleet, mut old: Batch) -> Result<Batch> {
    old.process().kill();
    let (input, output) = (old.input.clone(), old.output.clone());
    if output.exists() {
        std::fs::remove_dir_all(&output)?;
    }
    Batch::submit_file(fleet, &old.name, input, old.rows, "")
}

/// A worker of the old cluster gets an error that explains the restore and exits; when it starts again, it is a new
/// worker.
fn come_again(fleet: &mut Fleet, name: &str, old: &str) -> Result<()> {
    fleet.start_worker(name, &slow())?;
    let left = fleet.worker_process(name).wait(PATIENCE)?;
    let log = std::fs::read_to_string(&fleet.worker_process(name).log)?;
    ensure!(left.code() == Some(75), "{left}: {log}");
    ensure!(log.contains("RO-1014") && log.contains(old), "{log}");
    fleet.start_worker(name, &slow())?;
    eventually("the worker is registered anew", PATIENCE, || fleet.rows_done_by(name));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_saved_while_it_ran_ends_in_a_restored_cluster_with_every_row_once()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow())?;
    fleet.start_worker("w2", &slow())?;
    let batch = Batch::submit(&fleet, "saved", 4000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 400 && c.running > 0);
    let file = save(&fleet, "one.snap")?;
    let saved = batch.counts(&fleet).context("the run is there")?.done;
    let later = batch.until(&fleet, "more rows end after the snapshot", |c| c.done > saved);
    let (old, epoch) = (cluster_id(&fleet)?, epoch(&fleet).await?);

    // The whole cluster is lost, with workers in the middle of their rows.
    for name in fleet.member_names() {
        fleet.kill_member(&name);
    }
    for name in ["w1", "w2"] {
        fleet.worker_process(name).kill();
    }
    let new = fleet.restore(&file, &NEW, "the first")?;
    ensure!(new != old, "epochs of the two must never be compared");
    fleet.leader();
    ensure!(cluster_id(&fleet)? == new);
    let counts = batch.counts(&fleet).context("the run is there")?;
    ensure!(counts.running == 0, "no worker holds rows: {counts:?}");
    ensure!(counts.done >= 400 && counts.done < later.done, "as of the snapshot: {counts:?}");
    ensure!(counts.done + counts.failed + counts.pending == counts.rows, "{counts:?}");

    refuses_the_old_cluster(&fleet, &old, epoch).await?;
    come_again(&mut fleet, "w1", &old)?;
    come_again(&mut fleet, "w2", &old)?;
    let mut batch = resume(&fleet, batch)?;
    batch.finish(&fleet)?;
    let counts = batch.counts(&fleet).context("the run is there")?;
    ensure!((counts.done, counts.failed) == (4000, 0), "{counts:?}");
    fleet.verify()?;

    // The restored cluster works like any other: a member restarts, and another backup is made.
    let leader = fleet.leader();
    fleet.kill_member(&leader);
    fleet.start_member(&leader)?;
    fleet.leader();
    save(&fleet, "two.snap")?;
    fleet.passed()
}

/// The epoch that the leader has opened.
async fn epoch(fleet: &Fleet) -> Result<u64> {
    let mut cluster = v1::cluster_client::ClusterClient::new(dial(fleet, "client", "user")?);
    let status = cluster.status(v1::StatusRequest::default()).await?.into_inner();
    Ok(status.header.context("a header")?.coord_epoch)
}

fn dial(fleet: &Fleet, role: &str, name: &str) -> Result<tonic::transport::Channel> {
    let leader = fleet.leader();
    let tls = ClientTls::load(&fleet.security(role, name))?;
    let endpoint = Endpoint::with_name(&leader, fleet.client_addr(&leader))?;
    Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
}

/// A client of the old cluster can change nothing and gets the reason, whatever epoch it claims.
async fn refuses_the_old_cluster(fleet: &Fleet, old: &str, epoch: u64) -> Result<()> {
    for claimed in [1, epoch, epoch + 100] {
        let mut runs = v1::runs_client::RunsClient::new(dial(fleet, "client", "user")?);
        let mut request = Request::new(v1::OpenSessionRequest { client_name: "ghost".into() });
        request.metadata_mut().insert(EPOCH_HEADER, claimed.into());
        request.metadata_mut().insert(CLUSTER_HEADER, old.parse()?);
        let refused = runs.open_session(request).await.expect_err("the old cluster is no more");
        let error = RpcError::from_status(&refused);
        ensure!(error.code == ErrorCode::ClusterRestored, "{error}");
        ensure!(error.message.contains(old) && error.message.contains("restored"), "{error}");
        let mut worker = v1::worker_client::WorkerClient::new(dial(fleet, "worker", "w1")?);
        let mut request = Request::new(v1::ProbeRequest {});
        request.metadata_mut().insert(EPOCH_HEADER, claimed.into());
        request.metadata_mut().insert(CLUSTER_HEADER, old.parse()?);
        let refused = worker.probe(request).await.expect_err("its sessions are void");
        ensure!(RpcError::from_status(&refused).code == ErrorCode::ClusterRestored, "{refused}");
    }
    Ok(())
}

#[test]
fn a_damaged_snapshot_and_a_directory_with_data_are_refused_and_nothing_is_touched() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut batch = Batch::submit(&fleet, "small", 50, "")?;
    batch.until(&fleet, "the rows are there", |c| c.rows == 50);
    batch.process().kill();
    let file = save(&fleet, "good.snap")?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let again = fleet.ctl(&["snapshot", "save", &path(&file)])?;
    ensure!(again.status.code() == Some(5), "a file is not replaced unasked: {}", printed(&again));
    let good = fleet.ctl(&["snapshot", "verify", &path(&file)])?;
    ensure!(good.status.success() && printed(&good).contains(": complete"), "{}", printed(&good));

    let bytes = std::fs::read(&file)?;
    let mut cases = Vec::new();
    for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        cases.push((format!("bit at {at}"), flipped));
    }
    cases.push(("cut".into(), bytes[..bytes.len() - 7].to_vec()));
    cases.push(("longer".into(), [&bytes[..], b"x"].concat()));
    cases.push(("other".into(), b"a file of something else".to_vec()));
    let bad = fleet.path("bad.snap");
    for (what, bytes) in cases {
        std::fs::write(&bad, bytes)?;
        let refused = fleet.ctl(&["snapshot", "verify", &path(&bad)])?;
        ensure!(refused.status.code() == Some(1), "{what}: {}", printed(&refused));
        ensure!(printed(&refused).contains("RO-5004"), "{what}: {}", printed(&refused));
        let dir = fleet.path("never");
        let (dir_text, bad_text) = (path(&dir), path(&bad));
        let args = ["snapshot", "restore", &bad_text, "--data-dir", &dir_text, "--member", "c1"];
        let refused = fleet.ctl(&[&args[..], &["--token", "x"]].concat())?;
        ensure!(refused.status.code() == Some(1), "{what}: {}", printed(&refused));
        ensure!(printed(&refused).contains("RO-5004"), "{what}: {}", printed(&refused));
        ensure!(!dir.exists(), "{what}: something was restored");
    }
    let both = fleet.ctl(&["snapshot", "verify", &path(&bad), &path(&file)])?;
    ensure!(both.status.code() == Some(1), "{}", printed(&both));
    ensure!(printed(&both).contains(": complete"), "the file after it: {}", printed(&both));

    let dir = fleet.path("used");
    std::fs::create_dir(&dir)?;
    std::fs::write(dir.join("notes.txt"), "mine")?;
    let (dir_text, file_text) = (path(&dir), path(&file));
    let args = ["snapshot", "restore", &file_text, "--data-dir", &dir_text, "--member", "c1"];
    let args = [&args[..], &["--token", "x"]].concat();
    let refused = fleet.ctl(&args)?;
    ensure!(refused.status.code() == Some(6), "{}", printed(&refused));
    ensure!(printed(&refused).contains("RO-5005") && printed(&refused).contains("notes.txt"));
    ensure!(std::fs::read_dir(&dir)?.count() == 1, "nothing was added");
    std::fs::remove_file(dir.join("notes.txt"))?;
    let first = fleet.ctl_json(&args)?;
    ensure!(fleet.ctl(&args)?.status.code() == Some(6), "what was restored has data");
    // Another restoration of the same file to the same members is another cluster.
    std::fs::remove_dir_all(&dir)?;
    let other = [&args[..args.len() - 1], &["y"]].concat();
    let second = fleet.ctl_json(&other)?;
    ensure!(first["clusterId"] != second["clusterId"], "{first} {second}");
    ensure!(first["fromCluster"] == second["fromCluster"], "{first} {second}");
    fleet.passed()
}

#[test]
fn the_loss_of_two_of_three_members_is_survived_with_full_confirmation() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow())?;
    let batch = Batch::submit(&fleet, "salvaged", 2000, "")?;
    batch.until(&fleet, "rows run", |c| c.done >= 300);
    let old = cluster_id(&fleet)?;
    let leader = fleet.leader();
    let left = fleet.member_names().into_iter().find(|name| *name != leader);
    let left = left.context("a follower")?;
    for name in fleet.member_names() {
        fleet.kill_member(&name);
        if name != left {
            fleet.member_loses_its_disk(&name)?;
        }
    }
    fleet.worker_process("w1").kill();

    let file = fleet.path("last.snap");
    let (file_text, dir) =
        (file.display().to_string(), fleet.data_dir(&left).display().to_string());
    let args = ["snapshot", "save", &file_text, "--from-dir", &dir];
    for unconfirmed in [&args[..], &[&args[..], &["--confirm", "somebody"]].concat()] {
        let refused = fleet.ctl(unconfirmed)?;
        let text = printed(&refused);
        ensure!(refused.status.code() == Some(6), "{text}");
        ensure!(text.contains("RO-1015") && text.contains("what may be lost"), "{text}");
        ensure!(text.contains(&format!("--confirm {left}")) && !file.exists(), "{text}");
    }
    let saved = fleet.ctl_json(&[&args[..], &["--confirm", &left]].concat())?;
    ensure!(saved["salvaged"] == true && saved["member"] == left.as_str(), "{saved}");
    let verified = fleet.ctl(&["snapshot", "verify", &file_text])?;
    ensure!(verified.status.success() && printed(&verified).contains("may be missing"));

    let new = fleet.restore(&file, &NEW, "after the fire")?;
    ensure!(new != old);
    fleet.leader();
    come_again(&mut fleet, "w1", &old)?;
    let mut batch = resume(&fleet, batch)?;
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
