//! An operator's commands to a cluster, and which of them are refused.

use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, ClientConfig};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A request number from a new session, which no request has used.
fn number(fleet: &Fleet) -> Result<String> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let client = Client::new(ClientConfig::new(endpoints, fleet.security("admin", "operator")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = runtime.block_on(client.open_session("a test"))?;
    Ok(format!("{}.1", session.id()))
}

#[test]
fn every_format_says_the_same_and_nothing_is_changed_without_consent() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine =
        "kind = \"mock\"\nslots = 1\nconcurrency = 4\nlatency_ms_min = 50\nlatency_ms_max = 50\n";
    let slow = WorkerOptions { engine: engine.into(), ..WorkerOptions::default() };
    fleet.start_worker("w1", &slow)?;
    let mut batch = Batch::submit(&fleet, "eval", 600, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 8);

    let names = fleet.ctl(&["-o", "name", "member", "list"])?;
    ensure!(text(&names.stdout) == "c1\nc2\nc3\n", "{names:?}");
    let lines = text(&fleet.ctl(&["-o", "jsonl", "run", "list"])?.stdout);
    let run: Value = serde_json::from_str(lines.lines().next().context("a line")?)?;
    ensure!(run["kind"] == "Run" && run["data"]["name"] == "eval", "{lines}");
    let yaml = text(&fleet.ctl(&["-o", "yaml", "status"])?.stdout);
    ensure!(
        yaml.contains("kind: ClusterStatus\n") && yaml.contains("\n  health: healthy\n"),
        "{yaml}"
    );
    let wide = text(&fleet.ctl(&["-o", "wide", "worker", "list"])?.stdout);
    ensure!(wide.lines().next().is_some_and(|line| line.ends_with("VERSIONS")), "{wide}");

    // A plan changes nothing; an irreversible command requires confirmation.
    let plan = fleet.ctl_json(&["run", "cancel", "eval", "--dry-run"])?;
    ensure!(plan["would"] == "cancel run eval", "{plan}");
    ensure!(plan["now"].as_str().is_some_and(|now| now.starts_with("running")), "{plan}");
    let unknown = fleet.ctl(&["run", "pause", "nobody", "--dry-run"])?;
    ensure!(unknown.status.code() == Some(4), "{unknown:?}");
    let useless = fleet.ctl(&["run", "list", "--dry-run"])?;
    ensure!(useless.status.code() == Some(2), "{useless:?}");
    let refused = fleet.ctl(&["member", "remove", "c3"])?;
    ensure!(refused.status.code() == Some(6), "{refused:?}");
    ensure!(text(&refused.stderr).contains("add --yes"), "{refused:?}");

    // One number, one effect: the second answer is the first one's, whatever happened since.
    let id = number(&fleet)?;
    let paused = fleet.ctl_json(&["run", "pause", "eval", "--request-id", &id])?;
    ensure!(paused["state"] == "paused", "{paused}");
    let resumed = fleet.ctl_json(&["run", "resume", "eval"])?;
    ensure!(resumed["state"] == "running", "{resumed}");
    let again = fleet.ctl(&["run", "pause", "eval", "--request-id", &id])?;
    ensure!(again.status.success(), "{again:?}");
    let now = fleet.ctl_json(&["run", "describe", "eval"])?;
    ensure!(now["run"]["state"] == "running", "the repeated request took effect again: {now}");
    batch.finish(&fleet)?;

    // Also if the name is gone because of the operation.
    let id = number(&fleet)?;
    for time in ["first", "second"] {
        let delete = ["run", "delete", "eval", "--yes", "--request-id", &id];
        let deleted = fleet.ctl(&delete)?;
        ensure!(deleted.status.success(), "{time}: {deleted:?}");
        eventually("it is gone", Duration::from_secs(60), || {
            let there = fleet.ctl(&["run", "describe", "eval"]).ok()?;
            (there.status.code() == Some(4)).then_some(())
        });
    }
    let other = fleet.ctl(&["run", "delete", "eval", "--yes"])?;
    ensure!(other.status.code() == Some(4), "{other:?}");
    a_quota_that_was_changed_since_stays_as_it_is(&fleet)?;
    a_worker_that_came_after_a_drain_is_not_drained_by_its_repeat(&mut fleet, &slow)?;
    fleet.passed()
}

/// The worker of that name, once the leader reports it.
fn worker(fleet: &Fleet, name: &str) -> Option<Value> {
    let list = fleet.ctl_json(&["worker", "list"]).ok()?;
    list["workers"].as_array()?.iter().find(|worker| worker["name"] == name).cloned()
}

fn a_worker_that_came_after_a_drain_is_not_drained_by_its_repeat(
    fleet: &mut Fleet,
    options: &WorkerOptions,
) -> Result<()> {
    let (cordon, drain) = (number(fleet)?, number(fleet)?);
    fleet.ctl_json(&["worker", "cordon", "w1", "--request-id", &cordon])?;
    fleet.ctl_json(&["worker", "uncordon", "w1"])?;
    fleet.ctl_json(&["worker", "cordon", "w1", "--request-id", &cordon])?;
    let now = worker(fleet, "w1").context("w1")?;
    ensure!(now["slots"][0]["cordoned"] == false, "it is cordoned again: {now}");

    let drained = ["worker", "drain", "w1", "--request-id", &drain];
    fleet.ctl_json(&[&drained[..], &["--wait"]].concat())?;
    ensure!(fleet.worker_process("w1").wait(PATIENCE)?.success());
    fleet.start_worker("w1", options)?;
    let next = eventually("it is back", PATIENCE, || worker(fleet, "w1"));
    let again = fleet.ctl(&drained)?;
    ensure!(again.status.success(), "{again:?}");
    // It gets no message, neither at once nor with its heartbeats.
    std::thread::sleep(Duration::from_secs(3));
    let now = worker(fleet, "w1").context("it left")?;
    ensure!(now["session"] == next["session"] && now["draining"] == false, "{now}");
    Ok(())
}

