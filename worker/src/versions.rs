//! Owns: the versions that a worker registers with: its own, those of its engines' environments, the driver's.
//!
//! Invariant: an environment that does not answer in time loses only its versions.
//! Absent: what an engine has loaded; these are the installed versions.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::config::{EngineConfig, EngineKind};

/// How long to wait for an environment's answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Where NVIDIA's kernel module reports its version.
const DRIVER: &str = "/proc/driver/nvidia/version";
/// Bytes of a version, and of a name.
const VERSION_BYTES_MAX: usize = 64;

/// Versions by name.
pub(crate) struct Installed {
    /// The worker's versions. Versions of one name from several environments are joined by commas.
    pub(crate) all: BTreeMap<String, String>,
    /// The versions for each block of engines.
    pub(crate) of_blocks: Vec<BTreeMap<String, String>>,
}

/// Queries the environments of these engines.
pub(crate) async fn installed(engines: &[EngineConfig]) -> Installed {
    let mut host = BTreeMap::from([("agent".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Ok(text) = std::fs::read_to_string(DRIVER) {
        host.extend(driver(&text).map(|driver| ("driver".to_owned(), driver.to_owned())));
    }
    let mut by_environment: BTreeMap<_, BTreeMap<String, String>> = BTreeMap::new();
    let mut of_blocks = Vec::new();
    for engine in engines {
        let python = engine.python.as_ref().filter(|_| engine.kind == EngineKind::Vllm);
        let mut own = host.clone();
        if let Some(python) = python {
            let key = (python, &engine.env);
            if let btree_map::Entry::Vacant(first) = by_environment.entry(key) {
                let found = of_environment(python, &engine.env).await.unwrap_or_else(|reason| {
                    tracing::warn!(python = %python.display(), reason, "its versions are unknown");
                    BTreeMap::new()
                });
                first.insert(found);
            }
            own.extend(by_environment[&key].clone());
        }
        own.retain(|name, version| {
            !version.is_empty() && name.len().max(version.len()) <= VERSION_BYTES_MAX
        });
        of_blocks.push(own);
    }
    let mut all: BTreeMap<&String, BTreeSet<&str>> = BTreeMap::new();
    for (name, version) in of_blocks.iter().flatten().chain(&host) {
        all.entry(name).or_default().insert(version);
    }
    let join = |versions: BTreeSet<&str>| versions.into_iter().collect::<Vec<_>>().join(",");
    let all = all.into_iter().map(|(name, versions)| (name.clone(), join(versions))).collect();
    Installed { all, of_blocks }
}

async fn of_environment(
    python: &Path,
    env: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut command = Command::new(python);
    command.args(["-m", "rollout.versions"]).envs(env);
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(ANSWER, command.output()).await;
    let output = output.map_err(|_| format!("no answer in {} s", ANSWER.as_secs()))?;
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("it ended with {}", output.status));
    }
    parse(&output.stdout)
}

/// Parses the versions that an environment reports.
pub(crate) fn parse(output: &[u8]) -> Result<BTreeMap<String, String>, String> {
    serde_json::from_slice(output).map_err(|error| error.to_string())
}

/// The driver's version, from its module's text.
fn driver(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let number =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    line.split_whitespace().find(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_found_among_the_words() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n\
                    GCC version:  gcc version 12.2.0\n";
        assert_eq!(driver(text), Some("570.124.06"));
        assert_eq!(driver("GCC version:  gcc version 12.2.0\n"), None);
    }

    #[tokio::test]
    async fn an_environment_that_says_nothing_costs_its_versions_alone() {
        let mut engine = EngineConfig::new(EngineKind::Vllm);
        engine.python = Some("/bin/false".into());
        let installed = installed(&[engine, EngineConfig::new(EngineKind::Mock)]).await;
        for versions in [&installed.all, &installed.of_blocks[0], &installed.of_blocks[1]] {
            assert_eq!(versions.get("agent").map(String::as_str), Some(env!("CARGO_PKG_VERSION")));
            assert!(!versions.contains_key("vllm"));
        }
    }

    #[tokio::test]
    async fn a_slot_tells_the_versions_of_its_own_environment() {
        let dir = tempfile::tempdir().unwrap();
        let engine = |version: &str| {
            let python = dir.path().join(version);
            let says = format!("#!/bin/sh\necho '{{\"vllm\": \"{version}\"}}'\n");
            std::fs::write(&python, says).unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&python, executable).unwrap();
            EngineConfig { python: Some(python), ..EngineConfig::new(EngineKind::Vllm) }
        };
        let installed = installed(&[engine("0.31.0"), engine("0.32.0")]).await;
        let of = |block: usize| installed.of_blocks[block]["vllm"].as_str();
        assert_eq!((of(0), of(1)), ("0.31.0", "0.32.0"));
        assert_eq!(installed.all["vllm"], "0.31.0,0.32.0", "of the worker as a whole");
    }
}
