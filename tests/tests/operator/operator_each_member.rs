//! An operator's commands through each single member, and on the machine of a member before it serves.
//!
//! Invariant: every member answers every command, including those that only a leader can answer.

use anyhow::{Context, Result, ensure};
use rollout_proto::pki;
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, free_addr, output};
use serde_json::Value;
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const COMMAND_MAX: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `rolloutctl` with the contexts in a directory of the test, and no other settings.
fn own(fleet: &Fleet, args: &[&str]) -> Result<Output> {
    let mut command = fleet.program("rolloutctl");
    command.args(args).env("XDG_CONFIG_HOME", fleet.path("contexts"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROLLOUT_")) {
        command.env_remove(variable);
    }
    output(command, COMMAND_MAX)
}

/// The output of such a command, which must succeed.
fn ctl_output(fleet: &Fleet, args: &[&str]) -> Result<String> {
    let out = own(fleet, args)?;
    ensure!(out.status.success(), "{args:?}: {out:?}");
    Ok(text(&out.stdout))
}

fn data(fleet: &Fleet, args: &[&str]) -> Result<Value> {
    let all: Vec<&str> = ["-o", "json"].iter().chain(args).copied().collect();
    let mut value: Value = serde_json::from_str(&ctl_output(fleet, &all)?)?;
    Ok(value["data"].take())
}

/// Makes a context for each member, with its address only.
fn contexts(fleet: &Fleet) -> Result<()> {
    let tls = |name: &str| fleet.path("tls").join(name).to_string_lossy().into_owned();
    let (ca, cert, key) = (tls("ca.pem"), tls("admin-operator.pem"), tls("admin-operator.key"));
    for name in fleet.member_names() {
        let at = fleet.client_addr(&name);
        let flags = ["-e", at, "--ca-cert", &ca, "--cert", &cert, "--key", &key];
        let add: Vec<&str> = ["context", "add", &name].iter().chain(&flags).copied().collect();
        ctl_output(fleet, &add)?;
    }
    Ok(())
}

/// A run that no worker executes, so that it stays.
fn idle_run(fleet: &Fleet) -> Result<Batch> {
    let batch = Batch::submit(fleet, "eval", 50, "")?;
    batch.until(fleet, "its rows wait", |c| c.pending == 50);
    Ok(batch)
}

#[test]
fn each_member_alone_answers_whatever_an_operator_asks() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let _batch = idle_run(&fleet)?;
    contexts(&fleet)?;
    let listed = data(&fleet, &["context", "list"])?;
    ensure!(listed["contexts"].as_array().map(Vec::len) == Some(3), "{listed}");
    for name in fleet.member_names() {
        ctl_output(&fleet, &["context", "use", &name])?;
        let shown = data(&fleet, &["context", "show"])?;
        ensure!(shown.to_string().contains(fleet.client_addr(&name)), "{name}: {shown}");
        let status = data(&fleet, &["status"])?;
        ensure!(status["health"] == "healthy", "{name}: {status}");
        ensure!(ctl_output(&fleet, &["-o", "name", "run", "list"])?.contains("eval"), "{name}");
        for (verb, state) in [("pause", "paused"), ("resume", "running")] {
            let now = data(&fleet, &["run", verb, "eval"])?;
            ensure!(now["state"] == state, "{name}: {now}");
        }
        // Transfer leadership to a member that does not have it, also through a follower.
        let to = fleet.leader_other_than("");
        let to =
            fleet.member_names().into_iter().find(|member| *member != to).context("another")?;
        ctl_output(&fleet, &["leader", "transfer", &to])?;
        eventually("the office is where it was asked to be", PATIENCE, || {
            (fleet.leader() == to).then_some(())
        });
        ensure!(ctl_output(&fleet, &["leader", "show"])?.contains(&to), "{name}: {to}");
    }
    let leader = fleet.leader();
    ctl_output(&fleet, &["context", "remove", &leader])?;
    let left = ctl_output(&fleet, &["-o", "name", "context", "list"])?;
    ensure!(left.lines().count() == 2 && !left.contains(&leader), "{left}");
    let others: Vec<&str> = left.lines().collect();
    ctl_output(&fleet, &[&["context", "remove"][..], &others].concat())?;
    ensure!(ctl_output(&fleet, &["-o", "name", "context", "list"])?.is_empty());
    fleet.passed()
}

