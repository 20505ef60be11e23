//! Owns: `cargo xtask release publish`: a draft of the release on GitHub, with its files and notes.
//!
//! Invariant: only a complete folder is uploaded: each file as SHA256SUMS lists it, and a verification report.
//! Absent: the tag, and making the draft public.

use super::version::Version;
use super::{FolderArgs, REPORT, changelog, checksums};
use crate::run::plain;
use crate::workspace::Workspace;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Verification report to publish instead of the one in the folder
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Creates the draft with GitHub's program `gh`.
///
/// # Errors
/// When the folder is incomplete, the changelog has no section of the version, or `gh` cannot be started.
pub(super) fn run(workspace: &Workspace, args: &PublishArgs) -> Result<bool> {
    let version = Version::present(workspace)?;
    let folder = args.folder.path(workspace, version)?;
    if let Some(report) = &args.report {
        let copied = std::fs::copy(report, folder.join(REPORT));
        copied.with_context(|| report.display().to_string())?;
    }
    let files = complete(&folder)?;
    let changelog = workspace.root.join("CHANGELOG.md");
    let changelog = std::fs::read_to_string(changelog).context("CHANGELOG.md")?;
    let notes = workspace.target.join("release-notes.md");
    std::fs::write(&notes, changelog::notes(&changelog, version)?).context("the notes")?;
    let (tag, title) = (version.tag(), format!("rollout {version}"));
    let options =
        ["release", "create", tag.as_str(), "--draft", "--verify-tag", "--title", title.as_str()];
    let mut gh = workspace.command("gh", &options);
    gh.arg("--notes-file").arg(notes).args(files);
    Ok(plain(gh)?.success())
}

/// The files of a complete release.
fn complete(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = checksums::check(folder)?.into_iter().map(|file| file.name);
    let others = [checksums::SUMS, REPORT].map(str::to_owned);
    let files: Vec<PathBuf> = listed.chain(others).map(|name| folder.join(name)).collect();
    let report = folder.join(REPORT);
    ensure!(report.is_file(), "{} is missing: run `cargo xtask release verify`", report.display());
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_checksums_or_a_verification_report_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a.tar.gz"), "a").unwrap();
        assert!(complete(folder.path()).is_err());
        checksums::write(folder.path()).unwrap();
        assert!(complete(folder.path()).unwrap_err().to_string().contains(REPORT));
        std::fs::write(at(REPORT), "NOT RUN").unwrap();
        let files = ["a.tar.gz", checksums::SUMS, REPORT].map(at);
        assert_eq!(complete(folder.path()).unwrap(), files);
        std::fs::write(at("a.tar.gz"), "b").unwrap();
        assert!(complete(folder.path()).is_err());
    }
}
