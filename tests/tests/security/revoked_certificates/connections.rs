//! Connections of a worker, a follower and a leader end soon after their certificates are revoked.
//!
//! The proxies between the processes see which side closes a connection. What a revoked process does on its own does
//! not count: it does not know of the revocation, and its connections are healthy.

use crate::revoked_certificates::{CLOSED_WITHIN, PATIENCE, ctl, engine, hears_a_leader};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Connection, Fleet, FleetOptions, OneWay, eventually};
use std::time::{Duration, Instant};

/// Slack on top of the promise: on two cores, three members, two workers, the proxies and this test share the CPU,
/// and each step from the commit to the closed socket may have to wait.
const BUSY: Duration = Duration::from_secs(1);
/// Interval between checks.
const POLL: Duration = Duration::from_millis(20);

/// The connections between one process and these members. A worker may leave a handshake unfinished once another member
/// has answered it; the member does not know whose connection that is.
fn of(fleet: &Fleet, name: &str, members: &[String]) -> Vec<Connection> {
    let connections = members.iter().flat_map(|member| fleet.connections(name, member));
    connections.filter(Connection::has_identity).collect()
}

/// Revokes certificates, and checks that the connections end within this time from the end of the command, which ends
/// after the commit.
fn revoke(
    fleet: &Fleet,
    identity: &str,
    options: &[&str],
    connections: &[Connection],
) -> Result<()> {
    ensure!(!connections.is_empty(), "{identity} has no connections");
    ctl(fleet, &[&["cert", "revoke", identity][..], options].concat())?;
    let since = Instant::now();
    loop {
        let left = connections.iter().filter(|connection| !connection.has_ended()).count();
        if left == 0 {
            return Ok(());
        }
        let (took, all) = (since.elapsed(), connections.len());
        ensure!(
            took <= CLOSED_WITHIN + BUSY,
            "{identity}: {left} of {all} are open after {took:?}"
        );
        std::thread::sleep(POLL); // The poll; the condition decides.
    }
}

/// Checks that some connections continue; the end of all connections would prove nothing.
fn some_go_on(what: &str, connections: &[Connection]) -> Result<()> {
    let goes_on = connections.iter().any(|connection| !connection.has_ended());
    ensure!(goes_on, "{what}: all {} connections have ended", connections.len());
    Ok(())
}

/// Revokes a member's certificates, checks its connections, and accepts it again.
fn revoke_member(fleet: &Fleet, member: &str) -> Result<()> {
    let names = fleet.member_names();
    let others: Vec<String> = names.into_iter().filter(|name| name != member).collect();
    let identity = format!("member/{member}");
    let leader = fleet.leader();
    let (its, leaders) = (of(fleet, member, &others), of(fleet, &leader, &others));
    revoke(fleet, &identity, &["--issued-before", "now", "--force"], &its)?;
    if leader != member {
        some_go_on("the leader and the other follower", &leaders)?;
    }
    let leads = fleet.leader_other_than(member);
    ensure!(others.contains(&leads), "{leads} leads, whose certificates are revoked");
    ctl(fleet, &["cert", "unrevoke", &identity])?;
    eventually("it follows again", PATIENCE, || hears_a_leader(fleet, member)?.then_some(()));
    Ok(())
}

/// Revokes the certificates of a worker, a follower and a leader in turn.
fn revoke_each_kind(options: FleetOptions) -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..options })?;
    fleet.start_worker("w1", &engine())?;
    fleet.start_worker("w2", &engine())?;
    eventually("both workers are ready", PATIENCE, || {
        let list = fleet.ctl_json(&["worker", "list"]).ok()?;
        let workers = list["workers"].as_array()?;
        (workers.iter().filter(|w| w["state"] == "ready").count() == 2).then_some(())
    });
    let members = fleet.member_names();
    let (w1, w2) = (of(&fleet, "w1", &members), of(&fleet, "w2", &members));
    revoke(&fleet, "worker/w1", &[], &w1)?;
    some_go_on("the other worker", &w2)?;

    let leader = fleet.leader();
    let follower = members.iter().find(|name| **name != leader).context("a follower")?;
    revoke_member(&fleet, follower)?;
    revoke_member(&fleet, &fleet.leader())?;
    fleet.passed()
}

#[test]
fn connections_of_a_revoked_worker_follower_and_leader_end_within_five_seconds() -> Result<()> {
    revoke_each_kind(FleetOptions::default())
}

#[test]
fn connections_end_within_five_seconds_with_members_200_ms_apart() -> Result<()> {
    revoke_each_kind(FleetOptions {
        distance: Some(OneWay::of_rtt(Duration::from_millis(200))),
        member_lines: vec![("raft", "profile = \"far-zones\"")],
        ..FleetOptions::default()
    })
}
