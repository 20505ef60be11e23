//! Owns: `cargo xtask release verify`: the nightly tests of a release, and their report beside its files.
//!
//! Invariant: the folder of a release always has a report. It lists every nightly test; one that did not run says so.
//! Results of the same commit and machine stay until the test runs again: the tests can run in several calls.
//! Absent: the tests; `nightly` has them.

use super::version::Version;
use super::{FolderArgs, REPORT};
use crate::nightly;
use crate::nightly_report::ReportFile;
use crate::workspace::Workspace;
use anyhow::{Context as _, Result};
use std::path::Path;

#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Run only this one, a target of the Makefile, and keep the other results of the report; repeatable
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
}

/// Runs the nightly tests, and replaces the report after each.
///
/// # Errors
/// When a name is unknown, or a report cannot be written.
pub(super) fn run(workspace: &Workspace, args: &VerifyArgs) -> Result<bool> {
    let version = Version::present(workspace)?;
    let folder = args.folder.path(workspace, version)?;
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = ReportFile::of_release(folder.join(REPORT), title(version));
    nightly::run_selected(workspace, &args.only, file)
}

/// Writes the report of a release for which nothing has run yet.
///
/// # Errors
/// When it cannot be written.
pub(super) fn not_run(workspace: &Workspace, folder: &Path, version: Version) -> Result<()> {
    let reason = "cargo xtask release verify has not run it";
    let page = nightly::page_without_runs(workspace, &title(version), reason);
    std::fs::write(folder.join(REPORT), page).context(REPORT)
}

fn title(version: Version) -> String {
    format!("Verification of rollout {version}")
}
