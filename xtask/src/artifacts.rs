//! Owns: one build, and the executables that come out of it.
//!
//! Invariant: a test program is known for every target that cargo would test, or the build is refused. One call of cargo
//! builds programs, libraries and tests: all have the same features, so each dependency is compiled once.
//! Absent: running them.

use crate::workspace::{Package, Workspace, kind, text};
use crate::{signals, workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The executables of a release: the four programs, and the one that contains them all.
pub(crate) const RELEASED: [&str; 5] =
    ["rollout-coordinator", "rollout-worker", "rollout", "rolloutctl", "rollout-programs"];

/// The arguments of a build of all programs and libraries, without tests.
pub(crate) const PROGRAMS: &[&str] = &["--workspace", "--lib", "--bins"];

/// The arguments of a build of everything. It needs development dependencies: their features apply to all of it.
const EVERYTHING: &[&str] = &["--workspace", "--lib", "--bins", "--tests"];

/// The package of the tests that start real processes.
pub(crate) const PROCESS_TESTS: &str = "rollout-tests";

/// An executable that cargo has built, or found up to date.
pub(crate) struct Executable {
    manifest: PathBuf,
    kind: String,
    name: String,
    test: bool,
    path: PathBuf,
}

pub(crate) struct TestProgram<'a> {
    pub(crate) package: &'a Package,
    pub(crate) path: PathBuf,
    /// How a filter and a report name it.
    pub(crate) label: String,
}

impl TestProgram<'_> {
    /// Whether its tests start the programs.
    pub(crate) fn starts_processes(&self) -> bool {
        self.package.name == PROCESS_TESTS
    }
}

/// Everything that tests need.
pub(crate) struct Built<'a> {
    pub(crate) tests: Vec<TestProgram<'a>>,
    /// The folder of the programs.
    pub(crate) programs: PathBuf,
    /// How many warnings the compiler printed for the crates of this repository.
    pub(crate) warnings: usize,
}

/// Runs `cargo build` with these arguments.
///
/// # Errors
/// When the build fails.
pub(crate) fn build(workspace: &Workspace, args: &[&str]) -> Result<Vec<Executable>> {
    Ok(build_counting_warnings(workspace, args)?.0)
}

fn build_counting_warnings(
    workspace: &Workspace,
    args: &[&str],
) -> Result<(Vec<Executable>, usize)> {
    let colored = std::io::stderr().is_terminal();
    let format = if colored { "json-diagnostic-rendered-ansi" } else { "json" };
    let mut command = workspace.cargo(&["build", "--message-format", format]);
    command.args(args).stdout(Stdio::piped());
    let (mut child, _group) = signals::spawn(&mut command)?;
    let messages = child.stdout.take().context("cargo has no output")?;
    let (mut found, mut warnings) = (Vec::new(), 0);
    for line in BufReader::new(messages).lines() {
        let message: Value = match serde_json::from_str(&line.context("cannot read from cargo")?) {
            Ok(message) => message,
            // A build script may print more.
            Err(_) => continue,
        };
        if let Some(diagnostic) = diagnostic(&message) {
            eprint!("{}", diagnostic["rendered"].as_str().unwrap_or_default());
            warnings += usize::from(is_warning(diagnostic));
        }
        found.extend(executable(&message)?);
    }
    let status = child.wait()?;
    ensure!(status.success(), "cargo build {} failed: {status}", args.join(" "));
    Ok((found, warnings))
}

/// What the compiler says of a crate. Cargo hides what it says of the crates of others.
fn diagnostic(message: &Value) -> Option<&Value> {
    (message["reason"] == "compiler-message").then_some(&message["message"])
}

/// Whether this is a warning with a name. The count of warnings, which follows them, has none.
fn is_warning(diagnostic: &Value) -> bool {
    diagnostic["level"] == "warning" && !diagnostic["code"].is_null()
}

fn executable(message: &Value) -> Result<Option<Executable>> {
    let Some(path) = message["executable"].as_str() else { return Ok(None) };
    if message["reason"] != "compiler-artifact" {
        return Ok(None);
    }
    let target = &message["target"];
    Ok(Some(Executable {
        manifest: text(message, "manifest_path")?.into(),
        kind: kind(target)?,
        name: text(target, "name")?,
        test: message["profile"]["test"].as_bool().context("cargo printed no profile")?,
        path: path.into(),
    }))
}

