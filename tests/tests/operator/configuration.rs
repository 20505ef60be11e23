//! `rolloutctl config` knows exactly the keys that the daemons accept.

use anyhow::{Context, Result, ensure};
use rollout_tests::{output, program};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn schema(of: &str) -> Result<Value> {
    let mut command = program("rolloutctl")?;
    command.args(["config", "schema", "--of", of]);
    Ok(serde_json::from_slice(&output(command, LIMIT)?.stdout)?)
}

fn properties(schema: &Value) -> BTreeSet<String> {
    schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Writes a file with an unknown key in `section`, and returns the keys that the daemon accepts there, from its
/// error.
fn taken(dir: &Path, section: &str) -> Result<BTreeSet<String>> {
    let file = dir.join("unknown.toml");
    let text = match section {
        "" => "zzz = 1\n".to_owned(),
        section => format!("[{section}]\nzzz = 1\n"),
    };
    std::fs::write(&file, text)?;
    let mut command = program("rollout-coordinator")?;
    command.arg("--config").arg(&file).arg("--check-config");
    let stderr = String::from_utf8(output(command, LIMIT)?.stderr)?;
    let (_, known) = stderr.split_once("known are ").with_context(|| stderr.clone())?;
    let line = known.lines().next().unwrap_or_default();
    Ok(line.split(", ").map(|key| key.trim().to_owned()).collect())
}

#[test]
fn the_keys_of_a_member_are_those_that_it_takes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let schema = schema("coordinator")?;
    ensure!(properties(&schema) == taken(dir.path(), "")?, "{:?}", properties(&schema));
    for section in properties(&schema) {
        let known = &schema["properties"][&section];
        // A map has no keys of its own.
        if known["properties"].is_object() {
            let taken = taken(dir.path(), &section)?;
            ensure!(properties(known) == taken, "[{section}]: {taken:?}");
        }
    }
    Ok(())
}

#[test]
fn a_daemon_whose_log_filter_cannot_be_read_does_not_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let member = dir.path().join("member.toml");
    let text = "name = \"c1\"\ndata_dir = \"d\"\n[listen]\nclient = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\n\
                [tls]\ninsecure_plaintext = true\n[store]\nurl = \"file:///s\"\n";
    std::fs::write(&member, text)?;
    for (daemon, file, status) in
        [("rollout-coordinator", &member, 78), ("rollout-worker", &example(), 2)]
    {
        let mut command = program(daemon)?;
        command.env("ROLLOUT_LOG", "rollout_raft=loud");
        command.arg("--config").arg(file).arg("--check-config");
        let out = output(command, LIMIT)?;
        let stderr = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.code() == Some(status), "{daemon}: {}: {stderr}", out.status);
        ensure!(stderr.contains("rollout_raft=loud"), "{daemon}: {stderr}");
    }
    Ok(())
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/worker.example.toml")
}

/// The example with every key in use, as `(key, value)` too.
fn uncommented() -> Result<(String, Vec<(String, String)>)> {
    let (mut text, mut keys) = (String::new(), Vec::new());
    for line in std::fs::read_to_string(example())?.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let bare = bare.split("  #").next().unwrap_or(bare).trim_end();
        let key = bare.split_once(" = ").filter(|(key, _)| {
            key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        });
        if let Some((key, value)) = key {
            let value = value.split(" #").next().unwrap_or(value).trim();
            keys.push((key.to_owned(), value.to_owned()));
            text.push_str(&format!("{key} = {value}\n"));
        } else if bare.starts_with('[') {
            text.push_str(&format!("{bare}\n"));
        }
    }
    Ok((text, keys))
}

#[test]
fn the_keys_of_a_worker_are_those_of_the_example_that_names_all() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (text, keys) = uncommented()?;
    // The example has the default, which makes the program beside it meaningless.
    let text = text.replace("process = false", "process = true");
    // A join token replaces the three files.
    let of_tls =
        |line: &&str| !["ca_file", "cert_file", "key_file"].iter().any(|key| line.starts_with(key));
    let text: String = text.lines().filter(of_tls).map(|line| format!("{line}\n")).collect();
    let file = dir.path().join("worker.toml");
    std::fs::write(&file, &text)?;
    let mut validate = program("rolloutctl")?;
    validate.args(["-o", "json", "config", "validate"]).arg(&file);
    let out = output(validate, LIMIT)?;
    ensure!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&out.stdout));
    let mut check = program("rollout-worker")?;
    check.arg("--config").arg(&file).arg("--check-config");
    let out = output(check, LIMIT)?;
    ensure!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&out.stderr));

    let mut known = BTreeSet::new();
    let schema = schema("worker")?;
    for (name, property) in schema["properties"].as_object().context("properties")? {
        let inner =
            if property["items"]["properties"].is_object() { &property["items"] } else { property };
        match inner["properties"].is_object() {
            true => known.extend(properties(inner)),
            false => drop(known.insert(name.clone())),
        }
    }
    // Maps are sections of names in the example.
    let maps = ["labels", "dial_map"].map(str::to_owned);
    let named: BTreeSet<String> = keys.iter().map(|(key, _)| key.clone()).chain(maps).collect();
    let names_of_maps = ["zone", "c2"].map(str::to_owned);
    let named: BTreeSet<String> =
        named.into_iter().filter(|key| !names_of_maps.contains(key)).collect();
    ensure!(
        known == named,
        "not in both: {:?}",
        known.symmetric_difference(&named).collect::<Vec<_>>()
    );
    Ok(())
}

#[test]
fn a_setting_is_shown_with_its_source_also_for_a_running_process() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("coordinator.toml");
    std::fs::write(&file, "name = \"c1\"\nlog = \"warn\"\n[raft]\nprofile = \"far-zones\"\n")?;
    let mut command = program("rolloutctl")?;
    command.args(["-o", "json", "config", "view", "--file"]).arg(&file);
    command.env("ROLLOUT_DATA_DIR", "/data").args(["--", "--name", "c9"]);
    let out = output(command, LIMIT)?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let view: Value = serde_json::from_slice(&out.stdout)?;
    let settings = view["data"]["settings"].as_array().context("settings")?;
    let of = |key: &str| {
        let line = settings.iter().find(|line| line["key"] == key).unwrap_or(&Value::Null);
        (line["value"].clone(), line["origin"]["from"].clone())
    };
    ensure!(of("name") == ("c9".into(), "flag".into()), "{:?}", of("name"));
    ensure!(of("data_dir") == ("/data".into(), "environment".into()), "{:?}", of("data_dir"));
    ensure!(of("log") == ("warn".into(), "file".into()), "{:?}", of("log"));
    ensure!(of("raft.heartbeat_ms") == (300.into(), "default".into()));
    Ok(())
}
