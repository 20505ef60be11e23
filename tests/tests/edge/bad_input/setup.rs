//! Runs commands, checks how they end, and prepares their input.

use anyhow::{Context, Result};
use rollout_tests::{Fleet, Process, WorkerOptions, eventually, output};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A row that a mock engine never finishes.
pub(crate) const HANGS: &str = r#"{"prompt":"MOCK_HANG"}"#;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct CommandOutcome {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutcome {
    /// Fails unless the exit status is `code` and stderr contains all of `said`.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for words in said {
            assert!(self.err.contains(words), "{words:?} is not said: {self:?}");
        }
    }
}

pub(crate) fn ended(command: Command) -> Result<CommandOutcome> {
    let out = output(command, Duration::from_secs(120))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(CommandOutcome { code: out.status.code(), out: text(&out.stdout), err: text(&out.stderr) })
}

pub(crate) fn ctl(fleet: &Fleet, args: &[&str]) -> Result<CommandOutcome> {
    let mut command = fleet.program("rolloutctl");
    command.arg("--context").arg(fleet.path("operator.toml")).args(args);
    ended(command)
}

/// Writes a batch file and its input; the lines of the input are given.
pub(crate) fn job(fleet: &Fleet, name: &str, input: &str, more: &str) -> Result<String> {
    let (path, out) = (fleet.path(&format!("{name}.jsonl")), fleet.path(&format!("{name}-out")));
    std::fs::write(&path, input)?;
    let config = fleet.path(&format!("{name}.batch.toml"));
    let text = format!(
        "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16\n[input]\nglob = {path:?}\n\
         [output]\ndir = {out:?}\n{more}"
    );
    std::fs::write(&config, text)?;
    Ok(config.to_string_lossy().into_owned())
}

pub(crate) fn batch(fleet: &Fleet, config: &str, more: &[&str]) -> Result<CommandOutcome> {
    let mut args = vec!["infer", "batch", "--config", config];
    args.extend(more);
    ended(fleet.rollout(&args))
}

pub(crate) fn runs(fleet: &Fleet) -> Result<usize> {
    let list = fleet.ctl_json(&["run", "list"])?;
    let runs = list.get("runs").unwrap_or(&list);
    Ok(runs.as_array().with_context(|| list.to_string())?.len())
}

pub(crate) fn run_state(fleet: &Fleet, name: &str) -> Option<(String, String)> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", name]).ok()?;
    let text = |key: &str| Some(run.get("run")?.get(key)?.as_str()?.to_owned());
    Some((text("state")?, text("reason").unwrap_or_default()))
}

/// `Some` if the run's count of this kind is `rows`.
pub(crate) fn counts(fleet: &Fleet, name: &str, what: &str, rows: &str) -> Option<()> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", name]).ok()?;
    (run["run"]["counts"][what] == rows).then_some(())
}

pub(crate) fn until_state(fleet: &Fleet, name: &str, state: &str) -> String {
    let what = format!("run {name} is {state}");
    eventually(&what, PATIENCE, || run_state(fleet, name).filter(|s| s.0 == state)).1
}

pub(crate) fn until_said(what: &str, process: &Process, words: &[&str]) -> String {
    eventually(what, PATIENCE, || {
        let log = std::fs::read_to_string(&process.log).unwrap_or_default();
        words.iter().all(|w| log.contains(w)).then_some(log)
    })
}

pub(crate) fn rows(name: &str, count: u64) -> String {
    (0..count).map(|n| format!("{{\"id\":\"{name}-{n}\",\"prompt\":\"say {n}\"}}\n")).collect()
}

pub(crate) fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

pub(crate) fn slow_worker() -> WorkerOptions {
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\n\
                  latency_ms_max = 40\n";
    WorkerOptions { engine: engine.into(), head: "[part]\nlinger_ms = 100\n".into() }
}
