//! Owns: the version of a release: its form, its order, and the lines that carry it.
//!
//! Invariant: a file that lacks its line, or has it twice, is an error. Then nothing is written.
//! Absent: the changelog, and writing files.

use crate::workspace::Workspace;
use anyhow::{Context as _, Result, bail, ensure};
use std::fmt;
use std::str::FromStr;

/// Major, minor and patch number. Other forms have no common order in Cargo, Python and Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version([u64; 3]);

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<u64>> = text.split('.').map(number).collect();
        match numbers.as_deref() {
            Some(&[major, minor, patch]) => Ok(Self([major, minor, patch])),
            _ => bail!("{text} is not a version of three numbers, such as 0.2.0"),
        }
    }
}

/// A number without a sign and without zeros in front.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Version {
    /// The name of the commit's tag.
    pub(super) fn tag(self) -> String {
        format!("v{self}")
    }

    /// The version of the workspace.
    ///
    /// # Errors
    /// When its packages have several versions.
    pub(super) fn present(workspace: &Workspace) -> Result<Self> {
        let first = workspace.packages.first().context("the workspace has no package")?;
        for package in &workspace.packages {
            let (name, version) = (&package.name, &package.version);
            ensure!(version == &first.version, "{name} has version {version}, not that of others");
        }
        first.version.parse()
    }
}

/// The files that carry the version, each with the line that does. `VERSION` is in the place of the version.
pub(super) const LINES: &[(&str, &str)] = &[
    ("Cargo.toml", "version = \"VERSION\""),
    ("worker/python/pyproject.toml", "version = \"VERSION\""),
    ("worker/python/rollout/__init__.py", "__version__ = \"VERSION\""),
    ("deploy/helm/rollout/Chart.yaml", "version: VERSION"),
    ("deploy/helm/rollout/Chart.yaml", "appVersion: \"VERSION\""),
];

/// The text with the new version in a line of `LINES`.
///
/// # Errors
/// When the text does not have the line with the present version exactly once.
pub(super) fn line_set(text: &str, line: &str, old: Version, new: Version) -> Result<String> {
    let (from, to) = (with(line, old), with(line, new));
    let found = text.lines().filter(|one| *one == from).count();
    ensure!(found == 1, "the line `{from}` is there {found} times, not once");
    let lines: Vec<&str> =
        text.lines().map(|one| if one == from { to.as_str() } else { one }).collect();
    Ok(lines.join("\n") + "\n")
}

fn with(line: &str, version: Version) -> String {
    line.replace("VERSION", &version.to_string())
}

/// Cargo.lock with the new version of the packages of the workspace, and their number. Only packages of others name
/// their source.
pub(super) fn lock_set(text: &str, old: Version, new: Version) -> (String, usize) {
    let (from, to) = (format!("\nversion = \"{old}\"\n"), format!("\nversion = \"{new}\"\n"));
    let mut count = 0;
    let packages: Vec<String> = text
        .split("[[package]]")
        .map(|package| {
            if package.contains("\nsource = ") || !package.contains(&from) {
                return package.to_owned();
            }
            count += 1;
            package.replacen(&from, &to, 1)
        })
        .collect();
    (packages.join("[[package]]"), count)
}

/// The text with the new tag of rollout's images, such as `rollout:0.1.0` and `rollout-worker-vllm:0.1.0`.
pub(super) fn images_set(text: &str, old: Version, new: Version) -> String {
    let tag = format!(":{old}");
    let mut set = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&tag) {
        let name = before.rsplit(|c: char| !c.is_ascii_lowercase() && c != '-').next();
        let is_ours = name.is_some_and(|name| name.starts_with("rollout"));
        let ends = !after.starts_with(|c: char| c.is_ascii_alphanumeric());
        set.push_str(before);
        set.push_str(&if is_ours && ends { format!(":{new}") } else { tag.clone() });
        rest = after;
    }
    set.push_str(rest);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_three_numbers_and_ordered_as_such() {
        assert!(version("0.10.0") > version("0.9.12"));
        assert!(version("1.0.0") > version("0.99.99"));
        assert_eq!(version("0.2.0").to_string(), "0.2.0");
        assert_eq!(version("0.2.0").tag(), "v0.2.0");
        for wrong in ["", "1", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "1.2.3-rc1", "01.2.3", "+1.2.3"]
        {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_is_set_only_if_it_is_there_once() {
        let (old, new) = (version("0.1.0"), version("0.2.0"));
        let set = |text: &str| line_set(text, "version: VERSION", old, new);
        let chart = "version: 0.1.0\nappVersion: \"0.1.0\"\n";
        assert_eq!(set(chart).unwrap(), "version: 0.2.0\nappVersion: \"0.1.0\"\n");
        assert!(set("version: 0.1.1\n").is_err());
        assert!(set("version: 0.1.0\nversion: 0.1.0\n").is_err());
    }

    #[test]
    fn a_lock_changes_for_the_packages_of_the_workspace_alone() {
        let others = "[[package]]\nname = \"cmake\"\nversion = \"0.1.0\"\nsource = \"registry\"\n";
        let ours =
            |version: &str| format!("[[package]]\nname = \"xtask\"\nversion = \"{version}\"\n");
        let lock = |version: &str| format!("version = 4\n\n{others}\n{}", ours(version));
        let set = lock_set(&lock("0.1.0"), version("0.1.0"), version("0.2.0"));
        assert_eq!(set, (lock("0.2.0"), 1));
    }

    #[test]
    fn only_the_images_of_rollout_get_the_new_tag() {
        let set = |text: &str| images_set(text, version("0.1.0"), version("0.2.0"));
        let text = "-t rollout:0.1.0 . registry.example/rollout-worker-vllm:0.1.0";
        let expected = "-t rollout:0.2.0 . registry.example/rollout-worker-vllm:0.2.0";
        assert_eq!(set(text), expected);
        for kept in ["ubuntu:0.1.0", "rollout:0.1.01", "rollout:0.1.1", "rollout 0.1.0"] {
            assert_eq!(set(kept), kept);
        }
    }
}