#[test]
fn a_run_and_a_worker_are_looked_at_and_a_daemon_says_how_it_was_started() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "eval", 200, "")?;
    batch.until(&fleet, "it is there", |c| c.rows > 0);
    let watched = fleet.ctl(&["run", "watch", "eval"])?;
    ensure!(watched.status.success(), "{watched:?}");
    ensure!(text(&watched.stdout).contains("200"), "{watched:?}");
    batch.finish(&fleet)?;
    let worker = fleet.ctl_json(&["worker", "describe", "w1"])?;
    ensure!(worker.to_string().contains("\"w1\""), "{worker}");
    let nobody = fleet.ctl(&["worker", "describe", "nobody"])?;
    ensure!(nobody.status.code() == Some(4), "{nobody:?}");

    let pid = fleet.member_process("c1").pid().to_string();
    let view = fleet.ctl(&["config", "view", "--pid", &pid])?;
    ensure!(view.status.success(), "{view:?}");
    ensure!(text(&view.stdout).contains(fleet.client_addr("c1")), "{view:?}");
    let default = fleet.ctl(&["config", "default", "--of", "worker"])?;
    ensure!(default.status.success(), "{default:?}");
    let default = text(&default.stdout);
    for key in ["name", "[tls]", "namespace = \"default\""] {
        ensure!(default.contains(key), "no {key} in\n{default}");
    }
    fleet.passed()
}

#[test]
fn doctor_passes_before_the_member_starts_and_reports_a_closed_port_elsewhere() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.member_process("c1").kill();
    let config = fleet.path("c1.toml");
    let config = config.to_str().context("a path")?;
    let (open, closed) = (fleet.peer_addr("c2").to_owned(), free_addr()?);
    let preflight = |reach: &str| {
        let limits = ["--free-gib", "0", "--fsync-max", "30s"];
        let args = ["-o", "json", "doctor", "--preflight", "--file", config, "--reach", reach];
        fleet.ctl(&[&args[..], &limits[..]].concat())
    };
    let good = preflight(&open)?;
    ensure!(good.status.success(), "{good:?}");
    ensure!(text(&good.stdout).contains(&format!("{open} accepts connections")), "{good:?}");
    let bad = preflight(&closed)?;
    ensure!(bad.status.code() == Some(1), "{bad:?}");
    let stdout = text(&bad.stdout);
    ensure!(
        stdout.contains(&closed) && stdout.contains("open the port between the hosts"),
        "{stdout}"
    );
    fleet.start_member("c1")?;
    fleet.passed()
}

#[test]
fn a_certificate_that_is_about_to_end_is_an_alarm_with_its_command_and_a_metric() -> Result<()> {
    let fleet = Fleet::start(FleetOptions { clocks: true, ..FleetOptions::default() })?;
    let metric = "rollout_alarm{kind=\"cert_expiring\"}";
    let ends = pki::inspect(&fleet.path("tls").join("member-c1.pem"))?.validity.not_after_unix;
    let told = fleet.counted("c1", "rollout_tls_certificate_expiry_timestamp_seconds");
    ensure!(told.map(u64::cast_signed) == Some(ends), "{told:?}, but it ends at {ends}");
    ensure!(fleet.counted("c1", metric) == Some(0));

    // The certificate lasts two days; it is due for renewal in the last third of its lifetime.
    fleet.set_clock("c1", 40 * 3600)?;
    eventually("the member says so", PATIENCE, || {
        (fleet.counted("c1", metric) == Some(1)).then_some(())
    });
    ensure!(fleet.counted("c2", metric) == Some(0), "by its own clock there is time");
    let context = fleet.path("operator.toml");
    let context = context.to_str().context("a path")?;
    let list = fleet.ctl_at("c1", &["--context", context, "-o", "json", "alarm", "list"])?;
    let list: Value = serde_json::from_slice(&list.stdout)?;
    let alarms = list["data"]["alarms"].as_array().context("alarms")?;
    let of = |alarm: &&Value| alarm["kind"] == "CERT_EXPIRING" && alarm["member"] == "c1";
    let alarm = alarms.iter().find(of).with_context(|| format!("none of c1: {list}"))?;
    ensure!(alarm.to_string().contains("rolloutctl cert issue member c1"), "{alarm}");
    fleet.set_clock("c1", 0)?;
    eventually("the alarm goes", PATIENCE, || {
        (fleet.counted("c1", metric) == Some(0)).then_some(())
    });
    fleet.passed()
}
