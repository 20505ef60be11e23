//! What is wrong with a configuration file: unknown keys, invalid values, and values that contradict each other.
//!
//! Invariant: every problem is listed, not only the first. Absent: problems that only the daemon's host
//! can detect, such as a missing file.

use std::net::SocketAddr;

use rollout_config::Key;
use rollout_config::nearest::nearest;
use toml::{Table, Value};

use super::Daemon;
use super::file::{File, get};

const ENGINE: &str = "engine[].";

/// A problem with a key, with its name in the file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(in crate::rolloutctl) struct Problem {
    pub(in crate::rolloutctl) key: String,
    pub(in crate::rolloutctl) problem: String,
}

pub(in crate::rolloutctl) fn problems(daemon: Daemon, file: &File) -> Vec<Problem> {
    let mut found = Vec::new();
    let keys = daemon.keys();
    table(keys, &file.table, &mut found);
    for (at, block) in file.engines().into_iter().enumerate() {
        engine(keys, at, block, &mut found);
    }
    let section_is_there = |key: &&Key| key.is_needed() || file.table.contains_key(key.root());
    let required = keys.iter().filter(|key| key.required && !key.path.starts_with(ENGINE));
    for key in required.filter(section_is_there) {
        if file.get(&key.path).is_none() {
            let elsewhere = match (key.flag.as_str(), key.env.as_str()) {
                ("", _) => String::new(),
                (flag, "") => format!(", unless {flag} sets it"),
                (flag, env) => format!(", unless {flag} or {env} sets it"),
            };
            add_problem(&mut found, &key.path, format!("is missing{elsewhere}"));
        }
    }
    together(daemon, file, &mut found);
    found
}

fn add_problem(found: &mut Vec<Problem>, key: impl Into<String>, problem: impl Into<String>) {
    found.push(Problem { key: key.into(), problem: problem.into() });
}

fn table(keys: &[Key], table: &Table, found: &mut Vec<Problem>) {
    let exact = |path: &str| keys.iter().find(|key| key.path == path);
    for (name, value) in table {
        let section = format!("{name}.");
        if let Some(key) = exact(name) {
            found.extend(key.problem(value).map(|problem| Problem { key: name.clone(), problem }));
        } else if name == "engine" && keys.iter().any(|key| key.path.starts_with(ENGINE)) {
            if !value.as_array().is_some_and(|list| list.iter().all(Value::is_table)) {
                add_problem(found, "engine", "must be blocks of [[engine]]");
            }
        } else if keys.iter().any(|key| key.path.starts_with(&section)) {
            let Some(inner) = value.as_table() else {
                add_problem(found, name.clone(), format!("must be a section [{name}]"));
                continue;
            };
            let names: Vec<&str> =
                keys.iter().filter_map(|key| key.path.strip_prefix(&section)).collect();
            for (inner_name, value) in inner {
                let path = format!("{section}{inner_name}");
                match exact(&path) {
                    Some(key) => {
                        let problem = key.problem(value);
                        found.extend(problem.map(|problem| Problem { key: path, problem }));
                    }
                    None => add_problem(found, path, unknown(inner_name, &names)),
                }
            }
        } else {
            let mut names: Vec<&str> = keys.iter().map(Key::root).collect();
            names.dedup();
            add_problem(found, name.clone(), unknown(name, &names));
        }
    }
}

fn unknown(name: &str, allowed: &[&str]) -> String {
    match nearest(name, allowed.iter().copied()) {
        Some(meant) => format!("unknown key; did you mean {meant}?"),
        None => "unknown key".to_owned(),
    }
}

