//! Owns: running `rollout-coordinator snapshot ...`, the program that has the ledger and its stores.
//!
//! Invariant: the program in this executable or next to it is run, or else the one on PATH. Its stderr is passed on,
//! and its exit status becomes this program's.
//! Absent: what it does.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Stdio;

use anyhow::Context as _;
use rollout_proto::programs::{self, Program};

use crate::rolloutctl::Failure;

const PROGRAM: &str = "rollout-coordinator";

/// Runs it with these arguments, and returns what it printed.
pub(super) fn run(args: &[OsString]) -> anyhow::Result<String> {
    let program = program();
    let ended = program
        .command()
        .arg("snapshot")
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| {
            format!("cannot run {}: it has to be installed on this host", program.path.display())
        })?;
    if !ended.status.success() {
        let code = ended.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        return Err(Failure::reported(code).into());
    }
    String::from_utf8(ended.stdout).context("rollout-coordinator printed no text")
}

/// Writes the state in the member's directory `dir` to `file`.
pub(super) fn salvage(file: &Path, dir: &Path, confirm: Option<&str>) -> anyhow::Result<()> {
    let mut args = arguments(&[OsStr::new("salvage"), file.as_os_str()]);
    args.extend(arguments(&[OsStr::new("--data-dir"), dir.as_os_str(), OsStr::new("--json")]));
    if let Some(name) = confirm {
        args.extend(arguments(&[OsStr::new("--confirm"), OsStr::new(name)]));
    }
    run(&args).map(drop)
}

/// Arguments in the form that the program accepts.
pub(super) fn arguments(args: &[&OsStr]) -> Vec<OsString> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn program() -> Program {
    // If it is nowhere, its start fails with an error that says so.
    programs::find(PROGRAM).unwrap_or_else(|_| Program { path: PROGRAM.into(), name: None })
}
