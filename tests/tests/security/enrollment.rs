//! A client with a join token gets certificates, as many and for the names that the token allows; a client without
//! one gets none.

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rollout_proto::enrollment::{self, EnrollError, Enrolled, JoinToken};
use rollout_proto::{
    ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, RpcError, Security, TlsFiles, channel,
    pki, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, json_lines};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PATIENCE: Duration = Duration::from_secs(90);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn fleet(lifetime_s: u64) -> Result<Fleet> {
    let options =
        FleetOptions { enrollment_lifetime_s: Some(lifetime_s), ..FleetOptions::default() };
    Fleet::start(options)
}

fn enrollment_addrs(fleet: &Fleet) -> Vec<String> {
    fleet.member_names().iter().map(|name| fleet.enrollment_addr(name).to_owned()).collect()
}

fn files(fleet: &Fleet, name: &str) -> TlsFiles {
    enrollment::files_in(&fleet.path(&format!("newcomer-{name}")), name)
}

/// Enrolls with the key of `files`, which is created if it does not exist.
async fn enroll(
    token: &str,
    name: &str,
    at: &[String],
    files: &TlsFiles,
) -> Result<std::result::Result<Enrolled, EnrollError>> {
    let token: JoinToken = token.parse()?;
    Ok(enrollment::enroll(&token, name, at, files, PATIENCE).await)
}

/// Checks that the token was refused, and that only the key was kept.
fn is_refused(answer: &std::result::Result<Enrolled, EnrollError>, files: &TlsFiles) -> Result<()> {
    let error = answer.as_ref().err().context("a client was enrolled")?;
    ensure!(error.code() == Some(ErrorCode::TokenRefused), "{error}");
    ensure!(!files.cert.exists() && !files.ca.exists(), "it left a trace");
    Ok(())
}

/// The namespaces in the certificate of these files; none: all.
fn namespaces(files: &TlsFiles) -> Result<Vec<String>> {
    Ok(pki::inspect(&files.cert)?.identity.context("a certificate without an identity")?.namespaces)
}

/// Checks that a command ended with that exit status and printed these words.
fn check_refusal(out: &Output, code: i32, words: &str) -> Result<()> {
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.code() == Some(code) && stderr.contains(words),
        "{:?}: {stderr}",
        out.status
    );
    Ok(())
}

fn uses(fleet: &Fleet, token: &str) -> Result<u64> {
    let list = fleet.ctl_json(&["token", "list"])?;
    let all = list["tokens"].as_array().context("no list")?;
    let one = all.iter().find(|t| t["name"] == token).with_context(|| format!("{list}"))?;
    one["uses"].as_u64().context("no uses")
}

