//! Certificates and authorities are replaced while the cluster works.

use anyhow::{Context, Result, bail, ensure};
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{Role, TlsFiles, services, v1};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, counted, eventually, free_addr};
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::Streaming;

const PATIENCE: Duration = Duration::from_secs(90);
/// Half a minute of work: several times as long as the replacement takes.
const ROWS: u64 = 8000;

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

/// Replaces a file atomically: a reader sees the old file or the new one.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    Ok(std::fs::rename(new, path)?)
}

/// The issuer of the certificate that each member presents to a new connection.
fn issuers(fleet: &Fleet) -> Option<Vec<String>> {
    let list = fleet.ctl_json(&["cert", "status"]).ok()?;
    let of = |line: &Value| {
        let member = line["name"].as_str()?.starts_with("member ");
        member.then(|| line["issuer"].as_str().map(str::to_owned))?
    };
    Some(list["certificates"].as_array()?.iter().filter_map(of).collect())
}

/// A stream that is opened once and read until it ends, with the reason.
struct HeldStream {
    of: String,
    heard: Arc<AtomicU64>,
    read: JoinHandle<String>,
}

impl HeldStream {
    fn new<T: Send + 'static>(runtime: &Runtime, of: String, mut stream: Streaming<T>) -> Self {
        let heard = Arc::new(AtomicU64::new(0));
        let messages = heard.clone();
        let read = runtime.spawn(async move {
            loop {
                match stream.message().await {
                    Ok(Some(_)) => messages.fetch_add(1, Ordering::Relaxed),
                    Ok(None) => return "it was ended".into(),
                    Err(status) => return status.to_string(),
                };
            }
        });
        Self { of, heard, read }
    }

    /// Checks that it is still live. It is the same stream, because nothing opens another.
    fn goes_on(&mut self, runtime: &Runtime) -> Result<()> {
        let before = self.heard.load(Ordering::Relaxed);
        eventually("a stream of before says more, or ended", PATIENCE, || {
            let more = self.heard.load(Ordering::Relaxed) > before;
            (more || self.read.is_finished()).then_some(())
        });
        if self.read.is_finished() {
            bail!("the stream of {}: {}", self.of, runtime.block_on(&mut self.read)?);
        }
        Ok(())
    }
}

/// Opens streams that send something every second: a run's progress from the leader, and events from each member.
fn hold_streams(fleet: &Fleet, runtime: &Runtime, run: &str) -> Result<Vec<HeldStream>> {
    let watch =
        v1::WatchRunRequest { namespace: "default".into(), name: run.into(), interval_ms: 500 };
    let (user, operator) = (fleet.client("client", "user")?, fleet.client("admin", "operator")?);
    let (run, events) = runtime.block_on(async {
        let (_, leader) = user.leader_channel().await?;
        let run = services::runs(leader).watch_run(watch).await?.into_inner();
        let follow = v1::WatchEventsRequest {
            start: v1::EventStart::Now.into(),
            follow: true,
            ..Default::default()
        };
        let events = operator.each_member(|_, channel| {
            let follow = follow.clone();
            async move { services::events(channel).watch_events(follow).await }
        });
        Ok::<_, anyhow::Error>((run, events.await))
    })?;
    let mut held = vec![HeldStream::new(runtime, "the leader: a run".into(), run)];
    for (member, stream) in events {
        let of = format!("{}: events", member.name);
        held.push(HeldStream::new(runtime, of, stream?));
    }
    ensure!(held.len() == 4, "streams of three members: {}", held.len());
    Ok(held)
}

/// Values that would differ if a session or a leader had been lost.
fn standing(fleet: &Fleet) -> Result<(Value, Value, Value)> {
    let status = fleet.ctl_json(&["status"])?;
    let workers = fleet.ctl_json(&["worker", "list"])?;
    Ok((
        status["leader"].clone(),
        status["coordEpoch"].clone(),
        workers["workers"][0]["session"].clone(),
    ))
}

/// Makes everything trust both authorities, before the new one has issued anything. Returns the new authority's
/// certificate, and keeps the operator's old one aside.
fn trust_both(fleet: &Fleet) -> Result<Vec<u8>> {
    let tls = fleet.path("tls");
    let kept = fleet.path("old-operator");
    std::fs::create_dir_all(&kept)?;
    for file in ["admin-operator.pem", "admin-operator.key"] {
        std::fs::copy(tls.join(file), kept.join(file))?;
    }
    let mut bundle = std::fs::read(tls.join("ca.pem"))?;
    let new_ca = std::fs::read(pki::init_ca(&fleet.path("ca-new"), "fleet")?)?;
    bundle.extend_from_slice(&new_ca);
    replace(&tls.join("ca.pem"), &bundle)?;
    Ok(new_ca)
}

