//! Members are added, removed and replaced while a batch runs: nothing is lost, and no client waits for longer than
//! an election.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, Writers, eventually};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Number of clients that write while members come and go.
const WRITERS: usize = 2;
/// The longest time without a leader's heartbeat before a follower asks for votes, in the fleet's profile.
const ELECTION: Duration = Duration::from_millis(250);
/// Sequential fsyncs between that and the first write of the next leader: votes, its own first entries, its epoch.
const FSYNCS: u32 = 4;
/// How many election lengths a pause may last: in an unoptimized build, five members share two cores. `make test-ops`
/// uses an optimized build.
const SLACK: u32 = if cfg!(debug_assertions) { 8 } else { 2 };
/// After how long a client asks again for another leader, while the one that it called is silent.
const ASKED_AGAIN: Duration = Duration::from_millis(50);

fn fleet() -> Result<Fleet> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine =
        "kind = \"mock\"\nslots = 2\nconcurrency = 8\nlatency_ms_min = 20\nlatency_ms_max = 20\n"
            .to_owned();
    for name in ["w1", "w2"] {
        let head = String::new();
        fleet.start_worker(name, &WorkerOptions { engine: engine.clone(), head })?;
    }
    Ok(fleet)
}

fn done(out: &Output) -> Result<()> {
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// The members by name, with their roles.
fn members(fleet: &Fleet) -> Option<Vec<(String, String, u64)>> {
    let list = fleet.ctl_json(&["--timeout", "5s", "member", "list"]).ok()?;
    let one = |member: &Value| {
        let text = |key: &str| Some(member[key].as_str()?.to_owned());
        Some((text("name")?, text("role")?, text("id")?.parse().ok()?))
    };
    list["members"].as_array()?.iter().map(one).collect()
}

fn voters_are(fleet: &Fleet, names: &[&str]) {
    eventually("the voters are those", PATIENCE, || {
        let members = members(fleet)?;
        let voters: Vec<&str> =
            members.iter().filter(|m| m.1 != "learner").map(|m| m.0.as_str()).collect();
        (voters == names && voters.len() == members.len()).then_some(())
    });
}

/// Checks that no writer waited much longer than one election plus its client's time to find the next leader,
/// whatever the step. The client waits a sixteenth of an outage before it looks for a leader, and again between two
/// attempts.
fn within_one_election(writers: Writers, fleet: &Fleet) -> Result<()> {
    let written = writers.stop(fleet)?;
    let fsync = written.fsync_p99.iter().max().copied().unwrap_or_default();
    let outage = SLACK * (ELECTION + FSYNCS * fsync);
    let most = outage + outage / 8 + ASKED_AGAIN;
    println!("{} writes; fsync p99 {fsync:?}; a pause may have {most:?}", written.writes);
    for (what, pause) in &written.pauses {
        println!("{what}: longest pause {pause:?}");
    }
    for (what, pause) in &written.pauses {
        ensure!(*pause <= most, "{what}: a writer waited for {pause:?}{}", fleet.logs());
    }
    Ok(())
}

/// Two voters of three are needed: a member that waits with an empty disk gives no vote to the only one left.
fn no_member_leads_while_one_waits_and_another_is_dead(
    fleet: &mut Fleet,
    waits: &str,
    dies: &str,
) -> Result<()> {
    fleet.member_process(dies).kill();
    let status = |fleet: &Fleet| fleet.ctl_json(&["--timeout", "2s", "status"]);
    eventually("the last voter knows that it leads nobody", PATIENCE, || {
        status(fleet).ok().filter(|status| status["leader"].is_null())
    });
    // There is no event to wait for, so watch for the time of several elections.
    let begun = Instant::now();
    while begun.elapsed() < 20 * ELECTION {
        let status = status(fleet)?;
        ensure!(status["leader"].is_null(), "{waits} voted: {status}");
        // If it answers in time.
        let waiting = role(&status, waits).is_none_or(|role| role == "awaiting-replace");
        ensure!(waiting, "{waits} became part of something: {status}");
    }
    fleet.start_member(dies)?;
    fleet.leader();
    Ok(())
}

/// The role that a member reports.
fn role(status: &Value, name: &str) -> Option<String> {
    let members = status["members"].as_array()?;
    let member = members.iter().find(|member| member["name"] == name)?;
    Some(member["says"]["role"].as_str()?.to_owned())
}

/// Checks that it waits without exiting, and that its probe does not ask a supervisor to restart it.
fn lives(fleet: &mut Fleet, name: &str) -> Result<()> {
    ensure!(fleet.member_process(name).runs(), "{name} ended{}", fleet.logs());
    let (status, said) = fleet.http(name, "/healthz")?;
    ensure!(status == 200, "{name} says that it does not live: {status} {said}");
    Ok(())
}

#[test]
fn three_members_become_five_and_three_again_under_load_and_the_leader_goes_first() -> Result<()> {
    let mut fleet = fleet()?;
    let mut batch = Batch::submit(&fleet, "growing", 12_000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 500);
    let mut writers = Writers::start(&fleet, WRITERS)?;
    for name in ["c4", "c5"] {
        fleet.start_waiting(name)?;
        writers.step(&format!("{name} is added"));
        eventually("it waits", PATIENCE, || {
            let out = fleet.member_joins(&["add", name], name).ok()?;
            // Until it listens.
            (out.status.code() != Some(3)).then_some(out)
        });
    }
    voters_are(&fleet, &["c1", "c2", "c3", "c4", "c5"]);
    let old = fleet.leader();
    writers.step("the leader is removed");
    done(&fleet.ctl(&["member", "remove", &old, "--yes"])?)?;
    let next = fleet.leader_other_than(&old);
    writers.rest();
    fleet.member_is_gone(&old);
    let other = ["c1", "c2", "c3"].into_iter().find(|name| *name != old && *name != next);
    let other = other.context("a third member")?;
    writers.step("a follower is removed");
    done(&fleet.ctl(&["member", "remove", other, "--yes"])?)?;
    fleet.member_is_gone(other);
    let left: Vec<&str> =
        ["c1", "c2", "c3", "c4", "c5"].into_iter().filter(|n| *n != old && *n != other).collect();
    voters_are(&fleet, &left);
    within_one_election(writers, &fleet)?;
    batch.finish(&fleet)?;
    fleet.verify()?;

    // One of the three may fail now, as before.
    let third = left.iter().find(|name| **name != fleet.leader()).context("a follower")?;
    fleet.member_process(third).kill();
    let mut again = Batch::submit(&fleet, "again", 500, "")?;
    again.finish(&fleet)?;
    let last = left.iter().find(|n| *n != third && **n != fleet.leader()).context("the other")?;
    let refused = fleet.ctl(&["member", "remove", last, "--yes"])?;
    let stderr = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(6) && stderr.contains("RO-1013"), "{stderr}");
    // It was heard from recently, so its place is not given away.
    let instead = format!("bring back {third} first; rolloutctl alarm list says how");
    ensure!(stderr.contains(&instead) && !stderr.contains("member replace"), "{stderr}");
    let unknown = fleet.ctl(&["member", "remove", "c9", "--yes"])?;
    ensure!(unknown.status.code() == Some(4), "{unknown:?}");
    fleet.passed()
}

