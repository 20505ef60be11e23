//! Revoked certificates: every member refuses them and closes their connections, whichever member leads and whatever
//! restarts.

mod administrators;
mod connections;
mod out_of_contact;

use anyhow::{Context, Result, bail, ensure};
use out_of_contact::is_known_as_revoked;
use rollout_proto::enrollment::{self, JoinToken};
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{
    ChannelOptions, Client, ClientConfig, ClientTls, DialMap, Endpoint, ErrorCode, Role, Security,
    TlsFiles, channel, services, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(90);
/// From the commit of a revocation to the end of the last connection, as docs/operating/certificates.md promises.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

fn issue(fleet: &Fleet, role: Role, name: &str) -> Result<TlsFiles> {
    let request = IssueRequest {
        role,
        name: name.into(),
        namespaces: Vec::new(),
        dns_names: Vec::new(),
        ip_addrs: Vec::new(),
        days: 2,
    };
    Ok(pki::issue(&fleet.path("ca"), &request, &fleet.path("others"))?)
}

/// The output of `rolloutctl` with these files, asking one member.
fn asks(fleet: &Fleet, files: &TlsFiles, member: &str, args: &[&str]) -> Result<Output> {
    let mut command = fleet.program("rolloutctl");
    command.args(["-e", fleet.client_addr(member), "--timeout", "10s"]);
    command.arg("--ca-cert").arg(&files.ca);
    command.arg("--cert").arg(&files.cert).arg("--key").arg(&files.key).args(args);
    rollout_tests::output(command, PATIENCE)
}

fn is_refused(out: &Output) -> Result<()> {
    let stderr = String::from_utf8_lossy(&out.stderr).to_lowercase();
    ensure!(
        out.status.code() == Some(7) && stderr.contains("revoked"),
        "{:?}: {stderr}",
        out.status
    );
    Ok(())
}

/// Checks each member separately, because a command ends at the first member that refuses the certificate.
fn every_member_refuses(fleet: &Fleet, files: &TlsFiles) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tls = ClientTls::load(&Security::Mtls(files.clone()))?;
    for member in fleet.member_names() {
        let endpoint = Endpoint::with_name(&member, fleet.client_addr(&member))?;
        let refuses = runtime.block_on(async {
            let channel =
                channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
            anyhow::Ok(is_known_as_revoked(&channel).await)
        })?;
        ensure!(refuses, "{member} does not refuse the certificate as revoked");
        is_refused(&asks(fleet, files, &member, &["status"])?).context(member)?;
    }
    Ok(())
}

/// Runs the operator's command, which must succeed.
fn ctl(fleet: &Fleet, args: &[&str]) -> Result<()> {
    let out = fleet.ctl(args)?;
    ensure!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

fn ctl_fails(fleet: &Fleet, args: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let out = fleet.ctl(args)?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.code() == Some(code), "{args:?}: {:?}: {stderr}", out.status);
    for word in words {
        ensure!(stderr.contains(word), "{args:?} does not say {word:?}: {stderr}");
    }
    Ok(())
}

/// A stream of events from each member, read until it ends.
fn follow_events(
    fleet: &Fleet,
    runtime: &Runtime,
    files: &TlsFiles,
) -> Result<Vec<JoinHandle<()>>> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let client = Client::new(ClientConfig::new(endpoints, Security::Mtls(files.clone())))?;
    let follow = v1::WatchEventsRequest {
        start: v1::EventStart::Now.into(),
        follow: true,
        ..Default::default()
    };
    let streams = runtime.block_on(client.each_member(|_, channel| {
        let follow = follow.clone();
        async move { services::events(channel).watch_events(follow).await }
    }));
    ensure!(streams.len() == 3, "streams of three members: {}", streams.len());
    let mut reads = Vec::new();
    for (member, stream) in streams {
        let mut stream = stream.with_context(|| member.name.clone())?;
        reads.push(runtime.spawn(async move { while let Ok(Some(_)) = stream.message().await {} }));
    }
    Ok(reads)
}

