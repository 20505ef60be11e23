//! Every action is audited with its actor, and one trace id connects the logs of all processes.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, output};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn of<'a>(lines: &'a [Value], method: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["method"] == method).collect()
}

/// Runs `rolloutctl` with a context and within the trace.
fn ctl(fleet: &Fleet, context: &str, args: &[&str]) -> Result<std::process::Output> {
    let mut command = fleet.program("rolloutctl");
    command.env("TRACEPARENT", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    command.arg("--context").arg(fleet.path(context)).args(args);
    output(command, PATIENCE)
}

#[test]
fn every_change_and_every_forbidden_request_is_in_the_audit_with_the_trace_that_the_logs_have()
-> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("audit.log");
    // For the test, all three append to one file; none of them rotates it.
    let line: &'static str = Box::leak(format!("file = {file:?}").into_boxed_str());
    let member_lines = vec![("audit", line)];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "eval", 50, "")?;
    batch.finish(&fleet)?;

    let drained = ctl(&fleet, "operator.toml", &["worker", "cordon", "w1", "--reason", "a test"])?;
    ensure!(drained.status.success(), "{drained:?}");
    let quota = ["namespace", "set-quota", "default", "--runs-max", "7"];
    let bounded = ctl(&fleet, "operator.toml", &quota)?;
    ensure!(bounded.status.success(), "{bounded:?}");
    let forbidden = ctl(&fleet, "user.toml", &["worker", "cordon", "w1"])?;
    ensure!(forbidden.status.code() == Some(7), "{forbidden:?}");
    let unknown = ctl(&fleet, "operator.toml", &["run", "delete", "nobody", "--yes"])?;
    ensure!(unknown.status.code() == Some(4), "{unknown:?}");

    let all = lines(&file);
    let created = of(&all, "Runs/CreateRun");
    let created = created.first().context("no line of the run's creation")?;
    ensure!(created["identity"] == "client/user" && created["outcome"] == "applied", "{created}");
    ensure!(created["subject"] == "run/eval" && created["namespace"] == "default", "{created}");
    ensure!(created["request"].is_string() && created["index"].is_string(), "{created}");
    ensure!(of(&all, "Cluster/Bootstrap").iter().any(|l| l["identity"] == "admin/operator"));
    ensure!(of(&all, "Runs/DescribeRun").is_empty() && of(&all, "Worker/Work").is_empty());

    let quotas = of(&all, "Namespaces/SetQuota");
    let quota = quotas.first().context("no line of the quota")?;
    ensure!(quota["subject"] == "namespace/default" && quota["outcome"] == "applied", "{quota}");
    ensure!(quota["request"].is_string() && quota["index"].is_string(), "{quota}");

    let cordons = of(&all, "Cluster/CordonWorker");
    let by = |who: &str| cordons.iter().find(|line| line["identity"] == who).copied();
    let cordon = by("admin/operator").context("no line of the cordon")?;
    ensure!(cordon["subject"] == "worker/w1" && cordon["traceId"] == TRACE, "{cordon}");
    let refused = by("client/user").context("no line of the forbidden cordon")?;
    ensure!(refused["outcome"] == "refused" && refused["code"] == "RO-3002", "{refused}");
    let deletes = of(&all, "Runs/DeleteRun");
    // Not found before the request, or refused: in both cases nothing was deleted.
    ensure!(deletes.iter().all(|line| line["outcome"] == "refused"), "{deletes:?}");

    // The leader's own log line about the cordon has the same trace.
    let leader = fleet.leader();
    let log = lines(&fleet.path(&format!("{leader}.log")));
    let told = log.iter().find(|line| line["message"] == "worker cordon changed");
    let told = told.context("no line in the log")?;
    ensure!(told["span"]["trace_id"] == TRACE, "{told}");
    // A registration's lines at the worker and in the audit also share a trace.
    let worker = fleet.path("worker-w1.log");
    let registered = eventually("the worker has told of it", PATIENCE, || {
        lines(&worker).into_iter().find(|line| line["fields"]["message"] == "registered")
    });
    let trace = &registered["span"]["trace_id"];
    let registrations = of(&all, "Worker/Register");
    ensure!(
        trace.is_string() && registrations.iter().any(|line| line["traceId"] == *trace),
        "{trace} is in none of {registrations:?}"
    );
    fleet.passed()
}