#[test]
fn a_member_that_lost_its_disk_waits_and_takes_its_own_place_under_a_new_id() -> Result<()> {
    let mut fleet = fleet()?;
    let mut batch = Batch::submit(&fleet, "replaced", 8_000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 500);
    let leader = fleet.leader();
    let lost = ["c1", "c2", "c3"].into_iter().find(|name| *name != leader).context("a follower")?;
    let id = |fleet: &Fleet| members(fleet)?.into_iter().find(|m| m.0 == lost).map(|m| m.2);
    let before = id(&fleet).context("its id")?;
    let mut writers = Writers::start(&fleet, WRITERS)?;
    writers.step("a member loses its disk");
    fleet.member_loses_its_disk(lost)?;
    fleet.start_member(lost)?;
    // It knows of no cluster, and does not vote.
    eventually("it waits", PATIENCE, || {
        let status = fleet.ctl_json(&["--timeout", "5s", "status"]).ok()?;
        let member = status["members"].as_array()?.iter().find(|m| m["name"] == lost)?.clone();
        (member["says"]["role"] == "awaiting-replace").then_some(())
    });
    // It answers but is no voter: one more failure would stop the cluster, and the status says so.
    let status = fleet.ctl_json(&["status"])?;
    ensure!(status["health"] == "degraded", "{status}");
    ensure!(status["votersReachable"] == 2 && status["voters"] == 3, "{status}");
    let list = fleet.ctl_json(&["alarm", "list"])?;
    let alarm = list["alarms"].as_array().and_then(|all| {
        all.iter().find(|a| a["member"] == lost && a["kind"] == "AWAITING_REPLACE").cloned()
    });
    let alarm = alarm.with_context(|| format!("an alarm: {list}"))?;
    let command = format!("rolloutctl member replace {lost} --peer-addr ");
    let (peer, client) = (fleet.peer_addr(lost), fleet.client_addr(lost));
    let whole = format!("{command}{peer} --client-addr {client} --zone z{lost}");
    ensure!(alarm["fix"].as_str().is_some_and(|fix| fix.starts_with(&whole)), "{alarm}");
    let doctor = fleet.ctl(&["doctor"])?;
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(
        said.contains("2 of 3 voters answer, 2 are needed") && said.contains(&command),
        "{said}"
    );
    eventually("the others seek it, and it says so", PATIENCE, || {
        let (status, said) = fleet.http(lost, "/readyz").ok()?;
        (status == 503 && said.starts_with("awaiting-replace: ")).then_some(())
    });
    lives(&mut fleet, lost)?;
    writers.rest();
    // A removal that would need its vote is refused, by the plan and by the leader.
    let third = ["c1", "c2", "c3"].into_iter().find(|n| *n != lost && *n != leader);
    let third = third.context("the third")?;
    for how in ["--dry-run", "--yes"] {
        let refused = fleet.ctl(&["member", "remove", third, how])?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure!(refused.status.code() == Some(6) && said.contains(&command), "{how}: {said}");
    }
    no_member_leads_while_one_waits_and_another_is_dead(&mut fleet, lost, third)?;
    writers.all_write();
    writers.step("it is replaced by itself");
    let twice = fleet.member_joins(&["add", lost], lost)?;
    let said = String::from_utf8_lossy(&twice.stderr);
    ensure!(twice.status.code() == Some(5) && said.contains("RO-1012"), "{said}");
    lives(&mut fleet, lost)?;
    done(&fleet.member_joins(&["replace", lost], lost)?)?;
    voters_are(&fleet, &["c1", "c2", "c3"]);
    within_one_election(writers, &fleet)?;
    ensure!(id(&fleet).context("its id")? > before, "a disk has an id of its own");
    batch.finish(&fleet)?;
    fleet.verify()?;
    // It now counts as a voter: the other follower may go.
    let third = ["c1", "c2", "c3"].into_iter().find(|n| *n != lost && *n != fleet.leader());
    fleet.member_process(third.context("the third")?).kill();
    Batch::submit(&fleet, "again", 500, "")?.finish(&fleet)?;
    fleet.passed()
}

