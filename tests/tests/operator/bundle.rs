//! A bundle for a bug report contains what is needed, even from a broken cluster, and no secret.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, output};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The files of a bundle, as the system's tar reads them.
fn unpacked(bundle: &Path, into: &Path) -> Result<BTreeMap<String, String>> {
    std::fs::create_dir_all(into)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(bundle).arg("-C").arg(into);
    let out = output(tar, LIMIT)?;
    ensure!(out.status.success(), "{out:?}");
    let mut files = BTreeMap::new();
    let mut dirs = vec![into.join("rollout-bundle")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            match path.is_dir() {
                true => dirs.push(path),
                false => {
                    let name = path.strip_prefix(into.join("rollout-bundle"))?;
                    let text = std::fs::read_to_string(&path)?;
                    files.insert(name.display().to_string(), text);
                }
            }
        }
    }
    Ok(files)
}

#[test]
fn a_bundle_has_what_a_report_needs_and_no_secret_with_a_quorum_and_without() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let secret = dir.path().join("webhooks.secret");
    std::fs::write(&secret, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n")?;
    let leak = |line: String| -> &'static str { Box::leak(line.into_boxed_str()) };
    let member_lines = vec![
        ("webhooks", leak(format!("secret_file = {secret:?}"))),
        ("webhooks", "allow = [\"https://hooks.example\"]"),
    ];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "eval", 20, "")?;
    batch.finish(&fleet)?;

    let file = dir.path().join("whole.tar.gz");
    let name = file.to_str().context("a path")?;
    let made = fleet.ctl(&["doctor", "--bundle", name])?;
    ensure!(made.status.success(), "{made:?}");
    let again = fleet.ctl(&["doctor", "--bundle", name])?;
    ensure!(again.status.code() == Some(5), "it was replaced: {again:?}");
    let files = unpacked(&file, &dir.path().join("whole"))?;
    for wanted in ["status.json", "alarms.json", "doctor.json", "members.json", "events.jsonl"] {
        ensure!(files.get(wanted).is_some_and(|text| !text.is_empty()), "{:?}", files.keys());
    }
    for member in fleet.member_names() {
        let config = files.get(&format!("members/{member}/config.json")).context("a config")?;
        let config: serde_json::Value = serde_json::from_str(config)?;
        ensure!(config["name"] == member && config["webhooks"]["secret_file"].is_string());
        let metrics = files.get(&format!("members/{member}/metrics.txt")).context("metrics")?;
        ensure!(metrics.contains("rollout_raft_applied_index"), "{metrics}");
    }
    ensure!(files["events.jsonl"].contains("run_finished"), "{}", files["events.jsonl"]);
    let key = std::fs::read_to_string(fleet.path("tls/member-c1.key"))?;
    let key = key.lines().nth(1).context("a key")?;
    for (name, text) in &files {
        ensure!(!text.contains("C2FVsBQIhrscChlQIMV") && !text.contains(key), "a secret in {name}");
    }
    // Only an operator may make it: it covers all namespaces.
    let mut user = fleet.program("rolloutctl");
    let other = dir.path().join("user.tar.gz");
    user.arg("--context").arg(fleet.path("user.toml")).args(["doctor", "--bundle"]).arg(&other);
    output(user, LIMIT)?;
    let theirs = unpacked(&other, &dir.path().join("user"))?;
    ensure!(!theirs.keys().any(|name| name.ends_with("config.json")), "{:?}", theirs.keys());

    let leader = fleet.leader();
    for member in fleet.member_names().into_iter().filter(|name| *name != leader) {
        fleet.member_process(&member).kill();
    }
    let file = dir.path().join("broken.tar.gz");
    let name = file.to_str().context("a path")?;
    let made = fleet.ctl(&["--timeout", "5s", "doctor", "--bundle", name])?;
    ensure!(made.status.success(), "{made:?}");
    let files = unpacked(&file, &dir.path().join("broken"))?;
    ensure!(files.contains_key(&format!("members/{leader}/metrics.txt")), "{:?}", files.keys());
    ensure!(files.keys().any(|name| name.ends_with(".error.txt")), "{:?}", files.keys());
    fleet.passed()
}
