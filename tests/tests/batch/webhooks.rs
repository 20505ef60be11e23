//! A completion webhook is delivered even if the leader dies, and no other address is ever called.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use rollout_proto::Role;
use rollout_proto::pki::{self, IssueRequest};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PATIENCE: Duration = Duration::from_secs(90);
/// The most that a timestamp may differ from the receiver's clock, in seconds: longer than this whole test takes.
const TOLERANCE_S: u64 = 1800;
/// The secret shared by the receiver and the members: the part after `whsec_`, in base64.
const SECRET: &str = "C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[derive(Clone, Debug)]
struct Delivery {
    head: String,
    body: String,
}

impl Delivery {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Checks that the sender knows the secret, as <https://www.standardwebhooks.com> specifies for receivers: from
    /// the request and the secret alone.
    fn is_signed(&self) -> Result<()> {
        let said = |name: &str| self.header(name).with_context(|| format!("no {name}: {self:?}"));
        let (id, timestamp) = (said("webhook-id")?, said("webhook-timestamp")?);
        let signature = said("webhook-signature")?.strip_prefix("v1,").context("not of v1")?;
        let (key, tag) = (STANDARD.decode(SECRET)?, STANDARD.decode(signature)?);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let signed = format!("{id}.{timestamp}.{}", self.body);
        ensure!(hmac::verify(&key, signed.as_bytes(), &tag).is_ok(), "a wrong signature: {self:?}");
        let sent: u64 = timestamp.parse().context("a timestamp is in seconds")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        ensure!(now.abs_diff(sent) <= TOLERANCE_S, "sent at {sent}, and it is {now}");
        Ok(())
    }
}

/// A receiver with configurable answers.
struct Receiver {
    addr: String,
    status: Arc<Mutex<u16>>,
    got: Arc<Mutex<Vec<Delivery>>>,
}

impl Receiver {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let (status, got) = (Arc::new(Mutex::new(503)), Arc::new(Mutex::new(Vec::new())));
        let (answers, kept) = (status.clone(), got.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let status = *answers.lock().expect("no panic");
                if let Some(request) = serve(stream, status) {
                    kept.lock().expect("no panic").push(request);
                }
            }
        });
        Ok(Self { addr, status, got })
    }

    fn got(&self) -> Vec<Delivery> {
        self.got.lock().expect("no panic").clone()
    }
}

fn serve(stream: TcpStream, status: u16) -> Option<Delivery> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    reader.get_mut().write_all(answer.as_bytes()).ok()?;
    Some(Delivery { head, body: String::from_utf8(body).ok()? })
}

/// The output of `rolloutctl -o json` for a user who may read runs but not submit any.
fn as_a_viewer(fleet: &Fleet, args: &[&str]) -> Result<serde_json::Value> {
    let request = IssueRequest {
        role: Role::Viewer,
        name: "dashboard".into(),
        namespaces: Vec::new(),
        dns_names: Vec::new(),
        ip_addrs: Vec::new(),
        days: 2,
    };
    let files = pki::issue(&fleet.path("ca"), &request, &fleet.path("others"))?;
    let mut command = fleet.program("rolloutctl");
    command.args(["-o", "json", "-e", fleet.client_addr(&fleet.leader())]);
    command.arg("--ca-cert").arg(&files.ca);
    command.arg("--cert").arg(&files.cert).arg("--key").arg(&files.key).args(args);
    let out = rollout_tests::output(command, PATIENCE)?;
    ensure!(out.status.success(), "{out:?}");
    Ok(serde_json::from_slice(&out.stdout)?)
}

#[test]
fn the_next_leader_repeats_a_run_completion_notification_until_it_is_acknowledged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let receiver = Receiver::start()?;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, format!("whsec_{SECRET}\n"))?;
    let leak = |line: String| -> &'static str { Box::leak(line.into_boxed_str()) };
    let member_lines = vec![
        ("webhooks", leak(format!("secret_file = {secret:?}"))),
        ("webhooks", leak(format!("allow = [\"http://{}\"]", receiver.addr))),
    ];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;

    // A run may name only URLs that the operators list.
    let mut other =
        Batch::submit(&fleet, "other", 5, "[notify]\nurl = \"http://127.0.0.1:1/x\"\n")?;
    let status = other.process().wait(PATIENCE)?;
    let text = std::fs::read_to_string(&other.process().log)?;
    ensure!(!status.success() && text.contains("[webhooks] allow"), "{status:?}: {text}");

    fleet.start_worker("w1", &WorkerOptions::default())?;
    let url = format!("http://{}/ended?token=of-the-receiver", receiver.addr);
    let lines = format!("[notify]\nurl = \"{url}\"\n");
    let mut batch = Batch::submit(&fleet, "eval", 20, &lines)?;
    batch.finish(&fleet)?;
    eventually("it was told of, and did not take it", PATIENCE, || {
        (receiver.got().len() >= 2).then_some(())
    });
    let run = fleet.ctl_json(&["run", "describe", "eval"])?;
    ensure!(run["run"]["notice"] == "due", "{run}");
    ensure!(run["spec"]["notifyUrl"] == url, "{run}");
    // The path and the query may be secrets of the users who submit runs.
    let seen = as_a_viewer(&fleet, &["run", "describe", "eval"])?;
    ensure!(seen["data"]["run"]["state"] == run["run"]["state"], "{seen}");
    ensure!(seen["data"]["spec"]["notifyUrl"] == format!("http://{}", receiver.addr), "{seen}");
    ensure!(!seen.to_string().contains("of-the-receiver"), "{seen}");
    let old = fleet.leader();
    fleet.member_process(&old).kill();
    fleet.leader_other_than(&old);
    let before = receiver.got().len();
    *receiver.status.lock().expect("no panic") = 204;
    eventually("the next leader has told of it", PATIENCE, || {
        let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", "eval"]).ok()?;
        (run["run"]["notice"] == "delivered").then_some(())
    });
    let got = receiver.got();
    ensure!(got.len() > before, "{got:?}");
    let ids: Vec<_> = got.iter().map(|each| each.header("webhook-id")).collect();
    ensure!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    for each in &got {
        ensure!(each.head.starts_with("POST /ended?token=of-the-receiver "), "{each:?}");
        each.is_signed()?;
        let message: serde_json::Value = serde_json::from_str(&each.body)?;
        ensure!(message["type"] == "run.ended" && message["data"]["run"] == "eval", "{message}");
        ensure!(message["data"]["state"] == "finished", "{message}");
        ensure!(message["data"]["done"] == "20", "{message}");
    }
    fleet.start_member(&old)?;
    fleet.verify()?;
    fleet.passed()
}
