//! The programs that cargo built, and commands that run them as the operator or as the user.

use super::{Build, COMMAND_MAX, Fleet};
use crate::{commit, process};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The directory of the programs: ROLLOUT_BIN_DIR, or cargo's, which is that of this program or the parent of the
/// tests' directory. The first call compares their commits with the one under test.
pub(super) fn bin_dir() -> Result<PathBuf> {
    static DIR: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = DIR.get_or_init(|| {
        let dir = find_bin_dir().map_err(|error| format!("{error:#}"))?;
        match commit::under_test() {
            Some(expected) => {
                commit::check(&dir, &expected).map_err(|error| format!("{error:#}"))?
            }
            None => eprintln!("NOT RUN: the programs' commit: {} is not set", commit::VARIABLE),
        }
        Ok(dir)
    });
    found.clone().map_err(anyhow::Error::msg)
}

fn find_bin_dir() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("ROLLOUT_BIN_DIR").filter(|given| !given.is_empty()) {
        return Ok(given.into());
    }
    let exe = std::env::current_exe()?;
    let mut dirs = exe.ancestors().skip(1).take(2);
    let dir = dirs.find(|dir| dir.join("rollout-coordinator").exists());
    Ok(dir.context("build the binaries first: make build")?.to_owned())
}

/// One of rollout's programs, without arguments and without a fleet.
///
/// # Errors
/// When the binaries were not built.
pub fn program(name: &str) -> Result<Command> {
    Ok(Command::new(bin_dir()?.join(name)))
}

impl Fleet {
    /// A program of this build, without arguments.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.builds.folder(Build::Current).join(name))
    }

    /// A file that cargo put beside the binaries, if it exists.
    pub fn built(&self, file: &str) -> Option<PathBuf> {
        Some(self.builds.folder(Build::Current).join(file)).filter(|path| path.exists())
    }

    /// Runs `rolloutctl` as the operator.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ctl(&self, args: &[&str]) -> Result<Output> {
        self.ctl_of(self.builds.of("operator"), args)
    }

    /// Runs the `rolloutctl` of a build as the operator.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ctl_of(&self, build: Build, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.builds.folder(build).join("rolloutctl"));
        command.arg("--context").arg(self.path("operator.toml")).args(args);
        self.store_into(&mut command, "operator");
        process::output(command, COMMAND_MAX)
    }

    /// Runs `rolloutctl -o json` and returns the `data` of what it prints.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn ctl_json(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["-o", "json"];
        all.extend(args);
        let out = self.ctl(&all)?;
        let text = String::from_utf8_lossy(&out.stdout);
        let value: Value = serde_json::from_str(&text)
            .with_context(|| format!("{args:?}: {text}{}", String::from_utf8_lossy(&out.stderr)))?;
        Ok(value.get("data").cloned().unwrap_or(value))
    }

    /// The rows of a run in a state, as the operator sees them.
    ///
    /// # Errors
    /// When the list fails.
    pub fn items(&self, run: &str, state: &str) -> Result<Vec<Value>> {
        let list = self.ctl_json(&["item", "list", run, "--state", state, "--limit", "0"])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// A command of `rollout`, as the user.
    pub fn rollout(&self, args: &[&str]) -> Command {
        let mut command = self.program_of("user", "rollout");
        command.env("ROLLOUT_CONTEXT", self.path("user.toml")).args(args);
        self.store_into(&mut command, "user");
        command
    }

    /// `rolloutctl` without a context, with the wall clock of the host of this name.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ctl_at(&self, host: &str, args: &[&str]) -> Result<Output> {
        let mut command = self.program("rolloutctl");
        command.args(args);
        self.preload_into(&mut command, host)?;
        process::output(command, COMMAND_MAX)
    }
}
