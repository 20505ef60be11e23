//! Which build of the programs each member starts with: this one or, in runs with upgrades, an earlier one.
//!
//! *Invariant:* a member keeps its build while it runs; a change applies at its next start.
//! Absent: building the earlier one. `make test-upgrade` does that.

use super::{Fleet, MEMBERS};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The builds from which a cluster can be upgraded, oldest first.
const BASELINES: &str = include_str!("../../../release/BASELINES");
/// The program of a member.
const PROGRAM: &str = "rollout-coordinator";

/// The folder of an earlier build's programs: the given one, or that of the newest baseline. Baselines are beside the
/// folder `bin` of this build's programs.
///
/// # Errors
/// When there is no such program.
pub fn earlier_build(given: Option<&Path>, bin: &Path) -> Result<PathBuf> {
    let folder = match given {
        Some(given) => given.to_owned(),
        None => {
            let newest = BASELINES.lines().rfind(|line| !line.is_empty() && !line.starts_with('#'));
            let commit = newest.and_then(|line| line.split(' ').next());
            let commit =
                commit.context("release/BASELINES lists no build: name one by --baseline")?;
            bin.join("../baselines").join(commit)
        }
    };
    ensure!(
        folder.join(PROGRAM).is_file(),
        "no {PROGRAM} of an earlier build in {}: run `make test-upgrade`, or name a folder by --baseline",
        folder.display()
    );
    Ok(folder)
}

/// The programs of both builds.
pub(super) struct Builds {
    current: PathBuf,
    earlier: Option<PathBuf>,
    /// The members that start with the earlier one.
    behind: BTreeSet<usize>,
}

impl Builds {
    /// If there is an earlier build, all original members begin with it.
    pub(super) fn new(current: &Path, earlier: Option<&Path>) -> Self {
        let (current, earlier) = (current.to_owned(), earlier.map(Path::to_owned));
        let behind = earlier.iter().flat_map(|_| 0..MEMBERS).collect();
        Self { current, earlier, behind }
    }

    /// The folder of this build's programs.
    pub(super) fn current(&self) -> &Path {
        &self.current
    }

    /// The program of a member at its next start.
    pub(super) fn member(&self, at: usize) -> PathBuf {
        let earlier = self.earlier.as_ref().filter(|_| self.behind.contains(&at));
        earlier.unwrap_or(&self.current).join(PROGRAM)
    }
}

impl Fleet {
    /// From its next start a member has the earlier build, or this one.
    pub fn use_earlier_build(&mut self, at: usize, earlier: bool) {
        match earlier {
            true => self.builds.behind.insert(at),
            false => self.builds.behind.remove(&at),
        };
    }

    /// Whether the member has the earlier build, at its next start at the latest.
    pub fn has_earlier_build(&self, at: usize) -> bool {
        self.builds.behind.contains(&at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_original_member_begins_with_the_earlier_build_if_there_is_one() {
        let program = |builds: &Builds, at: usize| builds.member(at).display().to_string();
        let one = Builds::new(Path::new("/new"), None);
        assert_eq!(program(&one, 0), "/new/rollout-coordinator");
        let mut two = Builds::new(Path::new("/new"), Some(Path::new("/old")));
        assert_eq!(program(&two, 2), "/old/rollout-coordinator");
        assert_eq!(program(&two, MEMBERS), "/new/rollout-coordinator", "a spare");
        two.behind.remove(&2);
        assert_eq!(program(&two, 2), "/new/rollout-coordinator");
    }

    #[test]
    fn a_folder_without_the_program_is_no_build_and_the_default_is_a_baseline() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("debug");
        std::fs::create_dir(&bin).unwrap();
        let error = earlier_build(Some(dir.path()), &bin).unwrap_err().to_string();
        assert!(error.contains("--baseline"), "{error}");
        let error = earlier_build(None, &bin).unwrap_err().to_string();
        assert!(error.contains("/../baselines/"), "{error}");
        std::fs::write(dir.path().join(PROGRAM), "").unwrap();
        assert_eq!(earlier_build(Some(dir.path()), &bin).unwrap(), dir.path());
    }
}
