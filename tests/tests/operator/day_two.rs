//! Occasional tasks of an operator: forming a cluster, adding a learner, moving a member, looking up an error.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, eventually, eventually_or_show, output, program};
use serde_json::Value;
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks one process to form a cluster of these members.
fn bootstrap(fleet: &Fleet, asked: &str, members: &[&str], store: &str) -> Result<Output> {
    let mut command = fleet.program("rolloutctl");
    let tls = fleet.path("tls");
    command.env_remove("ROLLOUT_CONTEXT");
    command.args(["-o", "json", "--timeout", "30s", "-e", fleet.client_addr(asked)]);
    command.arg("--ca-cert").arg(tls.join("ca.pem"));
    command.arg("--cert").arg(tls.join("admin-operator.pem"));
    command.arg("--key").arg(tls.join("admin-operator.key"));
    command.args(["cluster", "bootstrap", "--store", store]);
    for name in members {
        let (peer, client) = (fleet.peer_addr(name), fleet.client_addr(name));
        command.arg("--member").arg(format!("{name}={peer},{client},z{name}"));
    }
    output(command, PATIENCE)
}

fn refused(out: &Output, status: i32, words: &[&str]) -> Result<()> {
    let stderr = text(&out.stderr);
    ensure!(out.status.code() == Some(status), "{out:?}");
    ensure!(words.iter().all(|word| stderr.contains(word)), "no {words:?} in {stderr}");
    Ok(())
}

#[test]
fn a_cluster_is_formed_once_and_refused_where_any_member_has_data() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let before = fleet.ctl_json(&["status"])?;
    let store = fleet.store_url();
    let again = bootstrap(&fleet, "c2", &["c1", "c2", "c3"], &store)?;
    ensure!(again.status.success(), "the same once more: {again:?}");
    let told: Value = serde_json::from_slice(&again.stdout)?;
    let told = &told["data"];
    ensure!(told["created"] == false && told["clusterId"] == before["clusterId"], "{told}");

    fleet.start_waiting("c4")?;
    let waits = |fleet: &Fleet| {
        fleet.http("c4", "/readyz").ok().filter(|(status, _)| *status == 503).map(|(_, said)| said)
    };
    eventually("it waits", PATIENCE, || waits(&fleet));
    // First ask a member that has data, then an empty one that would start a second cluster with it.
    refused(&bootstrap(&fleet, "c1", &["c1", "c4"], &store)?, 5, &["RO-1007"])?;
    let split = bootstrap(&fleet, "c4", &["c1", "c4"], &store)?;
    refused(&split, 5, &["RO-1007", "member c1 is part of cluster", "has data"])?;
    let elsewhere = bootstrap(&fleet, "c1", &["c1", "c2", "c3"], "file:///elsewhere")?;
    refused(&elsewhere, 1, &["RO-4001", "file:///elsewhere"])?;
    // None of that left a trace, especially not on the empty one: it can form a cluster of its own.
    let said = waits(&fleet).context("it still waits")?;
    ensure!(said.starts_with("waiting"), "{said}");
    let after = fleet.ctl_json(&["status"])?;
    let same = |key: &str| before[key] == after[key];
    ensure!(same("clusterId") && same("voters"), "{before}\n{after}");
    let own = bootstrap(&fleet, "c4", &["c4"], &store)?;
    ensure!(own.status.success(), "{own:?}");
    let own: Value = serde_json::from_slice(&own.stdout)?;
    ensure!(own["data"]["clusterId"] != before["clusterId"], "{own}");
    fleet.member_is_gone("c4");
    fleet.verify()?;
    fleet.passed()
}

/// A member as it is described.
fn described(fleet: &Fleet, name: &str) -> Option<Value> {
    fleet.ctl_json(&["--timeout", "5s", "member", "describe", name]).ok()
}

