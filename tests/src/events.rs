//! Readers of events, as started by `rolloutctl events`, and the events that they print.

use crate::fleet::Fleet;
use crate::process::Process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

/// The JSON lines of a text; other lines are skipped.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The position of an event.
pub fn place(event: &Value) -> (u64, u64) {
    let index = event["index"].as_str().and_then(|i| i.parse().ok());
    (index.unwrap_or_default(), event["position"].as_u64().unwrap_or_default())
}

impl Fleet {
    /// Starts `rolloutctl events --follow` with these arguments; it prints to that log.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn follow_events(&self, log: &str, args: &[&str]) -> Result<Process> {
        let mut command = self.program("rolloutctl");
        command.arg("--context").arg(self.path("operator.toml"));
        command.args(["events", "--follow", "-o", "json", "--timeout", "60s"]).args(args);
        Process::start(command, &self.path(log))
    }

    /// The present events.
    ///
    /// # Errors
    /// What `rolloutctl events` says.
    pub fn events(&self, args: &[&str]) -> Result<Vec<Value>> {
        let mut all = vec!["events", "-o", "jsonl"];
        all.extend(args);
        let out = self.ctl(&all)?;
        ensure!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        let lines = json_lines(&String::from_utf8_lossy(&out.stdout)).into_iter();
        Ok(lines.map(|line| line["data"].clone()).collect())
    }
}

/// The events of a follower's log so far.
pub fn logged_events(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    json_lines(whole).into_iter().map(|line| line["data"].clone()).collect()
}

/// Checks that events are in the order of their positions, each once.
///
/// # Errors
/// The first two that are not.
pub fn check_order(events: &[Value]) -> Result<()> {
    let wrong = events.windows(2).find(|pair| place(&pair[0]) >= place(&pair[1]));
    match wrong {
        Some(pair) => Err(anyhow::anyhow!("{} before {}", pair[0], pair[1])),
        None => Ok(()),
    }
}

/// The first event of a kind that `look` accepts.
///
/// # Errors
/// When there is no such event.
pub fn find_event<'a>(
    events: &'a [Value],
    kind: &str,
    look: impl Fn(&Value) -> bool,
) -> Result<&'a Value> {
    let found = events.iter().find(|event| event["kind"] == kind && look(event));
    found.with_context(|| {
        let of_kind: Vec<_> = events.iter().filter(|event| event["kind"] == kind).collect();
        format!("no such event among {of_kind:?}")
    })
}
