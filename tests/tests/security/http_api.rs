//! OpenAI's HTTP API at three members: whichever one a caller reaches, it gets the same answers, and no key is accepted
//! after its end.

use anyhow::{Context, Result, ensure};
use reqwest::header::HeaderMap;
use rollout_tests::{ApiKey, Fleet, FleetOptions, WorkerOptions, eventually, eventually_or_show};
use serde_json::Value;
use std::time::Duration;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);
/// From the end of a key to its refusal by all members, as docs/api.md promises.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// A caller with the cluster's authority and no certificate of its own.
struct Caller {
    runtime: Runtime,
    client: reqwest::Client,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Caller {
    fn new(fleet: &Fleet) -> Result<Self> {
        let authority = std::fs::read(fleet.ca_file())?;
        let authority = reqwest::Certificate::from_pem(&authority)?;
        let client = reqwest::Client::builder().add_root_certificate(authority).timeout(PATIENCE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, client: client.build()? })
    }

    /// Asks a member for the models.
    fn models(&self, fleet: &Fleet, member: &str, key: &str) -> Result<Answer> {
        let request = self.client.get(format!("{}/models", fleet.api_url(member))).bearer_auth(key);
        self.runtime.block_on(async {
            let response = request.send().await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Ok(Answer { status, headers, body: response.json().await? })
        })
    }
}

fn options() -> FleetOptions {
    FleetOptions { api: true, ..FleetOptions::default() }
}

fn code(answer: &Answer) -> &str {
    answer.body["error"]["code"].as_str().unwrap_or_default()
}

/// Waits until every member answers a key with this status and code.
fn every_member_refuses(fleet: &Fleet, caller: &Caller, key: &ApiKey) {
    eventually_or_show("every member refuses the key", REFUSED_WITHIN, |seen| {
        let answers = fleet.member_names().into_iter().map(|member| {
            let answer = caller.models(fleet, &member, &key.text).ok()?;
            Some((member, answer.status, code(&answer).to_owned()))
        });
        let answers: Vec<_> = answers.collect::<Option<_>>()?;
        *seen = format!("{answers:?}");
        answers
            .iter()
            .all(|(_, status, code)| (*status, &**code) == (401, "invalid_api_key"))
            .then_some(())
    });
}

#[test]
fn every_member_accepts_a_new_key_at_once_and_no_wrong_or_revoked_one() -> Result<()> {
    let mut fleet = Fleet::start(options())?;
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 4\nmodels = [\"org/m1\"]\n".into();
    fleet.start_worker("w1", &WorkerOptions { engine, head: String::new() })?;
    let (caller, leader) = (Caller::new(&fleet)?, fleet.leader());
    let key = fleet.create_api_key("first", &[])?;
    eventually("the leader lists the worker's model", PATIENCE, || {
        let answer = caller.models(&fleet, &leader, &key.text).ok()?;
        (answer.body["data"][0]["id"] == "org/m1").then_some(())
    });
    for member in fleet.member_names() {
        // Each key is used at once: no member may need time to learn of it.
        let key = fleet.create_api_key(&format!("key-{member}"), &[])?;
        let answer = caller.models(&fleet, &member, &key.text)?;
        ensure!(answer.status == 200, "{member}: {}: {}", answer.status, answer.body);
        ensure!(answer.body["data"][0]["id"] == "org/m1", "{member}: {}", answer.body);
        let id = answer.headers.get("x-request-id").context("no id")?;
        ensure!(id.to_str()?.starts_with("req_"), "{id:?}");
        // Another secret for an existing key, a key that does not exist, and another service's key.
        let end = if key.text.ends_with('a') { "b" } else { "a" };
        let other = format!("{}{end}", &key.text[..key.text.len() - 1]);
        let unknown = key.text.replacen(&key.id, "00000000", 1);
        for wrong in [other.as_str(), &unknown, "sk-proj-1"] {
            let answer = caller.models(&fleet, &member, wrong)?;
            ensure!(answer.status == 401, "{member}: {wrong}: {}", answer.status);
            ensure!(code(&answer) == "invalid_api_key", "{member}: {}", answer.body);
        }
    }
    let out = fleet.ctl(&["key", "revoke", &key.id])?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    every_member_refuses(&fleet, &caller, &key);
    fleet.passed()
}

#[test]
fn a_key_that_expires_is_refused_by_every_member() -> Result<()> {
    let fleet = Fleet::start(options())?;
    let caller = Caller::new(&fleet)?;
    let key = fleet.create_api_key("short", &["--expires", "2s"])?;
    let expired = || {
        let answers = fleet.member_names().into_iter();
        let mut answers = answers.map(|member| caller.models(&fleet, &member, &key.text));
        answers.all(|answer| answer.is_ok_and(|answer| answer.status == 401)).then_some(())
    };
    eventually("every member refuses the key", REFUSED_WITHIN + Duration::from_secs(2), expired);
    fleet.passed()
}

#[test]
fn the_death_of_the_leader_fails_no_request_at_other_members() -> Result<()> {
    let mut fleet = Fleet::start(options())?;
    let caller = Caller::new(&fleet)?;
    let key = fleet.create_api_key("user", &[])?;
    let leader = fleet.leader();
    let others: Vec<_> = fleet.member_names().into_iter().filter(|m| *m != leader).collect();
    // They are connected to the leader when it dies.
    for member in &others {
        ensure!(caller.models(&fleet, member, &key.text)?.status == 200, "{member}");
    }
    fleet.member_process(&leader).kill();
    for member in &others {
        let answer = caller.models(&fleet, member, &key.text)?;
        ensure!(answer.status == 200, "{member}: {}: {}", answer.status, answer.body);
    }
    fleet.passed()
}

#[test]
fn a_member_without_a_quorum_says_when_to_ask_again() -> Result<()> {
    let mut fleet = Fleet::start(options())?;
    let caller = Caller::new(&fleet)?;
    let key = fleet.create_api_key("user", &[])?;
    let names = fleet.member_names();
    let (alone, dead) = names.split_first().context("members")?;
    ensure!(caller.models(&fleet, alone, &key.text)?.status == 200, "{alone} serves");
    for member in dead {
        fleet.member_process(member).kill();
    }
    // If it leads, it answers until its lease has ended.
    eventually("the member refuses requests", PATIENCE, || {
        let answer = caller.models(&fleet, alone, &key.text).ok()?;
        (answer.status != 200).then_some(())
    });
    // A first request may wait for the next leader, and a later one is refused at once.
    for _ in 0..2 {
        let answer = caller.models(&fleet, alone, &key.text)?;
        ensure!(answer.status == 503, "{}: {}", answer.status, answer.body);
        ensure!(code(&answer) == "no_leader", "{}", answer.body);
        ensure!(answer.headers["retry-after-ms"] == "300", "{:?}", answer.headers);
    }
    fleet.passed()
}