#[test]
fn a_learner_can_change_its_record_and_gets_its_vote_on_request() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_waiting("c4")?;
    eventually("it is listed", PATIENCE, || {
        let out = fleet.member_joins(&["add", "c4", "--learner-only"], "c4").ok()?;
        out.status.success().then_some(())
    });
    let learner = described(&fleet, "c4").context("c4")?;
    ensure!(learner["role"] == "learner" && learner["zone"] == "c4", "{learner}");
    let shown = text(&fleet.ctl(&["member", "describe", "c4"])?.stdout);
    ensure!(shown.contains("Role") && shown.contains(fleet.peer_addr("c4")), "{shown}");

    let update = ["member", "update", "c4", "--zone", "elsewhere"];
    let updated = fleet.ctl(&update)?;
    ensure!(updated.status.success(), "{updated:?}");
    let moved = described(&fleet, "c4").context("c4")?;
    ensure!(moved["zone"] == "elsewhere" && moved["peerAddr"] == learner["peerAddr"], "{moved}");
    let status = fleet.ctl_json(&["status"])?;
    ensure!(status["voters"] == 3, "a learner is no voter: {status}");

    for time in ["first", "second"] {
        let promoted = fleet.ctl(&["member", "promote", "c4"])?;
        ensure!(promoted.status.success(), "{time}: {promoted:?}");
    }
    eventually_or_show("it has its vote", PATIENCE, |seen| {
        let status = fleet.ctl_json(&["status"]).ok()?;
        *seen = status.to_string();
        (status["voters"] == 4 && status["votersReachable"] == 4).then_some(())
    });
    ensure!(described(&fleet, "c4").context("c4")?["zone"] == "elsewhere");
    for verb in ["promote", "describe"] {
        refused(&fleet.ctl(&["member", verb, "c9"])?, 4, &["c9"])?;
    }
    refused(&fleet.ctl(&["member", "update", "c9", "--zone", "x"])?, 4, &["c9"])?;

    // The storage of all four is reported.
    let stats = fleet.ctl_json(&["storage", "stats"])?;
    let names =
        stats["members"].as_array().into_iter().flatten().filter(|m| m["problem"].is_null());
    let names: Vec<&str> = names.filter_map(|m| m["name"].as_str()).collect();
    ensure!(names == ["c1", "c2", "c3", "c4"], "{stats}");
    let shown = text(&fleet.ctl(&["storage", "stats"])?.stdout);
    ensure!(shown.starts_with("MEMBER") && shown.lines().count() == 5, "{shown}");
    fleet.verify()?;
    fleet.passed()
}

/// Runs a program that contacts no member.
fn alone(args: &[&str]) -> Result<Output> {
    let mut command = program("rolloutctl")?;
    command.env_remove("ROLLOUT_CONTEXT").args(args);
    output(command, PATIENCE)
}

#[test]
fn a_command_without_a_context_says_how_to_name_one_and_which_is_near() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (dev, below) = (dir.path().join(".rollout/dev"), dir.path().join("a b"));
    for path in [&dev, &below] {
        std::fs::create_dir_all(path)?;
    }
    for (name, file) in [("rolloutctl", "admin.toml"), ("rollout", "client.toml")] {
        std::fs::write(dev.join(file), "")?;
        let mut command = program(name)?;
        let args: &[&str] = if name == "rollout" { &["verify", "r"] } else { &["status"] };
        command.env_remove("ROLLOUT_CONTEXT").env("XDG_CONFIG_HOME", dir.path());
        command.current_dir(&below).args(args);
        let said = output(command, PATIENCE)?;
        let text = text(&said.stderr);
        ensure!(said.status.code() == Some(2), "{said:?}");
        ensure!(text.contains("set ROLLOUT_CONTEXT to a context file"), "{text}");
        ensure!(text.contains("export ROLLOUT_CONTEXT=") && text.contains(file), "{text}");
    }
    Ok(())
}

#[test]
fn errors_and_manual_pages_are_read_without_a_cluster() -> Result<()> {
    let list = alone(&["errors", "list", "-o", "jsonl"])?;
    ensure!(list.status.success(), "{list:?}");
    let codes: Vec<String> = rollout_tests::json_lines(&text(&list.stdout))
        .iter()
        .filter_map(|line| line["data"]["code"].as_str().map(str::to_owned))
        .collect();
    ensure!(codes.len() > 20, "{codes:?}");
    for code in &codes {
        let page = alone(&["errors", "explain", code])?;
        let stdout = text(&page.stdout);
        ensure!(
            page.status.success() && stdout.starts_with(&format!("# {code}")),
            "{code}: {stdout}"
        );
    }
    let short = alone(&["errors", "explain", codes[0].trim_start_matches("RO-")])?;
    ensure!(text(&short.stdout).starts_with(&format!("# {}", codes[0])), "{short:?}");
    refused(&alone(&["errors", "explain", "RO-9999"])?, 4, &["RO-9999", "rolloutctl errors list"])?;

    let dir = tempfile::tempdir()?;
    for (program, page) in [("rolloutctl", "rolloutctl-member-replace.1"), ("rollout", "rollout.1")]
    {
        let first = text(&alone(&["man", "--program", program])?.stdout);
        ensure!(first.to_lowercase().contains(&format!(".th {program} 1")), "{first}");
        let dir = dir.path().to_str().context("a path")?;
        let written = alone(&["man", "--program", program, "--dir", dir])?;
        ensure!(written.status.success(), "{written:?}");
        let page = std::fs::read_to_string(format!("{dir}/{page}"))?;
        ensure!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    Ok(())
}