fn have_ended(streams: &[JoinHandle<()>], what: &str) -> Result<()> {
    let since = Instant::now();
    while !streams.iter().all(JoinHandle::is_finished) {
        if since.elapsed() > CLOSED_WITHIN {
            bail!("{what}: a stream is still open {:?} after the revocation", since.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Whether a member reports that it hears a leader.
fn hears_a_leader(fleet: &Fleet, member: &str) -> Option<bool> {
    let status = fleet.ctl_json(&["status"]).ok()?;
    let line = status["members"].as_array()?.iter().find(|line| line["name"] == member)?;
    line["says"]["hasQuorum"].as_bool()
}

fn engine() -> WorkerOptions {
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 40\nlatency_ms_max = 40\n";
    WorkerOptions { engine: engine.into(), ..WorkerOptions::default() }
}

#[test]
fn streams_of_a_revoked_identity_end_and_it_stays_out_through_failover_and_restart() -> Result<()> {
    // What the revoked worker runs goes to the other one after this time, not after a minute.
    let member_lines = vec![("worker", "started_grace_ms = 1000")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    fleet.start_worker("w1", &engine())?;
    fleet.start_worker("w2", &engine())?;
    let mut batch = Batch::submit(&fleet, "kept", 4000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 50);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (mallory, ann) =
        (issue(&fleet, Role::Client, "mallory")?, issue(&fleet, Role::Viewer, "ann")?);
    let mallorys = follow_events(&fleet, &runtime, &mallory)?;
    let anns = follow_events(&fleet, &runtime, &ann)?;

    ctl(&fleet, &["cert", "revoke", "client/mallory", "--reason", "the laptop was stolen"])?;
    have_ended(&mallorys, "client/mallory")?;
    ensure!(anns.iter().all(|stream| !stream.is_finished()), "a stream of another client ended");
    every_member_refuses(&fleet, &mallory)?;

    // The same for a worker: another one does its rows.
    ctl(&fleet, &["cert", "revoke", "worker/w1"])?;
    eventually("the revoked worker is gone", PATIENCE, || {
        let workers = fleet.ctl_json(&["worker", "list"]).ok()?;
        let ready = |w: &&serde_json::Value| w["name"] == "w1" && w["state"] == "ready";
        workers["workers"].as_array()?.iter().find(ready).is_none().then_some(())
    });

    let leader = fleet.leader();
    ctl(&fleet, &["leader", "transfer"])?;
    fleet.leader_other_than(&leader);
    fleet.member_process(&leader).kill();
    fleet.start_member(&leader)?;
    eventually("it is back", PATIENCE, || {
        let status = fleet.ctl_json(&["status"]).ok()?;
        (status["health"] == "healthy").then_some(())
    });
    every_member_refuses(&fleet, &mallory)?;
    let list = fleet.ctl_json(&["cert", "revocations"])?;
    let listed = list["revocations"].as_array().into_iter().flatten();
    let reasons: Vec<&Value> = listed
        .filter(|one| one["identity"] == "client/mallory")
        .map(|one| &one["reason"])
        .collect();
    ensure!(reasons == ["the laptop was stolen"], "{list}");
    batch.finish(&fleet)?;

    ctl(&fleet, &["cert", "unrevoke", "client/mallory"])?;
    for member in fleet.member_names() {
        eventually("it is let in again", PATIENCE, || {
            asks(&fleet, &mallory, &member, &["status"]).ok()?.status.success().then_some(())
        });
    }
    ctl_fails(&fleet, &["cert", "unrevoke", "client/mallory"], 4, &["RO-3015"])?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_revocation_of_its_sender_or_of_a_member_needs_force_and_a_new_certificate_is_accepted()
-> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let unsafe_ones: [(&[&str], &str); 3] = [
        (&["cert", "revoke", "admin/operator"], "your own certificate"),
        (&["cert", "revoke", "member/c2", "--issued-before", "now"], "member/c2"),
        (&["cert", "revoke", "--issued-before", "now"], "member/c1"),
    ];
    for (args, named) in unsafe_ones {
        ctl_fails(&fleet, args, 6, &["RO-3014", named, "--force"])?;
    }
    let list = fleet.ctl_json(&["cert", "revocations"])?;
    ensure!(list["revocations"].as_array().is_some_and(Vec::is_empty), "{list}");
    ctl_fails(&fleet, &["cert", "revoke", "root/operator"], 1, &["ROLE/NAME"])?;

    // A member whose certificate is revoked follows no leader, and comes back when it is accepted again.
    let leader = fleet.leader();
    let follower = fleet.member_names().into_iter().find(|m| *m != leader).context("one")?;
    let follower_id = format!("member/{follower}");
    // Revoking all of its certificates would be permanent.
    let all = ["cert", "revoke", &follower_id, "--force"];
    ctl_fails(&fleet, &all, 6, &["RO-3014", "--issued-before"])?;
    ctl(&fleet, &["cert", "revoke", &follower_id, "--issued-before", "now", "--force"])?;
    eventually("it hears no leader", PATIENCE, || {
        (!hears_a_leader(&fleet, &follower)?).then_some(())
    });
    ctl(&fleet, &["cert", "unrevoke", &follower_id])?;
    eventually("it follows again", PATIENCE, || hears_a_leader(&fleet, &follower)?.then_some(()));

    // The last administrator locks itself out: the authority's key issues another one, which withdraws the
    // revocation.
    ctl(&fleet, &["cert", "revoke", "admin/operator", "--force"])?;
    eventually("it is shut out", PATIENCE, || {
        (fleet.ctl(&["cert", "revocations"]).ok()?.status.code() == Some(7)).then_some(())
    });
    let rescue = issue(&fleet, Role::Admin, "rescue")?;
    let leader = eventually("there is a leader", PATIENCE, || {
        let names = fleet.member_names();
        names.into_iter().find(|member| {
            let out = asks(&fleet, &rescue, member, &["cert", "unrevoke", "admin/operator"]);
            out.is_ok_and(|out| out.status.success())
        })
    });
    ensure!(!leader.is_empty());
    eventually("it is let in again", PATIENCE, || {
        fleet.ctl(&["cert", "revocations"]).ok()?.status.success().then_some(())
    });
    fleet.passed()
}

#[test]
fn a_revoked_certificate_is_not_renewed_and_one_issued_later_is_accepted_at_once() -> Result<()> {
    let options = FleetOptions { enrollment_lifetime_s: Some(3600), ..FleetOptions::default() };
    let fleet = Fleet::start(options)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let enrollment_addrs: Vec<String> =
        fleet.member_names().iter().map(|name| fleet.enrollment_addr(name).to_owned()).collect();
    let text = fleet.token("rack", &["--role", "client", "--holder", "ann", "--uses", "4"])?;
    let token: JoinToken = text.parse()?;
    let enroll = |dir: &str| {
        let files = enrollment::files_in(&fleet.path(dir), "ann");
        let answer = runtime.block_on(enrollment::enroll(
            &token,
            "ann",
            &enrollment_addrs,
            &files,
            PATIENCE,
        ));
        (files, answer)
    };
    let (first, answer) = enroll("first");
    answer?;
    let leader = fleet.leader();
    let let_in = asks(&fleet, &first, &leader, &["run", "list"])?;
    ensure!(let_in.status.success(), "{let_in:?}");

    // After a key was copied: neither the thief nor the owner can renew the certificate.
    ctl(&fleet, &["cert", "revoke", "client/ann"])?;
    eventually("it is shut out", PATIENCE, || {
        is_refused(&asks(&fleet, &first, &leader, &["run", "list"]).ok()?).ok()
    });
    is_refused(&asks(&fleet, &first, &leader, &["cert", "renew"])?)?;
    let refused = enroll("second").1.err().context("it got a certificate")?;
    ensure!(refused.code() == Some(ErrorCode::CertificateRevoked), "{refused}");

    // The earlier certificates stay refused, and the owner gets another one.
    ctl(&fleet, &["cert", "unrevoke", "client/ann"])?;
    ctl(&fleet, &["cert", "revoke", "client/ann", "--issued-before", "now"])?;
    let third = eventually("it gets another one", PATIENCE, || {
        let (files, answer) = enroll("third");
        answer.is_ok().then_some(files)
    });
    eventually("the new one is accepted", PATIENCE, || {
        let out = asks(&fleet, &third, &leader, &["run", "list"]).ok()?;
        out.status.success().then_some(())
    });
    // A member applies the list a moment after the revocation.
    eventually("the first one is shut out again", PATIENCE, || {
        is_refused(&asks(&fleet, &first, &leader, &["run", "list"]).ok()?).ok()
    });
    fleet.passed()
}