fn a_quota_that_was_changed_since_stays_as_it_is(fleet: &Fleet) -> Result<()> {
    let id = number(fleet)?;
    let bounded = |to: &str, with: &[&str]| {
        let set = ["namespace", "set-quota", "default", "--runs-max", to];
        let set = fleet.ctl_json(&[&set, with].concat())?;
        Ok::<_, anyhow::Error>(set["namespace"]["runs"]["max"].clone())
    };
    let numbered = ["--request-id", id.as_str()];
    ensure!(bounded("7", &numbered)? == "7");
    ensure!(bounded("9", &[])? == "9");
    let now = bounded("7", &numbered)?;
    ensure!(now == "9", "the repeated request took effect again: {now}");
    Ok(())
}

#[test]
fn doctor_and_status_say_what_they_can_without_a_quorum_and_what_they_cannot() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let healthy = fleet.ctl(&["doctor", "--fsync-max", "30s", "--free-gib", "0"])?;
    let said = text(&healthy.stdout);
    ensure!(healthy.status.success(), "{said}");
    for check in
        ["3 of 3 voters answer, 2 are needed: 1 may fail", "c1, c2, c3 on ", "fsyncs of c2"]
    {
        ensure!(said.contains(check), "no {check:?} in\n{said}");
    }
    ensure!(said.contains("that of c3 is valid for"), "{said}");
    // Certificates that last two days do not count as expiring on their first day.
    ensure!(!said.contains("expires in"), "{said}");
    // The free space is below the configured value, but more than a tenth of it: a warning, which alone is no
    // failure.
    let free = fleet.ctl_json(&["status"])?["members"][0]["says"]["diskFreeBytes"].clone();
    let free: u64 = free.as_str().context("what is free")?.parse()?;
    let wanted = ((free >> 30) * 2 + 1).to_string();
    let small = fleet.ctl(&["doctor", "--fsync-max", "30s", "--free-gib", &wanted])?;
    ensure!(small.status.success() && text(&small.stdout).contains("a larger disk"), "{small:?}");
    let strict = fleet.ctl(&["doctor", "--strict", "--fsync-max", "30s", "--free-gib", &wanted])?;
    ensure!(strict.status.code() == Some(1), "{strict:?}");
    let config = fleet.path("c1.toml");
    let config = config.to_str().context("a path")?;
    let preflight = fleet.ctl(&["doctor", "--preflight", "--file", config, "--free-gib", "0"])?;
    let said = text(&preflight.stdout);
    for check in [
        "is a valid configuration for rollout-coordinator",
        "is in use",
        "names member c1",
        "can write, read and delete",
    ] {
        ensure!(said.contains(check), "no {check:?} in\n{said}");
    }
    ensure!(preflight.status.code() == Some(1), "its own ports are taken: {said}");

    let leader = fleet.leader();
    let gone: Vec<String> =
        fleet.member_names().into_iter().filter(|name| *name != leader).collect();
    fleet.member_process(&gone[0]).kill();
    let removal = fleet.ctl(&["member", "remove", &gone[1], "--dry-run"])?;
    ensure!(removal.status.code() == Some(6), "{removal:?}");
    // It was heard from recently, so no advice says to give its place away.
    let (first, at) = (&gone[0], fleet.client_addr(&gone[0]));
    let said = text(&removal.stderr);
    let instead = format!("bring back {first} first: start it, or open its client port {at}");
    ensure!(said.contains(&instead) && !said.contains("member replace"), "{said}");
    fleet.member_process(&gone[1]).kill();
    let status = eventually("the last one knows that it is alone", PATIENCE, || {
        let out = fleet.ctl(&["--timeout", "2s", "status"]).ok()?;
        (out.status.code() == Some(3)).then_some(out)
    });
    let said = text(&status.stdout);
    ensure!(said.contains("1 of 3 voters answer and 2 are needed to decide anything"), "{said}");
    ensure!(said.contains(&format!("state of {}: no answer", gone.join(", "))), "{said}");
    // The last member's knowledge is shown as unconfirmed, and programs can tell.
    for what in ["member", "run", "worker"] {
        let list = fleet.ctl(&["--timeout", "2s", what, "list"])?;
        let said = text(&list.stdout);
        ensure!(list.status.code() == Some(3), "{what}: {list:?}");
        ensure!(said.contains(&format!("not confirmed: as {leader} knew it at index ")), "{said}");
        ensure!(text(&list.stderr).contains("there is no leader"), "{what}: {list:?}");
        ensure!(what != "member" || gone.iter().all(|name| said.contains(name)), "{said}");
    }
    let doctor = fleet.ctl(&["doctor", "--fsync-max", "30s", "--free-gib", "0"])?;
    let said = text(&doctor.stdout);
    ensure!(doctor.status.code() == Some(3), "{said}");
    ensure!(said.contains("there is no leader") && said.contains("1 of 3 voters answer"), "{said}");
    ensure!(said.contains(&format!("{leader} is a ")), "the live member is checked: {said}");
    fleet.passed()
}