/// Builds programs and tests. `features` are of the package of the process tests.
///
/// # Errors
/// When the build fails, or something that should be there is not.
pub(crate) fn everything<'a>(workspace: &'a Workspace, features: &[String]) -> Result<Built<'a>> {
    let wanted: Vec<String> =
        features.iter().map(|feature| format!("{PROCESS_TESTS}/{feature}")).collect();
    let wanted = wanted.join(",");
    let mut args = EVERYTHING.to_vec();
    if !features.is_empty() {
        args.extend(["--features", wanted.as_str()]);
    }
    let (executables, warnings) = build_counting_warnings(workspace, &args)?;
    let mut tests = Vec::new();
    for package in &workspace.packages {
        for target in package.targets.iter().filter(|target| target.test) {
            let has =
                |feature: &String| package.name == PROCESS_TESTS && features.contains(feature);
            if target.required_features.iter().all(has) {
                tests.push(test_program(package, target, &executables)?);
            }
        }
    }
    let programs = folder(&executables)?;
    Ok(Built { tests, programs, warnings })
}

fn test_program<'a>(
    package: &'a Package,
    target: &workspace::Target,
    executables: &[Executable],
) -> Result<TestProgram<'a>> {
    let found = executables.iter().find(|built| {
        built.test
            && built.manifest == package.manifest
            && built.kind == target.kind
            && built.name == target.name
    });
    let (of, kind, name) = (&package.name, &target.kind, &target.name);
    let found =
        found.with_context(|| format!("cargo built no test program of {of}: {kind} {name}"))?;
    let label = match target.kind.as_str() {
        "lib" => of.clone(),
        "test" if of == PROCESS_TESTS => name.clone(),
        _ => format!("{of}/{name}"),
    };
    Ok(TestProgram { package, path: found.path.clone(), label })
}

/// The folder that contains the programs of a release.
///
/// # Errors
/// When the build lacks one, or they are in several folders.
pub(crate) fn folder(executables: &[Executable]) -> Result<PathBuf> {
    let mut folder: Option<&Path> = None;
    for name in RELEASED {
        let is_it = |built: &&Executable| built.kind == "bin" && !built.test && built.name == name;
        let found = executables.iter().find(is_it);
        let path = &found.with_context(|| format!("cargo built no {name}"))?.path;
        let parent = path.parent().context("a program is in no folder")?;
        match folder {
            Some(folder) if folder != parent => {
                bail!("{} is not in {}", path.display(), folder.display())
            }
            _ => folder = Some(parent),
        }
    }
    Ok(folder.context("a release has no programs")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/ctl/Cargo.toml",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": format!("/t/debug/{name}"),
        })
    }

    fn built(names: &[&str]) -> Vec<Executable> {
        let found = names.iter().map(|name| executable(&message("bin", name, false)));
        found.map(|found| found.unwrap().unwrap()).collect()
    }

    #[test]
    fn a_build_that_lacks_a_program_of_the_release_is_refused() {
        assert_eq!(folder(&built(&RELEASED)).unwrap(), Path::new("/t/debug"));
        let error = folder(&built(&RELEASED[..3])).unwrap_err().to_string();
        assert!(error.contains("rolloutctl"), "{error}");
    }

    #[test]
    fn a_test_target_without_its_program_is_refused() {
        let target = |kind: &str, name: &str| workspace::Target {
            kind: kind.into(),
            name: name.into(),
            test: true,
            required_features: Vec::new(),
        };
        let package = Package {
            name: "rollout-ctl".into(),
            version: "0.1.0".into(),
            manifest: "/w/ctl/Cargo.toml".into(),
            targets: Vec::new(),
        };
        let there = [executable(&message("test", "batch", true)).unwrap().unwrap()];
        let found = test_program(&package, &target("test", "batch"), &there).unwrap();
        assert_eq!(found.label, "rollout-ctl/batch");
        assert!(test_program(&package, &target("test", "other"), &there).is_err());
        assert!(test_program(&package, &target("bin", "batch"), &there).is_err());
    }

    #[test]
    fn only_warnings_with_a_name_are_counted() {
        let message = |level: &str, code: Value| {
            serde_json::json!({
                "reason": "compiler-message",
                "message": { "level": level, "code": code, "rendered": "..." },
            })
        };
        let unused = serde_json::json!({ "code": "unused_imports" });
        let counted = |message: &Value| diagnostic(message).is_some_and(is_warning);
        assert!(counted(&message("warning", unused.clone())));
        assert!(!counted(&message("warning", Value::Null)), "this is the number of warnings");
        assert!(!counted(&message("note", unused)));
        assert!(!counted(&self::message("lib", "rollout_ctl", false)));
    }

    #[test]
    fn a_message_without_an_executable_is_none() {
        let mut library = message("lib", "rollout_ctl", false);
        library["executable"] = Value::Null;
        assert!(executable(&library).unwrap().is_none());
    }
}
