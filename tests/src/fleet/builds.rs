//! Owns: which build each process of a fleet runs.
//!
//! Invariant: a process keeps its build while it runs; a change applies at its next start.
//! Absent: the list of earlier builds (`baselines`).

use super::Fleet;
use super::baselines::Baseline;
use super::commands::bin_dir;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A build of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The one of the test itself.
    Current,
    /// The one that the fleet's options name.
    Baseline,
}

/// The programs of both builds, and the build of each process.
pub(super) struct Builds {
    current: PathBuf,
    baseline: Option<PathBuf>,
    chosen: BTreeMap<String, Build>,
}

impl Builds {
    /// A fleet with a baseline begins with it.
    pub(super) fn new(baseline: Option<&Baseline>) -> Result<Self> {
        let baseline = baseline.map(Baseline::programs).transpose()?;
        Ok(Self { current: bin_dir()?, baseline, chosen: BTreeMap::new() })
    }

    /// The folder of a build's programs.
    pub(super) fn folder(&self, build: Build) -> &Path {
        match build {
            Build::Current => &self.current,
            Build::Baseline => self.baseline.as_ref().expect("the options name a baseline"),
        }
    }

    /// The build that a process gets at its next start.
    pub(super) fn of(&self, process: &str) -> Build {
        let first = if self.baseline.is_some() { Build::Baseline } else { Build::Current };
        self.chosen.get(process).copied().unwrap_or(first)
    }
}

impl Fleet {
    /// From its next start a process runs this build. A process is a member or a worker by its name, `operator` for
    /// `rolloutctl`, or `user` for `rollout`. If the options name a baseline, all processes begin with it.
    pub fn use_build(&mut self, process: &str, build: Build) {
        self.builds.chosen.insert(process.into(), build);
    }

    /// A program of the build that a process runs, without arguments.
    pub(super) fn program_of(&self, process: &str, program: &str) -> Command {
        Command::new(self.builds.folder(self.builds.of(process)).join(program))
    }
}
