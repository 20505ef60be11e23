//! Certificates and authorities are replaced while the cluster works.

use anyhow::{Context, Result, ensure};
use rollout_proto::Role;
use rollout_proto::pki::{self, IssueRequest};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const ROWS: u64 = 10_000;

fn request(role: Role, name: &str) -> IssueRequest {
    IssueRequest {
        role,
        name: name.into(),
        namespaces: Vec::new(),
        dns_names: vec!["localhost".into()],
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 30,
    }
}

/// Replaced whole: a reader sees the old file or the new one.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    Ok(std::fs::rename(new, path)?)
}

/// Who issued what each member presents to a new connection.
fn issuers(fleet: &Fleet) -> Option<Vec<String>> {
    let list = fleet.ctl_json(&["cert", "status"]).ok()?;
    let of = |line: &Value| {
        let member = line["name"].as_str()?.starts_with("member ");
        member.then(|| line["issuer"].as_str().map(str::to_owned))?
    };
    Some(list["certificates"].as_array()?.iter().filter_map(of).collect())
}

/// What would be another had a stream been dropped or a leader been lost.
fn standing(fleet: &Fleet) -> Result<(Value, Value, Value)> {
    let status = fleet.ctl_json(&["status"])?;
    let workers = fleet.ctl_json(&["worker", "list"])?;
    Ok((
        status["leader"].clone(),
        status["coordEpoch"].clone(),
        workers["workers"][0]["session"].clone(),
    ))
}

#[test]
fn an_authority_is_replaced_under_load_without_a_restart_and_without_a_lost_stream() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 8\nlatency_ms_min = 60\nlatency_ms_max = 60\nside_file = {side:?}\n"
    );
    fleet.start_worker("w1", &WorkerOptions { engine, ..WorkerOptions::default() })?;
    let mut batch = Batch::submit(&fleet, "rotated", ROWS, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 100);
    let before = standing(&fleet)?;
    let old = issuers(&fleet).context("issuers")?;
    ensure!(old.len() == 3 && old[0] == old[2], "{old:?}");

    // Both authorities are trusted first, and only then is anything issued by the new one.
    let tls = fleet.path("tls");
    let mut bundle = std::fs::read(tls.join("ca.pem"))?;
    let new_ca = std::fs::read(pki::init_ca(&fleet.path("ca-new"), "fleet")?)?;
    bundle.extend_from_slice(&new_ca);
    let kept = fleet.path("old-operator");
    std::fs::create_dir_all(&kept)?;
    for file in ["ca.pem", "admin-operator.pem", "admin-operator.key"] {
        std::fs::copy(tls.join(file), kept.join(file))?;
    }
    replace(&tls.join("ca.pem"), &bundle)?;
    ensure!(issuers(&fleet).context("issuers")? == old, "nothing new is presented yet");
    for (role, name) in [
        (Role::Member, "c1"),
        (Role::Member, "c2"),
        (Role::Member, "c3"),
        (Role::Worker, "w1"),
        (Role::Admin, "operator"),
    ] {
        pki::issue(&fleet.path("ca-new"), &request(role, name), &tls)?;
    }
    eventually("every member presents a certificate of the new authority", PATIENCE, || {
        let now = issuers(&fleet)?;
        (now.len() == 3 && now.iter().all(|issuer| *issuer != old[0])).then_some(())
    });
    // Whoever has an old certificate, and trusts both, is served as before.
    let ca = tls.join("ca.pem");
    let by_old = |ca: &Path| {
        let mut command = fleet.program("rolloutctl");
        command.args(["--timeout", "5s", "-e", fleet.client_addr("c1"), "--ca-cert"]).arg(ca);
        command.arg("--cert").arg(kept.join("admin-operator.pem"));
        command.arg("--key").arg(kept.join("admin-operator.key"));
        command.args(["member", "list"]);
        rollout_tests::output(command, PATIENCE)
    };
    let served = by_old(&ca)?;
    ensure!(served.status.success(), "{served:?}");

    // Then the old authority goes.
    pki::issue(&fleet.path("ca-new"), &request(Role::Client, "user"), &tls)?;
    replace(&ca, &new_ca)?;
    eventually("a certificate of the old authority is refused", PATIENCE, || {
        (by_old(&ca).ok()?.status.code() == Some(7)).then_some(())
    });
    ensure!(standing(&fleet)? == before, "a stream or a leader was lost: {:?}", standing(&fleet)?);
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!(counts.done < ROWS, "the rows were to run meanwhile: {counts:?}");

    // New connections between members and from workers need the new files alone.
    let leader = fleet.leader();
    let follower = ["c1", "c2", "c3"].into_iter().find(|name| *name != leader).context("one")?;
    fleet.member_process(follower).kill();
    fleet.start_member(follower)?;
    eventually("it is back", PATIENCE, || {
        let status = fleet.ctl_json(&["status"]).ok()?;
        (status["health"] == "healthy").then_some(())
    });
    batch.finish(&fleet)?;
    let run = fleet.ctl_json(&["run", "describe", "rotated"])?;
    ensure!(run["run"]["counts"]["returned"] == "0", "rows went back: {run}");
    fleet.verify()?;
    fleet.passed()
}

/// Seconds until the end of the certificate that a member says it uses.
fn cert_seconds(fleet: &Fleet, name: &str) -> Option<i64> {
    let status = fleet.ctl_json(&["status"]).ok()?;
    status["members"].as_array()?.iter().find(|m| m["name"] == name)?["says"]["certSeconds"]
        .as_i64()
}

/// Why a member refuses its changed files, where it does.
fn refusal(fleet: &Fleet, name: &str) -> Option<String> {
    let list = fleet.ctl_json(&["alarm", "list"]).ok()?;
    let of = |a: &&Value| a["kind"] == "CERT_RELOAD_FAILED" && a["member"] == name;
    list["alarms"].as_array()?.iter().find(of)?["what"].as_str().map(str::to_owned)
}

#[test]
fn files_that_cannot_be_used_are_an_alarm_and_what_is_told_is_of_the_certificate_in_use()
-> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let file = fleet.path("tls").join("member-c1.pem");
    let good = std::fs::read(&file)?;
    let (of_file, metric) = (
        cert_seconds(&fleet, "c1").context("its end")?,
        "rollout_alarm{kind=\"cert_reload_failed\"}",
    );
    ensure!(of_file > 0 && fleet.counted("c1", metric) == Some(0));
    let ends = fleet.counted("c1", "rollout_tls_certificate_expiry_timestamp_seconds");
    // Half a file, and then none at all: neither has an end that could be told.
    for bad in [Some(&good[..good.len() / 2]), None] {
        match bad {
            Some(bytes) => replace(&file, bytes)?,
            None => std::fs::remove_file(&file)?,
        }
        let why = eventually("it is refused", PATIENCE, || refusal(&fleet, "c1"));
        ensure!(why.contains("member-c1.pem"), "{why}");
        ensure!(fleet.counted("c1", metric) == Some(1));
        let told = cert_seconds(&fleet, "c1").context("an end, of the one in use")?;
        ensure!(told > 0 && of_file - told < 600, "{of_file} s, then {told} s");
        let now = fleet.counted("c1", "rollout_tls_certificate_expiry_timestamp_seconds");
        ensure!(now == ends, "{ends:?}, then {now:?}");
    }
    // Of a certificate that is good the end is told, and the alarm goes.
    replace(&file, &good)?;
    eventually("no alarm is left", PATIENCE, || refusal(&fleet, "c1").is_none().then_some(()));
    ensure!(fleet.counted("c1", metric) == Some(0));
    fleet.passed()
}