#[test]
fn a_worker_with_a_token_alone_joins_works_and_is_renewed_without_a_lost_stream() -> Result<()> {
    let mut fleet = fleet(20)?;
    let token = fleet.token("rack", &["--role", "worker", "--label", "pool=spot"])?;
    let file = fleet.path("token");
    std::fs::write(&file, &token)?;
    let engine =
        "kind = \"mock\"\nslots = 2\nconcurrency = 8\nlatency_ms_min = 60\nlatency_ms_max = 60\n";
    let options = WorkerOptions { engine: engine.into(), ..WorkerOptions::default() };
    fleet.start_unenrolled_worker("w1", &file, &options)?;
    // The label from the token is a label of the worker's slots.
    let wanted = "[workers]\nlabels = { pool = \"spot\" }\n";
    // They take longer than the certificate is valid.
    let mut batch = Batch::submit(&fleet, "enrolled", 6000, wanted)?;
    batch.until(&fleet, "rows are done", |c| c.done > 100);
    let session = |fleet: &Fleet| -> Result<Value> {
        Ok(fleet.ctl_json(&["worker", "list"])?["workers"][0]["session"].clone())
    };
    let before = session(&fleet)?;
    let first = pki::inspect(&fleet.enrolled_cert("w1"))?;
    ensure!(first.identity.as_ref().is_some_and(|id| id.to_string() == "worker/w1"), "{first:?}");
    let key = std::fs::read(fleet.path("worker-w1/identity/worker-w1.key"))?;
    eventually("its certificate is renewed", PATIENCE, || {
        let now = pki::inspect(&fleet.enrolled_cert("w1")).ok()?;
        (now.validity.not_after_unix > first.validity.not_after_unix
            && now.identity == first.identity)
            .then_some(())
    });
    ensure!(session(&fleet)? == before, "its stream was lost");
    ensure!(std::fs::read(fleet.path("worker-w1/identity/worker-w1.key"))? == key);
    let renewed = |name: &String| fleet.counted(name, "rollout_certificates_renewed_total");
    let renewed: u64 = fleet.member_names().iter().filter_map(renewed).sum();
    ensure!(renewed >= 1, "no member counted it");
    ensure!(uses(&fleet, "rack")? == 1, "a renewal is no use of the token");
    batch.finish(&fleet)?;
    let run = fleet.ctl_json(&["run", "describe", "enrolled"])?;
    ensure!(run["run"]["counts"]["returned"] == "0", "rows went back: {run}");
    let secret = token.split(':').nth(2).context("a token has a secret")?;
    for name in fleet.member_names() {
        let log = std::fs::read_to_string(fleet.path(&format!("{name}.log")))?;
        ensure!(!log.contains(secret), "{name} logged the secret");
    }
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_enrolls_only_its_names_and_only_as_often_as_it_says() -> Result<()> {
    let fleet = fleet(3600)?;
    let all = enrollment_addrs(&fleet);
    let once = fleet.token("once", &["--role", "worker"])?;
    let (a, b) = (files(&fleet, "a"), files(&fleet, "b"));
    let enrolled = enroll(&once, "a", &all, &a).await??;
    ensure!(enrolled.identity.to_string() == "worker/a", "{enrolled:?}");
    ensure!(namespaces(&a)?.is_empty(), "its token names none, and is for all");
    // The same name and key again are no second use; another name or another key is.
    enroll(&once, "a", &all, &a).await??;
    is_refused(&enroll(&once, "b", &all, &b).await?, &b)?;
    let other_key = files(&fleet, "a-again");
    is_refused(&enroll(&once, "a", &all, &other_key).await?, &other_key)?;
    ensure!(uses(&fleet, "once")? == 1);

    let twice = fleet.token("twice", &["--role", "worker", "--uses", "2"])?;
    let unknown = twice.replace("twice", "never");
    is_refused(&enroll(&unknown, "b", &all, &b).await?, &b)?;
    let (head, rest) = twice.split_at("rollout1:twice:".len());
    let forged = format!("{head}{}{}", "0".repeat(40), &rest[40..]);
    is_refused(&enroll(&forged, "b", &all, &b).await?, &b)?;
    let revoked = fleet.ctl(&["token", "revoke", "twice"])?;
    ensure!(revoked.status.success(), "{revoked:?}");
    is_refused(&enroll(&twice, "b", &all, &b).await?, &b)?;
    let again = fleet.ctl(&["token", "revoke", "twice"])?;
    ensure!(again.status.code() == Some(4), "{again:?}");
    let short = fleet.token("short", &["--role", "worker", "--ttl", "1s"])?;
    eventually("it has expired", PATIENCE, || {
        let list = fleet.ctl_json(&["token", "list"]).ok()?;
        let there = list["tokens"].as_array()?.iter().any(|t| t["name"] == "short");
        (!there).then_some(())
    });
    is_refused(&enroll(&short, "b", &all, &b).await?, &b)?;

    let narrow = fleet.token("narrow", &["--role", "worker", "--for-namespace", "default"])?;
    let c = files(&fleet, "c");
    enroll(&narrow, "c", &all, &c).await??;
    ensure!(namespaces(&c)? == ["default"], "{:?}", namespaces(&c)?);
    client_of_a_token(&fleet, &all).await?;
    ports(&fleet).await?;
    fleet.verify()?;
    fleet.passed()
}

/// A client gets the name in its token, and a client's permissions.
async fn client_of_a_token(fleet: &Fleet, all: &[String]) -> Result<()> {
    let nameless = fleet.ctl(&["token", "create", "x", "--role", "client"])?;
    ensure!(nameless.status.code() == Some(2), "{nameless:?}");
    let args = ["--role", "client", "--holder", "ann", "--for-namespace", "default"];
    let token = fleet.token("for-ann", &args)?;
    let (ann, bob) = (files(fleet, "ann"), files(fleet, "bob"));
    is_refused(&enroll(&token, "bob", all, &bob).await?, &bob)?;
    enroll(&token, "ann", all, &ann).await??;
    let ctl = |args: &[&str]| -> Result<Output> {
        let mut command = fleet.program("rolloutctl");
        command.args(["--timeout", "20s", "-e", fleet.client_addr("c1")]);
        command.arg("--ca-cert").arg(&ann.ca).arg("--cert").arg(&ann.cert);
        command.arg("--key").arg(&ann.key).args(args);
        rollout_tests::output(command, PATIENCE)
    };
    let listed = ctl(&["run", "list"])?;
    ensure!(listed.status.success(), "{listed:?}");
    ensure!(namespaces(&ann)? == ["default"], "{:?}", namespaces(&ann)?);
    check_refusal(&ctl(&["-n", "other", "run", "list"])?, 7, "RO-3002")?;
    for forbidden in [&["token", "list"][..], &["member", "list"]] {
        let refused = ctl(forbidden)?;
        ensure!(refused.status.code() == Some(7), "{forbidden:?}: {refused:?}");
    }
    let before = std::fs::read(&ann.cert)?;
    let renewed = ctl(&["cert", "renew"])?;
    ensure!(renewed.status.success(), "{renewed:?}");
    ensure!(std::fs::read(&ann.cert)? != before, "it is another one");
    ensure!(namespaces(&ann)? == ["default"], "a renewal is for no more: {:?}", namespaces(&ann)?);
    check_refusal(&ctl(&["-n", "other", "run", "list"])?, 7, "RO-3002")?;
    // A certificate issued by hand is not renewed over the network.
    let by_hand = fleet.ctl(&["cert", "renew"])?;
    ensure!(by_hand.status.code() == Some(7), "an admin's is not renewed: {by_hand:?}");
    Ok(())
}

async fn asked_for_status(addr: &str, tls: &ClientTls) -> Result<RpcError> {
    let endpoint = Endpoint::seed(addr)?;
    let channel = channel(&endpoint, tls, &DialMap::default(), &ChannelOptions::default())?;
    let mut cluster = v1::cluster_client::ClusterClient::new(channel);
    match cluster.status(v1::StatusRequest::default()).await {
        Ok(_) => anyhow::bail!("{addr} showed the status to an unenrolled client"),
        Err(status) => Ok(RpcError::from_status(&status)),
    }
}

/// Without a certificate there is one method, on one port. `proto/src/tls/tests` checks that the other ports require
/// one; this checks that they present an unenrolled client nothing to trust.
async fn ports(fleet: &Fleet) -> Result<()> {
    let pins = pki::authority_pins(&fleet.path("tls").join("ca.pem"))?;
    let unenrolled = ClientTls::pinned(&pins)?;
    let Security::Mtls(own) = fleet.security("admin", "operator") else { unreachable!() };
    let admin = ClientTls::load(&Security::Mtls(own))?;
    for name in fleet.member_names() {
        // An admin can do no more there: the port asks for no certificate.
        for tls in [&unenrolled, &admin] {
            let error = asked_for_status(fleet.enrollment_addr(&name), tls).await?;
            ensure!(error.code == ErrorCode::PermissionDenied, "{error}");
        }
        for addr in [fleet.client_addr(&name), fleet.peer_addr(&name)] {
            let error = asked_for_status(addr, &unenrolled).await?;
            ensure!(error.code == ErrorCode::ConnectFailed, "{error}");
        }
    }
    Ok(())
}

/// The leader commits the use, and dies before its answer arrives.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_with_its_leader_is_no_second_use() -> Result<()> {
    let mut fleet = fleet(3600)?;
    let token = fleet.token("once", &["--role", "worker"])?;
    let leader = fleet.leader();
    let lost = files(&fleet, "w1");
    enroll(&token, "w1", &[fleet.enrollment_addr(&leader).to_owned()], &lost).await??;
    // The certificate never arrived.
    remove(&lost.cert)?;
    remove(&lost.ca)?;
    fleet.member_process(&leader).kill();
    let rest: Vec<String> = fleet
        .member_names()
        .iter()
        .filter(|name| **name != leader)
        .map(|name| fleet.enrollment_addr(name).to_owned())
        .collect();
    let enrolled = enroll(&token, "w1", &rest, &lost).await??;
    ensure!(enrolled.identity.to_string() == "worker/w1", "{enrolled:?}");
    ensure!(uses(&fleet, "once")? == 1, "it was used twice");
    let other = files(&fleet, "w2");
    is_refused(&enroll(&token, "w2", &rest, &other).await?, &other)?;
    fleet.start_member(&leader)?;
    eventually("all are back", PATIENCE, || {
        let status = fleet.ctl_json(&["status"]).ok()?;
        (status["health"] == "healthy").then_some(())
    });
    fleet.verify()?;
    fleet.passed()
}

