//! Owns: the versions that a worker registers with: its own, those of its engines' environments, the driver's.
//!
//! Invariant: an environment that does not answer in time costs its versions and nothing else.
//! Absent: what an engine has loaded; these are the versions that are installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::config::{EngineConfig, EngineKind};

/// How long an environment is asked.
const ANSWER: Duration = Duration::from_secs(20);
/// Where the kernel's module of NVIDIA says its version.
const DRIVER: &str = "/proc/driver/nvidia/version";
/// Bytes of a version, and of a name.
const VERSION_BYTES_MAX: usize = 64;

/// Versions by name. Several of one name, of several environments, are joined by commas.
pub(crate) async fn installed(engines: &[EngineConfig]) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut add = |name: &str, version: &str| {
        if !version.is_empty() && name.len().max(version.len()) <= VERSION_BYTES_MAX {
            all.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    };
    add("agent", env!("CARGO_PKG_VERSION"));
    if let Ok(text) = std::fs::read_to_string(DRIVER) {
        add("driver", driver(&text).unwrap_or_default());
    }
    let mut asked = BTreeSet::new();
    for engine in engines.iter().filter(|engine| engine.kind == EngineKind::Vllm) {
        let Some(python) = &engine.python else { continue };
        if asked.insert((python, &engine.env)) {
            match of_environment(python, &engine.env).await {
                Ok(versions) => versions.iter().for_each(|(name, version)| add(name, version)),
                Err(reason) => {
                    tracing::warn!(python = %python.display(), reason, "its versions are not known");
                }
            }
        }
    }
    let join = |versions: BTreeSet<String>| versions.into_iter().collect::<Vec<_>>().join(",");
    all.into_iter().map(|(name, versions)| (name, join(versions))).collect()
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
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The driver's version out of what its module says of itself.
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
        let versions = installed(&[engine]).await;
        assert_eq!(versions.get("agent").map(String::as_str), Some(env!("CARGO_PKG_VERSION")));
        assert!(!versions.contains_key("vllm"));
    }
}