#[test]
fn a_dead_member_is_replaced_by_another_and_leadership_goes_where_it_is_sent() -> Result<()> {
    let mut fleet = fleet()?;
    let mut batch = Batch::submit(&fleet, "other", 8_000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 500);
    let mut writers = Writers::start(&fleet, WRITERS)?;
    let dead = fleet.leader();
    writers.step("the leader dies and is replaced");
    fleet.member_process(&dead).kill();
    fleet.start_waiting("c4")?;
    eventually("it is replaced", PATIENCE, || {
        let out = fleet.member_joins(&["replace", &dead, "c4"], "c4").ok()?;
        out.status.success().then_some(())
    });
    fleet.member_is_gone(&dead);
    let left: Vec<&str> = ["c1", "c2", "c3", "c4"].into_iter().filter(|n| *n != dead).collect();
    voters_are(&fleet, &left);
    writers.step("leadership goes to the new one");
    eventually("it keeps up, and leads", PATIENCE, || {
        let out = fleet.ctl(&["leader", "transfer", "c4"]).ok()?;
        out.status.success().then_some(())
    });
    ensure!(fleet.leader() == "c4");
    within_one_election(writers, &fleet)?;
    let show = fleet.ctl_json(&["leader", "show"])?;
    ensure!(show["leader"] == "c4", "{show}");
    done(&fleet.ctl(&["leader", "transfer"])?)?;
    let next = fleet.leader();
    ensure!(next != "c4");
    // A repeat of that: c4 has already handed over, and the present leader is not affected.
    done(&fleet.ctl(&["leader", "transfer", "--from", "c4"])?)?;
    ensure!(fleet.leader() == next, "leadership moved again");
    let unknown = fleet.ctl(&["leader", "transfer", "c9"])?;
    ensure!(unknown.status.code() == Some(4), "{unknown:?}");
    batch.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}