/// Replaces the members' intermediate CA by one whose certificate expired years ago.
fn expire_issuer(fleet: &Fleet) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let certificate = params.self_signed(&key)?;
    std::fs::write(fleet.path("issuer/issuer.key"), key.serialize_pem())?;
    Ok(std::fs::write(fleet.path("issuer/issuer.pem"), certificate.pem())?)
}

fn restart_one_by_one(fleet: &mut Fleet) -> Result<()> {
    for name in fleet.member_names() {
        fleet.member_process(&name).terminate(PATIENCE)?;
        fleet.start_member(&name)?;
        eventually("all are back", PATIENCE, || {
            let status = fleet.ctl_json(&["status"]).ok()?;
            (status["health"] == "healthy").then_some(())
        });
    }
    Ok(())
}

/// The members with an expired intermediate CA, by the alarms.
fn with_ended_issuers(fleet: &Fleet) -> Option<Vec<String>> {
    let list = fleet.ctl_json(&["alarm", "list"]).ok()?;
    let ended = |alarm: &&Value| alarm["kind"] == "ISSUER_EXPIRED";
    let name = |alarm: &Value| Some(alarm["member"].as_str()?.to_owned());
    list["alarms"].as_array()?.iter().filter(ended).map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_intermediate_ca_enrolls_no_client_and_ends_no_member() -> Result<()> {
    let mut fleet = fleet(3600)?;
    let token = fleet.token("rack", &["--role", "worker"])?;
    ensure!(with_ended_issuers(&fleet) == Some(Vec::new()), "a new one has not ended");
    expire_issuer(&fleet)?;
    restart_one_by_one(&mut fleet)?;
    ensure!(with_ended_issuers(&fleet) == Some(fleet.member_names()), "who has one");
    for name in fleet.member_names() {
        let told = fleet.counted(&name, "rollout_alarm{kind=\"issuer_expired\"}");
        ensure!(told == Some(1), "{name}: {told:?}");
    }
    let late = files(&fleet, "w1");
    let refused = enroll(&token, "w1", &enrollment_addrs(&fleet), &late).await?;
    let error = refused.err().context("it was let in")?;
    ensure!(error.code() == Some(ErrorCode::EnrollmentOff), "{error}");
    ensure!(uses(&fleet, "rack")? == 0, "the token was used");
    // A client with a certificate is served.
    let listed = fleet.ctl(&["run", "list"])?;
    ensure!(listed.status.success(), "{listed:?}");

    pki::init_issuer(&fleet.path("ca"), &fleet.path("issuer"), 30)?;
    restart_one_by_one(&mut fleet)?;
    ensure!(with_ended_issuers(&fleet) == Some(Vec::new()), "there is another one");
    let enrolled = enroll(&token, "w1", &enrollment_addrs(&fleet), &late).await??;
    ensure!(enrolled.identity.to_string() == "worker/w1", "{enrolled:?}");
    fleet.verify()?;
    fleet.passed()
}

fn remove(file: &Path) -> Result<()> {
    Ok(std::fs::remove_file(file)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrollment_is_in_the_audit_with_the_position_of_its_operation() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("audit.log");
    // For the test, all three append to one file; none of them rotates it.
    let line: &'static str = Box::leak(format!("file = {file:?}").into_boxed_str());
    let fleet = Fleet::start(FleetOptions {
        enrollment_lifetime_s: Some(3600),
        member_lines: vec![("audit", line)],
        ..FleetOptions::default()
    })?;
    let token = fleet.token("once", &["--role", "worker"])?;
    enroll(&token, "a", &enrollment_addrs(&fleet), &files(&fleet, "a")).await??;
    let all = json_lines(&std::fs::read_to_string(&file)?);
    let mut enrollments = all.iter().filter(|line| line["method"] == "Enrolment/Enrol");
    let enrollment =
        enrollments.find(|line| line["outcome"] == "applied").context("no line of it")?;
    ensure!(enrollment["index"].is_string() && enrollment["subject"] == "worker/a", "{enrollment}");
    fleet.passed()
}

fn unix_now_s() -> Result<i64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().try_into()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_lives_for_a_day_where_the_members_say_nothing_else() -> Result<()> {
    let options = FleetOptions { enrollment_by_default: true, ..FleetOptions::default() };
    let fleet = Fleet::start(options)?;
    for name in fleet.member_names() {
        let config = std::fs::read_to_string(fleet.path(&format!("{name}.toml")))?;
        ensure!(config.contains("[enrollment]") && !config.contains("lifetime_s"), "{config}");
    }
    for (role, name) in [("worker", "w1"), ("client", "ann")] {
        let token = fleet.token(role, &["--role", role, "--holder", name])?;
        let of = files(&fleet, name);
        let before = unix_now_s()?;
        let enrolled = enroll(&token, name, &enrollment_addrs(&fleet), &of).await??;
        let after = unix_now_s()?;
        ensure!(enrolled.lifetime == DAY, "{enrolled:?}");
        // The lifetime counts from the request; the certificate is valid from some minutes earlier for slow clocks.
        let ends = pki::inspect(&of.cert)?.validity.not_after_unix - DAY.as_secs().cast_signed();
        ensure!((before..=after).contains(&ends), "{ends}, asked at {before} to {after}");
    }
    fleet.passed()
}

/// The ports on which a process listens, as the kernel says.
fn listens_on(pid: u32) -> Result<BTreeSet<u16>> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let links = links.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let own: BTreeSet<String> = links.map(|to| to.to_string_lossy().into_owned()).collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        // Without IPv6 there is no such table.
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // The local address, the state (0A for listening sockets), and the socket's inode.
            let (Some(local), Some(state), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            if *state == "0A" && own.contains(&format!("socket:[{inode}]")) {
                let (_, port) = local.rsplit_once(':').context("an address without a port")?;
                ports.insert(u16::from_str_radix(port, 16)?);
            }
        }
    }
    Ok(ports)
}

