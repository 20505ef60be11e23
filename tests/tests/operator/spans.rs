//! A collector gets the spans of all processes, with the ids that logs and callers have; no process waits for the
//! collector.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, CollectedSpan, Collector, Fleet, FleetOptions, WorkerOptions, eventually, free_addr,
    output,
};
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const UNSAMPLED: &str = "5bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A fleet of one member with these configuration lines.
fn alone(lines: String) -> Result<Fleet> {
    let member_lines = vec![("tracing", leaked(lines))];
    // The directory does not exist: the fleet starts empty.
    let alone = Some(std::env::temp_dir().join("rollout-no-such-directory"));
    Fleet::start(FleetOptions { member_lines, alone, ..FleetOptions::default() })
}

fn cordon(fleet: &Fleet, who: &str, trace: &str, flags: &str) -> Result<std::process::Output> {
    let mut command = fleet.program("rolloutctl");
    command.env("TRACEPARENT", format!("00-{trace}-{CALLER}-{flags}"));
    command.arg("--context").arg(fleet.path(who));
    command.args(["worker", "cordon", "w1", "--reason", "a test"]);
    output(command, PATIENCE)
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn metric(outcome: &str) -> String {
    format!("rollout_trace_spans_total{{outcome=\"{outcome}\"}}")
}

#[test]
fn spans_of_all_processes_have_the_ids_that_callers_and_logs_have() -> Result<()> {
    let collector = Collector::start()?;
    let line = format!("otlp_endpoint = {:?}", collector.endpoint());
    let member_lines = vec![("tracing", leaked(line.clone()))];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let head = format!("[tracing]\n{line}\n");
    fleet.start_worker("w1", &WorkerOptions { head, ..WorkerOptions::default() })?;
    Batch::submit(&fleet, "eval", 50, "")?.finish(&fleet)?;

    // Send the unsampled one first: it would arrive first.
    for (trace, flags) in [(UNSAMPLED, "00"), (TRACE, "01")] {
        let cordoned = cordon(&fleet, "operator.toml", trace, flags)?;
        ensure!(cordoned.status.success(), "{cordoned:?}");
    }
    let forbidden = cordon(&fleet, "user.toml", TRACE, "01")?;
    ensure!(forbidden.status.code() == Some(7), "{forbidden:?}");
    let leader = fleet.leader();
    let served = |refused: bool| {
        let name = "rollout.v1.Cluster/CordonWorker";
        move |s: &CollectedSpan| s.trace_id == TRACE && s.name == name && s.failed == refused
    };
    let request = eventually("the request's span", PATIENCE, || collector.find(served(false)));
    ensure!(request.service() == ("rollout-coordinator", leader.as_str()), "{request:?}");
    ensure!(request.parent_id == CALLER, "{request:?}");
    ensure!(request.attribute("rpc.grpc.status_code") == "0", "{request:?}");
    ensure!(request.attribute("rollout.caller") == "admin/operator", "{request:?}");
    ensure!(request.attribute("rpc.method") == "CordonWorker", "{request:?}");
    let commit = eventually("its commit's span", PATIENCE, || {
        collector.find(|s| s.name == "commit" && s.parent_id == request.span_id)
    });
    ensure!(commit.trace_id == TRACE, "{commit:?}");
    let index = commit.attribute("rollout.log_index");
    ensure!(!index.is_empty() && index == request.attribute("rollout.log_index"), "{commit:?}");
    let refused = eventually("the refused one's", PATIENCE, || collector.find(served(true)));
    ensure!(refused.attribute("rollout.code") == "RO-3002", "{refused:?}");
    ensure!(collector.find(|s| s.trace_id == UNSAMPLED).is_none(), "its caller does not record it");

    of_a_worker(&mut fleet, &collector)?;
    fleet.passed()
}

/// From a worker's connection to the request at the leader, each span names the one before it.
fn of_a_worker(fleet: &mut Fleet, collector: &Collector) -> Result<()> {
    let log = fleet.path("worker-w1.log");
    let registered = eventually("the worker has told of it", PATIENCE, || {
        lines(&log).into_iter().find(|line| line["fields"]["message"] == "registered")
    });
    let trace = registered["span"]["trace_id"].as_str().context("no trace id")?.to_owned();
    let stopped = fleet.worker_process("w1").terminate(PATIENCE)?;
    ensure!(stopped.success(), "{stopped}");
    // The remaining spans, including the connection's own, were sent before the process ended.
    let spans: Vec<_> = collector.spans().into_iter().filter(|s| s.trace_id == trace).collect();
    let one = |what: &str, is_it: &dyn Fn(&CollectedSpan) -> bool| {
        let found = spans.iter().find(|s| is_it(s)).cloned();
        found.with_context(|| format!("no span of {what} in {spans:#?}"))
    };
    let at_the_leader = "rollout.v1.Worker/Register";
    let by_the_worker = ("rollout-worker", "w1");
    let request = eventually("the registration at the leader", PATIENCE, || {
        collector.find(|s| s.trace_id == trace && s.name == at_the_leader && !s.failed)
    });
    ensure!(request.service().0 == "rollout-coordinator", "{request:?}");
    let attempt = one("the attempt", &|s| s.span_id == request.parent_id)?;
    let call = one("the call", &|s| s.span_id == attempt.parent_id)?;
    let connection = one("the connection", &|s| s.span_id == call.parent_id)?;
    for span in [&attempt, &call, &connection] {
        ensure!(span.service() == by_the_worker, "{span:?}");
    }
    ensure!((&*attempt.name, &*call.name) == ("register", "register"), "{attempt:?} {call:?}");
    ensure!(connection.name == "connection" && connection.parent_id.is_empty(), "{connection:?}");
    one("the stream's opening", &|s| s.name == "work" && s.parent_id == connection.span_id)?;
    Ok(())
}

#[test]
fn collectors_that_hang_or_are_away_harm_no_request() -> Result<()> {
    // It accepts connections and never answers.
    let hangs = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("http://{}", hangs.local_addr()?);
    let lines = format!("otlp_endpoint = {endpoint:?}\nqueue_spans_max = 8\ntimeout_ms = 300");
    let mut fleet = alone(lines)?;
    let head = format!("[tracing]\notlp_endpoint = \"http://{}\"\n", free_addr()?);
    fleet.start_worker("w1", &WorkerOptions { head, ..WorkerOptions::default() })?;
    Batch::submit(&fleet, "eval", 500, "")?.finish(&fleet)?;
    eventually("spans are dropped and fail, and are counted", PATIENCE, || {
        let listed = fleet.ctl(&["run", "list"]).ok()?;
        let counted = |outcome| fleet.counted("c1", &metric(outcome)).unwrap_or(0);
        assert!(listed.status.success(), "{listed:?}");
        (counted("dropped") > 0 && counted("failed") > 0).then_some(())
    });
    ensure!(fleet.counted("c1", &metric("exported")) == Some(0));
    let told = lines_with(&fleet.path("c1.log"), "spans cannot be exported");
    ensure!(told == 1, "reported {told} times");
    eventually("the worker tells of it", PATIENCE, || {
        (lines_with(&fleet.path("worker-w1.log"), "spans cannot be exported") == 1).then_some(())
    });
    let begun = Instant::now();
    let stopped = fleet.worker_process("w1").terminate(PATIENCE)?;
    ensure!(stopped.success(), "{stopped}");
    let stopped = fleet.member_process("c1").terminate(PATIENCE)?;
    ensure!(stopped.success(), "{stopped}");
    ensure!(begun.elapsed() < Duration::from_secs(20), "the end took {:?}", begun.elapsed());
    drop(hangs);
    fleet.passed()
}

fn lines_with(file: &Path, words: &str) -> usize {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains(words)).count()
}