fn issue_by_the_new(fleet: &Fleet) -> Result<()> {
    for (role, name) in [
        (Role::Member, "c1"),
        (Role::Member, "c2"),
        (Role::Member, "c3"),
        (Role::Worker, "w1"),
        (Role::Admin, "operator"),
    ] {
        pki::issue(&fleet.path("ca-new"), &request(role, name), &fleet.path("tls"))?;
    }
    Ok(())
}

/// The output of a command with the operator's old certificate.
fn by_old(fleet: &Fleet) -> Result<Output> {
    let kept = fleet.path("old-operator");
    let mut command = fleet.program("rolloutctl");
    command.args(["--timeout", "5s", "-e", fleet.client_addr("c1")]);
    command.arg("--ca-cert").arg(fleet.path("tls/ca.pem"));
    command.arg("--cert").arg(kept.join("admin-operator.pem"));
    command.arg("--key").arg(kept.join("admin-operator.key"));
    command.args(["member", "list"]);
    rollout_tests::output(command, PATIENCE)
}

#[test]
fn an_authority_is_replaced_under_load_without_a_restart_and_without_a_lost_stream() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let side = fleet.path("w1.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 8\nlatency_ms_min = 60\nlatency_ms_max = 60\nside_file = {side:?}\n"
    );
    let worker = free_addr()?;
    let head = format!("metrics_listen = {worker:?}\n");
    fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    let mut batch = Batch::submit(&fleet, "rotated", ROWS, "")?;
    batch.until(&fleet, "rows are done", |c| c.done > 100);
    let before = standing(&fleet)?;
    let streams_ended =
        || counted(&worker, "rollout_worker_streams_ended_total").context("metrics of w1");
    let ended_before = streams_ended()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut held = hold_streams(&fleet, &runtime, "rotated")?;
    let old = issuers(&fleet).context("issuers")?;
    ensure!(old.len() == 3 && old[0] == old[2], "{old:?}");

    let new_ca = trust_both(&fleet)?;
    ensure!(issuers(&fleet).context("issuers")? == old, "nothing new is presented yet");
    issue_by_the_new(&fleet)?;
    eventually("every member presents a certificate of the new authority", PATIENCE, || {
        let now = issuers(&fleet)?;
        (now.len() == 3 && now.iter().all(|issuer| *issuer != old[0])).then_some(())
    });
    // A client with an old certificate that trusts both authorities is served as before.
    let served = by_old(&fleet)?;
    ensure!(served.status.success(), "{served:?}");

    // Then remove the old authority.
    pki::issue(&fleet.path("ca-new"), &request(Role::Client, "user"), &fleet.path("tls"))?;
    replace(&fleet.path("tls/ca.pem"), &new_ca)?;
    eventually("a certificate of the old authority is refused", PATIENCE, || {
        (by_old(&fleet).ok()?.status.code() == Some(7)).then_some(())
    });
    ensure!(standing(&fleet)? == before, "a session or a leader was lost: {:?}", standing(&fleet)?);
    ensure!(streams_ended()? == ended_before, "the worker's stream was lost{}", fleet.logs());
    for stream in &mut held {
        stream.goes_on(&runtime)?;
    }
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!(counts.done < ROWS, "the rows were to run meanwhile: {counts:?}");

    // New connections between members and from workers need only the new files.
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
    // So does the worker's, including the stream that the old leader ended.
    let moved = fleet.ctl(&["leader", "transfer"])?;
    ensure!(moved.status.success(), "{moved:?}");
    eventually("the worker has a stream to the next leader", PATIENCE, || {
        let (_, _, session) = standing(&fleet).ok()?;
        (streams_ended().ok()? > ended_before && session == before.2).then_some(())
    });
    fleet.verify()?;
    fleet.passed()
}

/// The output of a command that trusts and presents these files.
fn run_ctl(fleet: &Fleet, files: &TlsFiles, args: &[&str]) -> Result<Output> {
    let mut command = fleet.program("rolloutctl");
    for name in fleet.member_names() {
        command.args(["-e", fleet.client_addr(&name)]);
    }
    command.arg("--ca-cert").arg(&files.ca);
    command.arg("--cert").arg(&files.cert).arg("--key").arg(&files.key);
    command.args(["--timeout", "10s"]).args(args);
    rollout_tests::output(command, PATIENCE)
}