fn port(addr: &str) -> Result<u16> {
    Ok(addr.parse::<SocketAddr>()?.port())
}

/// All certificates are from an authority whose key no member has: no client is enrolled, and clients with
/// certificates are served.
#[test]
fn members_without_enrollment_enroll_no_client_and_serve_certificates_of_another_authority()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let user = |fleet: &Fleet, args: &[&str]| -> Result<Output> {
        let mut command = fleet.program("rolloutctl");
        command.arg("--context").arg(fleet.path("user.toml")).args(args);
        rollout_tests::output(command, PATIENCE)
    };
    let Security::Mtls(own) = fleet.security("client", "user") else { unreachable!() };
    let read = || Ok::<_, anyhow::Error>((std::fs::read(&own.cert)?, std::fs::read(&own.key)?));
    let before = read()?;
    let renewal = user(&fleet, &["cert", "renew"])?;
    check_refusal(&renewal, 5, "RO-3010")?;
    check_refusal(&renewal, 5, "issues no certificates: its configuration has no [enrollment]")?;
    ensure!(read()? == before, "a refused renewal changed the certificate or its key");
    // An admin's certificate is always issued by hand.
    check_refusal(&fleet.ctl(&["cert", "renew"])?, 7, "RO-3002")?;
    let token = fleet.ctl(&["token", "create", "rack", "--role", "worker"])?;
    check_refusal(&token, 5, "RO-3010")?;
    check_refusal(&token, 5, "has no [enrollment]")?;
    ensure!(token.stdout.is_empty(), "a token was shown: {token:?}");
    let list = fleet.ctl_json(&["token", "list"])?;
    ensure!(list["tokens"].as_array().is_some_and(Vec::is_empty), "a token was kept: {list}");

    for name in fleet.member_names() {
        let pid = fleet.member_process(&name).pid();
        let mut known = BTreeSet::new();
        for addr in [fleet.client_addr(&name), fleet.peer_addr(&name), fleet.http_addr(&name)] {
            known.insert(port(addr)?);
        }
        let found = listens_on(pid)?;
        ensure!(found == known, "{name} listens on {found:?}, and not on {known:?} alone");
    }

    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "served", 200, "")?.finish(&fleet)?;
    let listed = user(&fleet, &["run", "list"])?;
    ensure!(listed.status.success(), "{listed:?}");
    fleet.verify()?;
    fleet.passed()
}
