//! Owns: the earlier builds that tests run beside this one, as `release/BASELINES` lists them.
//!
//! Invariant: a baseline whose folder exists has all its programs: the folder appears when they are complete. A test
//! that leaves out one that is not built says so, or fails if all are required.
//! Absent: building them. `make test-upgrade` does that with `tests/upgrade/baselines.sh`.

use super::commands::bin_dir;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// If this is set, a test of baselines fails if one of them is not built.
const REQUIRED: &str = "ROLLOUT_REQUIRE_BASELINES";

/// The build of an earlier commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The commit's full id.
    pub sha: String,
    /// What people call it.
    pub name: String,
    /// The newest cluster version that it supports.
    pub cluster_version: u32,
}

impl Baseline {
    /// All of them, oldest first; at least one.
    ///
    /// # Errors
    /// If `release/BASELINES` cannot be read, or a line of it is wrong.
    pub fn all() -> Result<Vec<Self>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../release/BASELINES");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let all = Self::parse(&text).with_context(|| path.display().to_string())?;
        ensure!(!all.is_empty(), "{} lists no baseline: add a line", path.display());
        Ok(all)
    }

    /// Those that are built. `what` describes what stays untested with the others.
    ///
    /// # Errors
    /// If `release/BASELINES` cannot be read, or if one is not built and all are required.
    pub fn built(what: &str) -> Result<Vec<Self>> {
        let is_required = std::env::var_os(REQUIRED).is_some_and(|value| !value.is_empty());
        let mut built = Vec::new();
        for baseline in Self::all()? {
            let (folder, name) = (baseline.folder()?, &baseline.name);
            if folder.is_dir() {
                built.push(baseline);
                continue;
            }
            let why = format!("{} does not exist; `make test-upgrade` builds it", folder.display());
            ensure!(!is_required, "{what} from {name}: {why}");
            eprintln!("NOT RUN: {what} from {name}: {why}");
        }
        Ok(built)
    }

    fn parse(text: &str) -> Result<Vec<Self>> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(Self::parse_line).collect()
    }

    fn parse_line(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [sha, name, version] = fields[..] else {
            bail!("{line:?}: a line has a commit, a name and a cluster version, one space apart");
        };
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        ensure!(
            sha.len() == 40 && sha.bytes().all(is_digit),
            "{sha:?}: write the commit's full id, 40 hexadecimal digits"
        );
        ensure!(!name.is_empty(), "{line:?}: the name is empty");
        let cluster_version =
            version.parse::<u32>().with_context(|| format!("{version:?} is no cluster version"))?;
        ensure!(cluster_version > 0, "{line:?}: the first cluster version is 1");
        Ok(Self { sha: sha.into(), name: name.into(), cluster_version })
    }

    /// The folder of its programs, `baselines/SHA` in the target directory.
    fn folder(&self) -> Result<PathBuf> {
        let profile = bin_dir()?;
        let target = profile.parent().context("a profile is in a target directory")?;
        Ok(target.join("baselines").join(&self.sha))
    }

    /// The same, if it exists.
    pub(super) fn programs(&self) -> Result<PathBuf> {
        let folder = self.folder()?;
        ensure!(
            folder.is_dir(),
            "baseline {} is not built: {} does not exist; run `make test-upgrade`",
            self.name,
            folder.display()
        );
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn each_listed_baseline_is_a_commit_with_a_name_and_a_cluster_version() {
        let all = Baseline::all().unwrap();
        let mut named: Vec<_> = all.iter().map(|baseline| &baseline.name).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), all.len(), "each has a name of its own: {all:?}");
    }

    #[test]
    fn a_line_that_is_not_a_baseline_is_refused() {
        let parsed = Baseline::parse(&format!("# a comment\n\n{SHA} first 3\n")).unwrap();
        let first = Baseline { sha: SHA.into(), name: "first".into(), cluster_version: 3 };
        assert_eq!(parsed, [first]);
        let wrong = ["", "first", "first x", "first 0", "first 3 4", " 3"];
        for rest in wrong {
            let line = format!("{SHA} {rest}");
            assert!(Baseline::parse(&line).is_err(), "{line:?}");
        }
        for sha in [SHA[1..].to_owned(), SHA.to_uppercase()] {
            assert!(Baseline::parse(&format!("{sha} first 3")).is_err(), "{sha}");
        }
    }
}
