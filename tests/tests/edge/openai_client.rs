//! The stock `openai` client at three members: all of its calls for files, uploads and batches, every answer compared
//! with the client's own types, and every error. The scenarios are in `tests/api`.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, WorkerOptions, eventually, output};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit for downloading and installing the client.
const SETUP_MAX: Duration = Duration::from_secs(300);
/// Time limit for all scenarios of one test.
const SCENARIOS_MAX: Duration = Duration::from_secs(400);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("api").join(name)
}

/// The interpreter that has the client. The first call on a machine installs it.
fn interpreter() -> Result<PathBuf> {
    let mut command = Command::new("bash");
    command.arg(script("setup.sh"));
    let made = output(command, SETUP_MAX)?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(PathBuf::from(String::from_utf8(made.stdout)?.trim()))
}

/// A fleet with a worker for each of the models `fast` and `slow`, which runs two rows a second.
fn served() -> Result<Fleet> {
    let mut fleet = Fleet::start(FleetOptions { api: true, ..FleetOptions::default() })?;
    let fast = "kind = \"mock\"\nslots = 2\nconcurrency = 4\nmodels = [\"fast\"]\n";
    let slow = "kind = \"mock\"\nslots = 1\nconcurrency = 1\nmodels = [\"slow\"]\n\
                latency_ms_min = 500\nlatency_ms_max = 500\n";
    for (name, engine) in [("w1", fast), ("w2", slow)] {
        fleet.start_worker(name, &WorkerOptions { engine: engine.into(), head: String::new() })?;
    }
    eventually("both workers are registered", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        (list["workers"].as_array()?.len() == 2).then_some(())
    });
    Ok(fleet)
}

/// The members' URLs, and API keys, for the scenarios.
fn config(fleet: &Fleet) -> Result<PathBuf> {
    fleet.ctl_json(&["namespace", "set-quota", "team", "--create", "--runs-max", "8"])?;
    let mut keys = Map::new();
    for (name, args) in [
        ("user", &[][..]),
        ("viewer", &["--role", "viewer"]),
        ("slow", &["--requests-per-second", "1"]),
        ("limited", &["--open-batches", "1"]),
        ("team", &["--namespace", "team"]),
    ] {
        keys.insert(name.into(), fleet.create_api_key(name, args)?.text.into());
    }
    let names = fleet.member_names();
    let members: Vec<_> = names.iter().map(|name| fleet.api_url(name)).collect();
    let path = fleet.path("api.json");
    std::fs::write(&path, json!({ "members": members, "keys": keys }).to_string())?;
    Ok(path)
}

/// Runs scenarios one after another.
fn pass(scenarios: &[&str]) -> Result<()> {
    let interpreter = interpreter()?;
    let fleet = served()?;
    let mut command = Command::new(interpreter);
    command.arg("-B").arg(script("acceptance.py")).args(scenarios);
    command.env("ROLLOUT_API_TEST", config(&fleet)?).env("SSL_CERT_FILE", fleet.ca_file());
    // Settings of this machine's user.
    for name in ["OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"] {
        command.env_remove(name);
    }
    let ran = output(command, SCENARIOS_MAX)?;
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    ensure!(ran.status.success(), "{said}{errors}");
    ensure!(said.lines().count() == scenarios.len(), "{said}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn files_and_uploads_work_unchanged() -> Result<()> {
    pass(&["models", "files", "uploads", "asynchronous_files"])
}

#[test]
fn batches_work_unchanged() -> Result<()> {
    pass(&["completed", "other_endpoints", "repeated", "listed", "asynchronous_batches"])
}

#[test]
fn batches_that_do_not_complete_say_why() -> Result<()> {
    pass(&["failed_rows", "invalid_file", "cancelled", "expired"])
}

#[test]
fn each_error_is_the_exception_that_the_client_has_for_it() -> Result<()> {
    pass(&["wrong_requests", "conflicts", "limits"])
}