#[test]
fn a_certificate_of_another_authority_is_named_and_no_member_is_called_dead() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let other = fleet.path("ca-other");
    pki::init_ca(&other, "fleet")?;
    let theirs = pki::issue(&other, &request(Role::Admin, "operator"), &fleet.path("tls-other"))?;
    // It trusts the members, but they do not trust it.
    let stranger = TlsFiles { ca: fleet.path("tls/ca.pem"), ..theirs.clone() };
    let (ca, cert) = (theirs.ca.display(), theirs.cert.display());
    let refused = format!("it refuses your certificate {cert}: it trusts another authority");
    let ways = [
        (&theirs, format!("its certificate is signed by another authority than {ca}")),
        (&stranger, refused),
    ];
    for (files, cause) in ways {
        for args in [
            &["status"][..],
            &["doctor"],
            &["alarm", "list"],
            &["alarm", "list", "--exit-code"],
            &["leader", "show"],
            &["run", "list"],
        ] {
            let out = run_ctl(&fleet, files, args)?;
            let [printed, said] =
                [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let all = printed + &said;
            ensure!(out.status.code() == Some(7), "{args:?}: {:?}: {all}", out.status);
            ensure!(all.contains("another authority"), "{args:?} names no cause: {all}");
            // A command that asks only the leader does not name the file, but the command that names it.
            ensure!(args[0] == "run" || all.contains(&cause), "{args:?} names no file: {all}");
            ensure!(said.contains("rolloutctl cert status"), "{args:?}: {said}");
            for wrong in ["member replace", "unreachable", "NO_LEADER", "there is no leader"] {
                ensure!(!all.contains(wrong), "{args:?} says {wrong:?}: {all}");
            }
        }
    }
    let own = fleet.ctl_json(&["status"])?;
    ensure!(own["health"] == "healthy" && own["members"][0]["distrusted"] == false, "{own}");
    fleet.passed()
}

#[test]
fn a_command_without_tls_reports_that_members_use_tls_and_calls_none_dead() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    for args in [
        &["status"][..],
        &["doctor"],
        &["alarm", "list"],
        &["leader", "show"],
        &["run", "list"],
        &["events"],
    ] {
        let mut command = fleet.program("rolloutctl");
        for name in fleet.member_names() {
            command.args(["-e", fleet.client_addr(&name)]);
        }
        match args[0] {
            "status" => command.env("ROLLOUT_INSECURE_PLAINTEXT", "true"),
            _ => command.arg("--insecure-plaintext"),
        };
        command.args(["--timeout", "10s"]).args(args);
        let out = rollout_tests::output(command, PATIENCE)?;
        let [printed, said] =
            [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let all = printed + &said;
        ensure!(out.status.code() == Some(7), "{args:?}: {:?}: {all}", out.status);
        let told = "it answers with TLS; drop --insecure-plaintext";
        ensure!(all.contains(told), "{args:?} names no cause: {all}");
        ensure!(said.contains("give --ca-cert, --cert and --key"), "{args:?}: {said}");
        for wrong in ["start it", "unreachable", "NO_LEADER", "there is no leader"] {
            ensure!(!all.contains(wrong), "{args:?} says {wrong:?}: {all}");
        }
    }
    fleet.passed()
}

/// Seconds until the certificate that a member reports as in use expires.
fn cert_seconds(fleet: &Fleet, name: &str) -> Option<i64> {
    let status = fleet.ctl_json(&["status"]).ok()?;
    status["members"].as_array()?.iter().find(|m| m["name"] == name)?["says"]["certSeconds"]
        .as_i64()
}

/// Why a member refuses its changed files, if it does.
fn refusal(fleet: &Fleet, name: &str) -> Option<String> {
    let list = fleet.ctl_json(&["alarm", "list"]).ok()?;
    let of = |a: &&Value| a["kind"] == "CERT_RELOAD_FAILED" && a["member"] == name;
    list["alarms"].as_array()?.iter().find(of)?["what"].as_str().map(str::to_owned)
}

#[test]
fn unusable_files_raise_an_alarm_and_the_status_shows_the_certificate_in_use() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let file = fleet.path("tls").join("member-c1.pem");
    let good = std::fs::read(&file)?;
    let (of_file, metric) = (
        cert_seconds(&fleet, "c1").context("its end")?,
        "rollout_alarm{kind=\"cert_reload_failed\"}",
    );
    ensure!(of_file > 0 && fleet.counted("c1", metric) == Some(0));
    let ends = fleet.counted("c1", "rollout_tls_certificate_expiry_timestamp_seconds");
    // First half a file, then no file: neither has a readable expiry.
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
    // With a good certificate the expiry is reported again, and the alarm clears.
    replace(&file, &good)?;
    eventually("no alarm is left", PATIENCE, || refusal(&fleet, "c1").is_none().then_some(()));
    ensure!(fleet.counted("c1", metric) == Some(0));
    fleet.passed()
}
