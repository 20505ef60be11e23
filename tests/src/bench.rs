//! Runs `rolloutctl bench`, which starts a cluster itself, and returns what it prints.

use crate::{json_lines, output, program};
use anyhow::{Result, ensure};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Time limit of one benchmark on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a benchmark on a cluster of its own and returns its lines by kind; checks that it removes the cluster.
///
/// # Errors
/// It fails, or leaves something behind.
pub fn measured(args: &[&str]) -> Result<Vec<(String, Value)>> {
    let dir = tempfile::tempdir()?;
    let mut command = program("rolloutctl")?;
    command.args(["-o", "jsonl", "bench"]).args(args).arg("--work-dir").arg(dir.path());
    let lines = lines_of(command, args)?;
    let left = std::fs::read_dir(dir.path())?.count();
    ensure!(left == 0, "{args:?} leaves {left} directories behind");
    Ok(lines)
}

/// The same for a benchmark that starts no cluster and writes nothing.
///
/// # Errors
/// It fails.
pub fn measured_alone(args: &[&str]) -> Result<Vec<(String, Value)>> {
    let mut command = program("rolloutctl")?;
    command.args(["-o", "jsonl", "bench"]).args(args);
    lines_of(command, args)
}

fn lines_of(mut command: Command, args: &[&str]) -> Result<Vec<(String, Value)>> {
    command.env_remove("ROLLOUT_CONTEXT");
    let out = output(command, PATIENCE)?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{args:?}: {}: {stderr}", out.status);
    let lines = json_lines(&String::from_utf8_lossy(&out.stdout)).into_iter();
    Ok(lines
        .map(|l| (l["kind"].as_str().unwrap_or_default().to_owned(), l["data"].clone()))
        .collect())
}

/// The kinds of the lines, in order.
pub fn kinds(lines: &[(String, Value)]) -> Vec<&str> {
    lines.iter().map(|(kind, _)| kind.as_str()).collect()
}

/// Fails if a figure of a line shows that nothing was measured.
///
/// # Errors
/// It is zero, or missing.
pub fn positive(data: &Value, key: &str) -> Result<()> {
    ensure!(data[key].as_f64().is_some_and(|n| n > 0.0), "{key} of {data}");
    Ok(())
}
