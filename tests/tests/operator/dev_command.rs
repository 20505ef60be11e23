//! `rollout dev` as users run it: in the background, in a directory with a space, a second time, its logs, and with a
//! model server.

use anyhow::{Result, ensure};
use rollout_tests::{ModelServer, output, program};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(150);

fn dev(root: &Path, args: &[&str]) -> Result<Output> {
    let mut command = program("rollout")?;
    command.env_remove("ROLLOUT_CONTEXT").env("XDG_STATE_HOME", root.join("state"));
    command.arg("dev").args(args).arg("--dir").arg(root.join("a b"));
    output(command, PATIENCE)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stops the cluster, however the test ends.
struct Stopped<'a>(&'a Path);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = dev(self.0, &["stop"]);
    }
}

#[test]
fn a_local_cluster_is_found_again_and_its_commands_may_be_pasted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let stopped = Stopped(dir.path());
    let flags = ["--detach", "--members", "1", "--workers", "1", "--slots", "1"];
    let first = dev(dir.path(), &flags)?;
    ensure!(first.status.success(), "{first:?}");
    let second = dev(dir.path(), &flags)?;
    ensure!(second.status.success(), "{second:?}");
    let commands = |said: &Output| {
        let said = text(&said.stderr);
        said.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    ensure!(commands(&first) == commands(&second), "{first:?} {second:?}");

    // Run the commands in a shell as printed; replace the programs by those that this test finds.
    let rolloutctl = program("rolloutctl")?;
    let pasted: String = commands(&second)
        .iter()
        .filter(|line| line.contains("export ") || line.contains("status"))
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let script = format!(
        "rolloutctl() {{ \"$PROGRAM\" \"$@\"; }}\nset -e\n{pasted}test -f \"$ROLLOUT_CONTEXT\"\n"
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).env("PROGRAM", rolloutctl.get_program());
    let said = output(shell, PATIENCE)?;
    ensure!(said.status.success() && text(&said.stdout).contains("c1"), "{said:?}");

    let listed = text(&dev(dir.path(), &["list"])?.stdout);
    ensure!(listed.contains("a b") && listed.contains("ready"), "{listed}");
    let logs = dev(dir.path(), &["logs", "c1", "--lines", "3"])?;
    ensure!(logs.status.success() && !logs.stdout.is_empty(), "{logs:?}");
    let unknown = dev(dir.path(), &["logs", "c9"])?;
    ensure!(text(&unknown.stderr).contains("known are c1, dev, w1"), "{unknown:?}");
    drop(stopped);
    let listed = text(&dev(dir.path(), &["list"])?.stdout);
    ensure!(listed.contains("stopped"), "{listed}");
    Ok(())
}

#[test]
fn a_killed_leader_is_succeeded_and_a_name_without_a_process_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _stopped = Stopped(dir.path());
    let without = dev(dir.path(), &["kill", "leader"])?;
    ensure!(
        !without.status.success() && text(&without.stderr).contains("there is no cluster"),
        "{without:?}"
    );
    let started = dev(dir.path(), &["--detach", "--workers", "1", "--slots", "1"])?;
    ensure!(started.status.success(), "{started:?}");
    let killed = dev(dir.path(), &["kill", "leader"])?;
    let said = text(&killed.stderr);
    ensure!(killed.status.success(), "{killed:?}");
    ensure!(
        said.contains(", the leader of epoch ") && said.contains(" ms after the kill"),
        "{said}"
    );
    let worker = dev(dir.path(), &["kill", "w1"])?;
    ensure!(
        worker.status.success() && text(&worker.stderr).starts_with("killed w1 (pid "),
        "{worker:?}"
    );
    let unknown = dev(dir.path(), &["kill", "c9"])?;
    ensure!(
        !unknown.status.success() && text(&unknown.stderr).contains("no process c9 runs"),
        "{unknown:?}"
    );
    Ok(())
}

/// A command of `rollout` as the user of the local cluster.
fn as_user(root: &Path, args: &[&str]) -> Result<Output> {
    let mut command = program("rollout")?;
    command.env("ROLLOUT_CONTEXT", root.join("a b").join("client.toml"));
    command.env("XDG_STATE_HOME", root.join("state")).args(args);
    output(command, PATIENCE)
}

#[test]
fn a_batch_runs_from_rollout_dev_to_its_output_on_a_server_of_the_openai_api() -> Result<()> {
    const ROWS: u64 = 300;
    let dir = tempfile::tempdir()?;
    let root = dir.path();
    let without = dev(root, &["--detach", "--engine", "openai"])?;
    let stderr = text(&without.stderr);
    ensure!(without.status.code() == Some(2) && stderr.contains("--openai-url"), "{without:?}");
    let server = ModelServer::start()?;
    let stopped = Stopped(root);
    // The URL may have the `/v1` of the API, as servers print it.
    let url = format!("{}/v1", server.url());
    let engine = ["--engine", "openai", "--openai-url", &url, "--model", "mock/tiny"];
    let size = ["--detach", "--members", "1", "--workers", "2", "--slots", "1"];
    let started = dev(root, &[&size[..], &engine].concat())?;
    ensure!(started.status.success(), "{started:?}");

    let (input, out) = (root.join("prompts.jsonl"), root.join("out"));
    let row = |row: u64| match row % 2 {
        0 => json!({"id": row, "prompt": format!("say {row}")}),
        _ => json!({"id": row, "messages": [{"role": "user", "content": format!("say {row}")}]}),
    };
    let lines: String = (0..ROWS).map(|n| format!("{}\n", row(n))).collect();
    std::fs::write(&input, lines)?;
    let config = root.join("batch.toml");
    let toml = format!(
        "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16\n[input]\nglob = {input:?}\n\
         [output]\ndir = {out:?}\n[run]\nname = \"first\"\n"
    );
    std::fs::write(&config, toml)?;
    let config = config.to_string_lossy().into_owned();
    let ended = as_user(root, &["infer", "batch", "--config", &config, "--timeout", "60s"])?;
    ensure!(ended.status.success(), "{ended:?}");
    let written = std::fs::read_to_string(out.join("completions.jsonl"))?;
    let written: Vec<Value> =
        written.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(written.len() as u64 == ROWS, "{} rows", written.len());
    for (row, line) in written.iter().enumerate() {
        ensure!(line["id"] == row && line["completion"] == format!("MOCK:say {row}"), "{line}");
    }
    let answered = server.answered();
    ensure!(answered.len() as u64 == ROWS && answered.values().all(|n| *n == 1), "{answered:?}");
    let out = out.to_string_lossy().into_owned();
    let verified = as_user(root, &["verify", "first", "--output", &out])?;
    ensure!(verified.status.success(), "{verified:?}");
    drop(stopped);
    Ok(())
}
