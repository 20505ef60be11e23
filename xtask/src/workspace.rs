//! Owns: where the workspace is, what its packages contain, the commit, and commands with a clean environment.
//!
//! Invariant: cargo sets variables of this package when it runs this program. No command inherits them, nor the file of
//! failures: cargo and the test programs see what they see when a person starts cargo.
//! Absent: building.

use crate::report::FAILURES;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commit that the programs print with `--version`, for builds and for tests.
pub(crate) const COMMIT: &str = "ROLLOUT_COMMIT";

/// What `cargo run` sets for the program that it runs, apart from `CARGO` and names that begin with `CARGO_PKG_`.
const OF_CARGO_RUN: [&str; 3] = ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_BIN_NAME"];

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The target directory.
    pub(crate) target: PathBuf,
    /// None if git does not know it.
    pub(crate) commit: Option<String>,
    pub(crate) packages: Vec<Package>,
    cargo: OsString,
}

/// A package of the workspace.
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest: PathBuf,
    pub(crate) targets: Vec<Target>,
}

/// A library, binary or test of a package.
pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) name: String,
    /// Whether `cargo test` builds a test program of it.
    pub(crate) test: bool,
    pub(crate) required_features: Vec<String>,
}

impl Workspace {
    /// The workspace of this program.
    ///
    /// # Errors
    /// When cargo cannot describe it.
    pub(crate) fn find() -> Result<Self> {
        let own = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = own.parent().context("xtask is in no workspace")?.to_owned();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut asked = command(&cargo, &root);
        asked.args(["metadata", "--no-deps", "--format-version", "1"]);
        let out = asked.output().context("cannot start cargo")?;
        let stderr = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "cargo metadata failed: {stderr}");
        let metadata: Value =
            serde_json::from_slice(&out.stdout).context("cargo metadata printed no JSON")?;
        let target = PathBuf::from(text(&metadata, "target_directory")?);
        let packages = list(&metadata, "packages").iter().map(package).collect::<Result<_>>()?;
        let commit = commit(&root);
        if commit.is_none() {
            eprintln!("xtask: git names no commit: the programs are built without one");
        }
        Ok(Self { root, target, commit, packages, cargo })
    }

    /// A command of cargo in the root. Binaries that it builds contain the commit.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = command(&self.cargo, &self.root);
        command.args(args);
        self.name_commit(&mut command);
        command
    }

    /// A command of another program in the root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, args: &[&str]) -> Command {
        let mut command = command(program, &self.root);
        command.args(args).env_remove("CARGO");
        command
    }

    /// A script for bash, whose arguments are `$1` and so on.
    pub(crate) fn script(&self, script: &str, args: &[&Path]) -> Command {
        let mut command = self.command("bash", &["-euo", "pipefail", "-c", script, "xtask"]);
        command.args(args);
        command
    }

    /// A test program, started as cargo starts it: in its package's folder, with the package's variables.
    pub(crate) fn test_program(&self, executable: &Path, package: &Package) -> Result<Command> {
        let folder = package.manifest.parent().context("a manifest is in no folder")?;
        let mut command = command(executable, folder);
        command
            .env("CARGO", &self.cargo)
            .env("CARGO_MANIFEST_DIR", folder)
            .env("CARGO_MANIFEST_PATH", &package.manifest)
            .env("CARGO_PKG_NAME", &package.name)
            .env("CARGO_PKG_VERSION", &package.version);
        Ok(command)
    }

    /// Sets the variable of the commit, or removes it if the commit is unknown.
    pub(crate) fn name_commit(&self, command: &mut Command) {
        match &self.commit {
            Some(commit) => command.env(COMMIT, commit),
            None => command.env_remove(COMMIT),
        };
    }
}

/// A command without the variables of this package.
fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let of_this_program = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name == FAILURES || OF_CARGO_RUN.contains(&name)
        });
        if of_this_program {
            command.env_remove(name);
        }
    }
    command
}

/// The commit of the checkout, with `-dirty` if a tracked file differs from it. A build without git can name it itself.
fn commit(root: &Path) -> Option<String> {
    if let Some(given) = std::env::var(COMMIT).ok().filter(|given| !given.is_empty()) {
        return Some(given);
    }
    let head = git(root, &["rev-parse", "HEAD"])?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { format!("{head}-dirty") })
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("git").current_dir(root).args(args).output().ok()?;
    let stdout = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| stdout.trim().to_owned())
}

fn package(value: &Value) -> Result<Package> {
    Ok(Package {
        name: text(value, "name")?,
        version: text(value, "version")?,
        manifest: text(value, "manifest_path")?.into(),
        targets: list(value, "targets").iter().map(target).collect::<Result<_>>()?,
    })
}

fn target(value: &Value) -> Result<Target> {
    let features = list(value, "required-features").iter();
    Ok(Target {
        kind: kind(value)?,
        name: text(value, "name")?,
        test: value["test"].as_bool().context("a target does not say if it is tested")?,
        required_features: features.filter_map(Value::as_str).map(str::to_owned).collect(),
    })
}

/// The kind of a target: `lib`, `bin`, `test`, or another one.
pub(crate) fn kind(target: &Value) -> Result<String> {
    let first = list(target, "kind").first().and_then(Value::as_str);
    Ok(first.context("a target has no kind")?.to_owned())
}

/// A text of an object that cargo printed.
pub(crate) fn text(value: &Value, key: &str) -> Result<String> {
    let text = value[key].as_str().with_context(|| format!("cargo printed no {key}"))?;
    Ok(text.to_owned())
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}
