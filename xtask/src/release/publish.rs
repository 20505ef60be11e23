//! Owns: `cargo xtask release publish`: a draft of the release on GitHub, with its files and notes.
//!
//! Invariant: only a complete folder is uploaded: each file as SHA256SUMS lists it, built from the commit of the tag, and
//! a verification report of the same commit, in which something passed completely and nothing failed.
//! Absent: the tag, and making the draft public.

use super::github::Repository;
use super::version::Version;
use super::{FolderArgs, REPORT, changelog, checksums, provenance, tag};
use crate::nightly_page::{Entry, Outcome, read as read_report};
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

/// Creates the draft in the repository that the changelog links to.
///
/// # Errors
/// When the tag is missing, the folder is incomplete or of another commit, the changelog has no section of the version,
/// GitHub has a release with the tag, or `gh` cannot be started.
pub(super) fn run(workspace: &Workspace, args: &PublishArgs) -> Result<bool> {
    let version = Version::present(workspace)?;
    let folder = args.folder.path(workspace, version)?;
    if let Some(report) = &args.report {
        let copied = std::fs::copy(report, folder.join(REPORT));
        copied.with_context(|| report.display().to_string())?;
    }
    let files = complete(&folder, &tag::commit(&workspace.root, &version.tag())?)?;
    let changelog = workspace.root.join("CHANGELOG.md");
    let changelog = std::fs::read_to_string(changelog).context("CHANGELOG.md")?;
    let notes = workspace.target.join("release-notes.md");
    std::fs::write(&notes, changelog::notes(&changelog, version)?).context("the notes")?;
    let (tag, title) = (version.tag(), format!("rollout {version}"));
    let repository = Repository::at(changelog::repository(&changelog)?)?;
    repository.check_free(workspace, &tag)?;
    repository.draft(workspace, (&tag, &title), &notes, &files)
}

/// The files of a complete release of this commit.
fn complete(folder: &Path, commit: &str) -> Result<Vec<PathBuf>> {
    let listed = checksums::check(folder)?.into_iter().map(|file| file.name);
    let others = [checksums::SUMS, REPORT].map(str::to_owned);
    let files: Vec<PathBuf> = listed.chain(others).map(|name| folder.join(name)).collect();
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let built = provenance::commit(&read(provenance::PROVENANCE)?)?;
    ensure!(built == commit, "the files are of commit {built}, and the tag is at {commit}");
    verified(&read(REPORT)?, commit).context(REPORT)?;
    Ok(files)
}

/// Fails unless this is a report of the commit, in which something passed completely and nothing failed.
fn verified(report: &str, commit: &str) -> Result<()> {
    let (conditions, entries) = read_report(report)?;
    let of = conditions.commit;
    ensure!(of == commit, "the report is of commit {of}, and the tag is at {commit}");
    let is_failed = |entry: &&Entry| matches!(entry.outcome, Outcome::Failed(_));
    let failed = entries.iter().filter(is_failed);
    let failed: Vec<String> =
        failed.map(|entry| format!("{}: {}", entry.name, entry.result())).collect();
    ensure!(failed.is_empty(), "the report has failures:\n{}", failed.join("\n"));
    let has_passed =
        |entry: &Entry| matches!(&entry.outcome, Outcome::Passed { not_run } if not_run.is_empty());
    ensure!(
        entries.iter().any(has_passed),
        "no test has passed completely: run `cargo xtask release verify`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::provenance::PROVENANCE;
    use super::*;
    use crate::nightly_page::{Conditions, page};
    use serde_json::json;

    /// A folder with the files of a release of the commit 4f2c, and with this report.
    fn folder(report: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let parameters = json!({"externalParameters": {"commit": "4f2c"}});
        let statement = json!({"predicate": {"buildDefinition": parameters}});
        std::fs::write(at("a.tar.gz"), "a").unwrap();
        std::fs::write(at(PROVENANCE), statement.to_string()).unwrap();
        std::fs::write(at(REPORT), report).unwrap();
        checksums::write(folder.path()).unwrap();
        folder
    }

    fn report(commit: &str, outcome: Outcome) -> String {
        let conditions = Conditions { commit: commit.into(), machine: "Machine: 2 cores.".into() };
        let entry = Entry { outcome, ..Entry::not_run("soak", "") };
        page("Verification", &conditions, &[entry])
    }

    fn passed() -> Outcome {
        Outcome::Passed { not_run: Vec::new() }
    }

    fn refused(folder: &Path, commit: &str) -> String {
        format!("{:#}", complete(folder, commit).unwrap_err())
    }

    #[test]
    fn a_folder_without_checksums_or_a_verification_report_is_refused() {
        let folder = folder(&report("4f2c", passed()));
        let at = |name: &str| folder.path().join(name);
        let files = ["a.tar.gz", PROVENANCE, checksums::SUMS, REPORT].map(at);
        assert_eq!(complete(folder.path(), "4f2c").unwrap(), files);
        std::fs::write(at("a.tar.gz"), "b").unwrap();
        assert!(refused(folder.path(), "4f2c").contains("a.tar.gz"));
        std::fs::write(at("a.tar.gz"), "a").unwrap();
        std::fs::remove_file(at(REPORT)).unwrap();
        assert!(refused(folder.path(), "4f2c").contains(REPORT));
        std::fs::remove_file(at(checksums::SUMS)).unwrap();
        assert!(refused(folder.path(), "4f2c").contains(checksums::SUMS));
    }

    #[test]
    fn files_or_a_report_of_another_commit_than_the_tag_are_refused() {
        let same = folder(&report("4f2c", passed()));
        assert!(refused(same.path(), "a1b2").contains("the files are of commit 4f2c"));
        for other in ["a1b2", "4f2c-dirty"] {
            let folder = folder(&report(other, passed()));
            let expected = format!("the report is of commit {other}");
            assert!(refused(folder.path(), "4f2c").contains(&expected));
        }
    }

    #[test]
    fn a_report_with_a_failure_or_in_which_nothing_ran_is_refused() {
        let failed = folder(&report("4f2c", Outcome::Failed("exit status: 2".into())));
        assert!(refused(failed.path(), "4f2c").contains("soak: FAILED: exit status: 2"));
        let in_part = Outcome::Passed { not_run: vec!["no root".into()] };
        for outcome in [Outcome::NotRun("not selected".into()), in_part] {
            let folder = folder(&report("4f2c", outcome));
            assert!(refused(folder.path(), "4f2c").contains("no test has passed"));
        }
        let other = folder("Everything passed.\n");
        assert!(refused(other.path(), "4f2c").contains("no table of results"));
    }
}