fn engine(keys: &[Key], at: usize, block: &Table, found: &mut Vec<Problem>) {
    let path = |name: &str| format!("engine[{at}].{name}");
    let Some(kind) = block.get("kind").and_then(Value::as_str) else {
        return add_problem(found, path("kind"), "is missing: mock, openai or vllm");
    };
    let own: Vec<(&str, &Key)> = keys
        .iter()
        .filter(|key| key.has(kind))
        .filter_map(|key| Some((key.path.strip_prefix(ENGINE)?, key)))
        .collect();
    for (name, value) in block {
        match own.iter().find(|(key, _)| key == name) {
            Some((_, key)) => {
                found
                    .extend(key.problem(value).map(|problem| Problem { key: path(name), problem }));
            }
            None => {
                let names: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
                add_problem(found, path(name), format!("engine {kind}: {}", unknown(name, &names)));
            }
        }
    }
}

/// Combinations that the daemons refuse although each value is valid.
fn together(daemon: Daemon, file: &File, found: &mut Vec<Problem>) {
    let files = ["tls.ca_file", "tls.cert_file", "tls.key_file"];
    let given = files.iter().filter(|path| file.get(path).is_some()).count();
    let plain = file.get("tls.insecure_plaintext").and_then(Value::as_bool).unwrap_or(false);
    // Flags and variables may supply the missing ones.
    if given > 0 && plain {
        let text = "insecure_plaintext = true contradicts the files: set one or the other";
        add_problem(found, "tls", text);
    }
    let public = file.get("tls.insecure_plaintext_public").and_then(Value::as_bool);
    if daemon == Daemon::Coordinator && plain && public != Some(true) {
        for key in ["listen.client", "listen.peer"] {
            let port = file.get(key).and_then(Value::as_str).unwrap_or_default();
            if port.parse::<SocketAddr>().is_ok_and(|port| !port.ip().is_loopback()) {
                let text = "is reachable from other hosts without TLS: listen on 127.0.0.1, set certificates, or set \
                            tls.insecure_plaintext_public = true";
                add_problem(found, key, text);
            }
        }
    }
    if daemon == Daemon::Worker
        && file.get("enrollment.token_file").is_some()
        && (given > 0 || plain)
    {
        add_problem(
            found,
            "enrollment",
            "replaces the files of [tls], and needs TLS: set one or the other",
        );
    }
    let number = |path: &str| number(daemon, file, path);
    // `least` computes the least allowed value of the second key.
    let mut bound = |lower: &str, least: fn(u64) -> u64, upper: &str, why: &str| {
        let (Some(low), Some(high)) = (number(lower), number(upper)) else { return };
        if high < least(low) {
            add_problem(found, upper, format!("{high} is too low for {lower} = {low}: {why}"));
        }
    };
    let more = |low: u64| low.saturating_add(1);
    match daemon {
        Daemon::Coordinator => {
            let three = |low: u64| low.saturating_mul(3);
            bound("raft.heartbeat_ms", three, "raft.election_min_ms", "at least three heartbeats");
            bound("raft.election_min_ms", more, "raft.election_max_ms", "it must be higher");
            let two = |low: u64| low.saturating_mul(2);
            bound("worker.heartbeat_ms", two, "worker.self_fence_ms", "at least two heartbeats");
            let why = "a worker must stop starting rows before they are given to others";
            bound("worker.self_fence_ms", more, "worker.failure_ms", why);
            let why = "the threshold for low disk space must not be below that for a full disk";
            bound("storage.reserve_bytes", |low| low, "storage.low_bytes", why);
        }
        Daemon::Worker => {
            bound("timing.leader_silent_ms", more, "timing.self_fence_ms", "it must be higher");
        }
    }
}

/// A number of the file, or its default.
fn number(daemon: Daemon, file: &File, path: &str) -> Option<u64> {
    if let Some(value) = file.get(path) {
        return u64::try_from(value.as_integer()?).ok();
    }
    let key = daemon.keys().iter().find(|key| key.path == path)?;
    default_of(key, &file.table).parse().ok()
}

/// The default of a key, in TOML, for a file that may choose a profile.
pub(super) fn default_of<'a>(key: &'a Key, table: &Table) -> &'a str {
    let far = get(table, "raft.profile").and_then(Value::as_str) == Some("far-zones");
    if far && !key.far_default.is_empty() { &key.far_default } else { &key.default }
}
