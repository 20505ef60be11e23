//! Owns: `cargo xtask release`.
//!
//! Invariant: the four programs, and the executable that contains them all, are built from the locked dependencies,
//! without the features that tests add to the workspace, and contain no seeded bug.
//! Absent: publishing them.

use crate::artifacts::{self, RELEASED};
use crate::report::Report;
use crate::seeded;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// cargo-deny may have to be built.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Packages by name: with `--workspace` cargo would add the features that the fuzz targets ask for.
const PROGRAMS: &[&str] = &[
    "--release",
    "--locked",
    "--bins",
    "-p",
    "rollout-coordinator",
    "-p",
    "rollout-worker",
    "-p",
    "rollout-ctl",
    "-p",
    "rollout-programs",
];

#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    /// Do not check the dependencies
    #[arg(long)]
    build_only: bool,
}

/// Builds the programs; returns their folder.
///
/// # Errors
/// When the build fails.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    artifacts::folder(&artifacts::build(workspace, PROGRAMS)?)
}

/// Checks the dependencies, builds the programs and searches them for seeded bugs. Returns whether all passed.
///
/// # Errors
/// Never: each failure is in the report.
pub(crate) fn run(workspace: &Workspace, args: &ReleaseArgs) -> Result<bool> {
    let mut report = Report::begin("release");
    if !args.build_only {
        let tools = workspace.target.join("deny-tools");
        let script = "bash tests/deny/check.sh \"$1\" advisories";
        report.step("dependencies", workspace.script(script, &[tools.as_path()]), LIMIT);
    }
    if let Some(folder) = report.try_stage("build", || build(workspace)) {
        report.try_stage("seeded bugs", || {
            seeded::check(&folder, &RELEASED, &seeded::names(&workspace.root)?)
        });
        report.try_stage("sizes", || sizes(&folder));
    }
    let commit = workspace.commit.as_deref().unwrap_or("unknown");
    println!("commit: {commit}");
    Ok(report.end())
}

fn sizes(folder: &Path) -> Result<()> {
    for program in RELEASED {
        let path = folder.join(program);
        let bytes = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        println!("{:>8} KiB  {}", bytes / 1024, path.display());
    }
    Ok(())
}
