//! Batches of the HTTP API: whichever process dies, the output has every line of the file once, in its order.

use anyhow::{Context, Result, ensure};
use rollout_tests::{ApiKey, Fleet, FleetOptions, WorkerOptions, eventually, eventually_or_show};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(240);
const LINES: usize = 2000;
/// Bytes in each line that the mock engine does not answer with, so that validation takes a while.
const PADDING: usize = 50_000;
const ENDPOINT: &str = "/v1/chat/completions";

/// A client of any member.
struct Api {
    runtime: Runtime,
    client: reqwest::Client,
    key: ApiKey,
}

impl Api {
    fn new(fleet: &Fleet) -> Result<Self> {
        let authority = reqwest::Certificate::from_pem(&std::fs::read(fleet.ca_file())?)?;
        let client = reqwest::Client::builder().add_root_certificate(authority).timeout(PATIENCE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, client: client.build()?, key: fleet.create_api_key("batches", &[])? })
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<String> {
        let request = request.bearer_auth(&self.key.text);
        self.runtime.block_on(async {
            let response = request.send().await?;
            let (status, text) = (response.status(), response.text().await?);
            ensure!(status.is_success(), "{status}: {text}");
            Ok(text)
        })
    }

    fn get(&self, fleet: &Fleet, member: &str, path: &str) -> Result<String> {
        self.send(self.client.get(format!("{}{path}", fleet.api_url(member))))
    }

    /// Stores a file, and returns its id.
    fn upload(&self, fleet: &Fleet, member: &str, text: &str) -> Result<String> {
        const BOUNDARY: &str = "a-boundary-that-no-line-contains";
        let body = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{text}\r\n--{BOUNDARY}--\r\n"
        );
        let request = self
            .client
            .post(format!("{}/files", fleet.api_url(member)))
            .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"))
            .body(body);
        let file: Value = serde_json::from_str(&self.send(request)?)?;
        Ok(file["id"].as_str().context("no id")?.to_owned())
    }

    /// Creates a batch, and returns its id.
    fn create(&self, fleet: &Fleet, member: &str, file: &str) -> Result<String> {
        let request =
            json!({ "input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h" });
        let request = self.client.post(format!("{}/batches", fleet.api_url(member))).json(&request);
        let batch: Value = serde_json::from_str(&self.send(request)?)?;
        Ok(batch["id"].as_str().context("no id")?.to_owned())
    }

    fn batch(&self, fleet: &Fleet, member: &str, id: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(fleet, member, &format!("/batches/{id}"))?)?)
    }

    /// Waits until a batch, as a member shows it, is as wanted.
    fn until(
        &self,
        fleet: &Fleet,
        member: &str,
        id: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually_or_show("the batch goes on", PATIENCE, |seen| {
            let batch = self.batch(fleet, member, id).ok()?;
            *seen = batch.to_string();
            wanted(&batch).then_some(batch)
        })
    }
}

/// A file whose lines ask for different answers.
fn input() -> Result<String> {
    let padding = "p".repeat(PADDING);
    let mut text = String::new();
    for number in 0..LINES {
        let messages = json!([
            { "role": "system", "content": padding },
            { "role": "user", "content": format!("say {number}") },
        ]);
        let body = json!({ "model": "org/m1", "messages": messages });
        let line = json!({
            "custom_id": format!("row-{number}"), "method": "POST", "url": ENDPOINT, "body": body,
        });
        writeln!(text, "{line}")?;
    }
    Ok(text)
}

/// Waits until a member begins to validate a batch, and returns its name.
fn owner(fleet: &Fleet, id: &str) -> String {
    eventually("a member validates the batch", PATIENCE, || {
        fleet.member_names().into_iter().find(|name| {
            let log = std::fs::read_to_string(fleet.path(&format!("{name}.log")));
            log.is_ok_and(|log| {
                log.lines().any(|line| {
                    line.contains("working on a batch")
                        && line.contains("Validate")
                        && line.contains(id)
                })
            })
        })
    })
}

fn other_than(fleet: &Fleet, names: &[&str]) -> Result<String> {
    let mut members = fleet.member_names().into_iter();
    members.find(|name| !names.contains(&name.as_str())).context("a member")
}

#[test]
fn the_deaths_of_a_batchs_owner_and_of_the_leader_lose_and_double_no_line() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { api: true, ..FleetOptions::default() })?;
    for worker in ["w1", "w2"] {
        let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 8\nmodels = [\"org/m1\"]\n\
                      latency_ms_min = 100\nlatency_ms_max = 300\n";
        fleet
            .start_worker(worker, &WorkerOptions { engine: engine.into(), head: String::new() })?;
    }
    let api = Api::new(&fleet)?;
    let leader = fleet.leader();
    eventually("the workers serve the endpoint", PATIENCE, || {
        let models = api.get(&fleet, &leader, "/models").ok()?;
        models.contains("org/m1").then_some(())
    });
    let file = api.upload(&fleet, &leader, &input()?)?;
    let id = api.create(&fleet, &leader, &file)?;

    let owner = owner(&fleet, &id);
    fleet.kill_member(&owner);
    let witness = other_than(&fleet, &[&owner])?;
    let batch = api.batch(&fleet, &witness, &id)?;
    ensure!(batch["status"] == "validating", "its validation was not interrupted: {batch}");
    fleet.start_member(&owner)?;

    let running = |batch: &Value| batch["request_counts"]["completed"].as_u64() > Some(100);
    api.until(&fleet, &witness, &id, running);
    let leader = fleet.leader();
    fleet.kill_member(&leader);
    let witness = other_than(&fleet, &[&leader])?;
    let batch = api.batch(&fleet, &witness, &id)?;
    ensure!(batch["status"] == "in_progress", "its rows had run when the leader died: {batch}");
    fleet.start_member(&leader)?;

    let batch = api.until(&fleet, &witness, &id, |batch| batch["completed_at"].is_u64());
    let all = json!({ "total": LINES, "completed": LINES, "failed": 0 });
    ensure!(batch["request_counts"] == all, "{batch}");
    ensure!(batch["error_file_id"].is_null(), "{batch}");
    let output = batch["output_file_id"].as_str().context("no output")?;
    let output = api.get(&fleet, &witness, &format!("/files/{output}/content"))?;
    ensure!(output.lines().count() == LINES, "{} lines", output.lines().count());
    for (number, line) in output.lines().enumerate() {
        let line: Value = serde_json::from_str(line)?;
        ensure!(line["custom_id"] == format!("row-{number}"), "line {number}: {line}");
        ensure!(line["response"]["status_code"] == 200, "{line}");
        let answer = &line["response"]["body"]["choices"][0]["message"]["content"];
        ensure!(*answer == format!("MOCK:say {number}"), "{line}");
    }
    fleet.verify()?;
    fleet.passed()
}