#[test]
fn a_ratio_of_zero_sends_nothing_and_one_of_one_everything() -> Result<()> {
    for (ratio, some) in [("0.0", false), ("1.0", true)] {
        let collector = Collector::start()?;
        let endpoint = collector.endpoint();
        let mut fleet = alone(format!("otlp_endpoint = {endpoint:?}\nsample_ratio = {ratio}"))?;
        let refused = cordon(&fleet, "user.toml", TRACE, "01")?;
        ensure!(!refused.status.success(), "{refused:?}");
        // The remaining spans are sent before the process ends.
        let stopped = fleet.member_process("c1").terminate(PATIENCE)?;
        ensure!(stopped.success(), "{stopped}");
        let spans = collector.spans();
        ensure!(spans.is_empty() != some, "{ratio}: {spans:?}");
        ensure!(spans.iter().any(|s| s.trace_id == TRACE) == some, "{ratio}: {spans:?}");
        fleet.passed()?;
    }
    Ok(())
}

#[test]
fn an_endpoint_of_tls_is_refused_by_its_name() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("coordinator.toml");
    let text = "name = 'c1'\ndata_dir = '/x'\n[listen]\nclient = '127.0.0.1:1'\npeer = '127.0.0.1:2'\n\
                [tls]\ninsecure_plaintext = true\n[store]\nurl = 'file:///x'\n";
    std::fs::write(&file, text)?;
    let check = |variable: &str| {
        let mut command = rollout_tests::program("rollout-coordinator")?;
        command.arg("--config").arg(&file).arg("--check-config");
        command.env("ROLLOUT_OTLP_ENDPOINT", variable);
        output(command, PATIENCE)
    };
    for good in ["", "http://127.0.0.1:4317"] {
        let out = check(good)?;
        ensure!(out.status.success(), "{good:?}: {out:?}");
    }
    let out = check("https://collector.example:4317")?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.code() == Some(78) && stderr.contains("tracing.otlp_endpoint"), "{stderr}");
    Ok(())
}
