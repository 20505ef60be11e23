//! Owns: `cargo xtask release package`: the files of a release.
//!
//! Invariant: SHA256SUMS is written last, and only if every other step passed: a folder that has it is complete. The
//! files come from a commit, and the wheel is the one that was installed and tested.
//! Absent: what is in the archives (`release/archives.sh`), in the wheel (`tests/wheel`) and in the SBOM
//! (`release/sbom.sh`).

use super::provenance::{self, Build, PROVENANCE, Toolchain};
use super::version::Version;
use super::{Dependencies, changelog, checked_build, checksums, prepare, tag, verify};
use crate::report::Report;
use crate::run::output;
use crate::workspace::Workspace;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The wheel is built, and tested in each Python.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

#[derive(Debug, clap::Args)]
pub(super) struct PackageArgs {
    #[command(flatten)]
    folder: super::FolderArgs,
    /// Fail unless this is the tag of the version, such as v0.2.0, at HEAD, and on the main branch of `origin`
    #[arg(long)]
    tag: Option<String>,
    /// URI of the system that builds, for the provenance [default: a section of docs/releasing.md]
    #[arg(long, value_name = "URI")]
    builder: Option<String>,
    /// Package even if the dependencies cannot be checked for known vulnerabilities; provenance.json then says so
    #[arg(long)]
    allow_no_advisories: bool,
}

impl PackageArgs {
    fn dependencies(&self) -> Dependencies {
        match self.allow_no_advisories {
            true => Dependencies::CheckedIfPossible,
            false => Dependencies::Checked,
        }
    }
}

/// A release that is being built.
struct Release<'a> {
    workspace: &'a Workspace,
    version: Version,
    commit: String,
    /// The time of the commit, in seconds since 1970.
    seconds: String,
    folder: PathBuf,
    toolchain: Toolchain,
    started: String,
    builder: Option<String>,
}

/// Builds the files of a release into a new folder.
///
/// # Errors
/// When the tag, the tree or the folder does not fit. What fails later is in the report.
pub(super) fn run(workspace: &Workspace, args: &PackageArgs) -> Result<bool> {
    let version = Version::present(workspace)?;
    if let Some(tag) = &args.tag {
        ensure!(*tag == version.tag(), "the tag is {tag}, and the version {version}");
    }
    // The archives are named for this machine, and the wheel's script expects the programs in `target/release`.
    let target = std::env::var_os("CARGO_BUILD_TARGET");
    ensure!(target.is_none(), "unset CARGO_BUILD_TARGET: a release is built for this machine");
    prepare::clean(&workspace.root)?;
    let commit = head(workspace)?;
    ensure!(workspace.commit.as_ref() == Some(&commit), "ROLLOUT_COMMIT names another commit");
    let seconds = output(workspace.command("git", &["log", "-1", "--format=%ct"]))?;
    let folder = args.folder.path(workspace, version)?;
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let empty = std::fs::read_dir(&folder)?.next().is_none();
    ensure!(empty, "{} has files: remove it, or name another folder", folder.display());
    let mut report = Report::begin("release package");
    if let Some(tag) = &args.tag
        && let Some(what) = tag::check(&workspace.root, tag, &commit)?
    {
        report.not_run(what);
    }
    let started = provenance::now()?;
    let toolchain = Toolchain::find(workspace)?;
    let builder = args.builder.clone();
    let release =
        Release { workspace, version, commit, seconds, folder, toolchain, started, builder };
    if let Some(programs) = checked_build(workspace, &mut report, args.dependencies()) {
        release.files(&mut report, &programs);
    }
    println!("{}: {}", version, release.folder.display());
    Ok(report.end())
}

impl Release<'_> {
    /// Writes every file; stops at the first that fails.
    fn files(&self, report: &mut Report, programs: &Path) -> Option<()> {
        report.step("archives", self.archives(programs), LIMIT).then_some(())?;
        let wheels = self.workspace.target.join("wheels");
        let mut wheel = self.workspace.command("bash", &["tests/wheel/check.sh"]);
        // The time of the files in the wheel. Otherwise its bytes would differ with each build.
        wheel.arg(&wheels).env("SOURCE_DATE_EPOCH", &self.seconds);
        self.workspace.name_commit(&mut wheel);
        report.step("wheel", wheel, LIMIT).then_some(())?;
        report.try_stage("copy of the wheel", || copy_wheel(&wheels, &self.folder))?;
        let mut sbom = self.workspace.command("bash", &["release/sbom.sh"]);
        sbom.arg(&self.folder);
        report.step("SBOM", sbom, LIMIT).then_some(())?;
        report.try_stage("unchanged sources", || self.unchanged())?;
        let not_run = report.all_not_run().to_vec();
        report.try_stage("provenance", || self.provenance(not_run))?;
        report.try_stage("verification report", || {
            verify::not_run(self.workspace, &self.folder, self.version)
        })?;
        report.try_stage("checksums", || checksums::write(&self.folder))
    }

    /// Fails if somebody changed the sources meanwhile: the build takes an hour.
    fn unchanged(&self) -> Result<()> {
        output(self.workspace.command("git", &["diff", "--quiet", "HEAD"]))
            .context("a tracked file changed during the build")?;
        let (begun, now) = (&self.commit, head(self.workspace)?);
        ensure!(*begun == now, "the build began at commit {begun}, and HEAD is {now} now");
        Ok(())
    }

    fn archives(&self, programs: &Path) -> Command {
        let name = format!("rollout-{}-{}", self.version, self.toolchain.host);
        let mut command = self.workspace.command("bash", &["release/archives.sh"]);
        command.arg(programs).args([&name, &self.seconds]).arg(&self.folder);
        command
    }

    fn provenance(&self, not_run: Vec<String>) -> Result<()> {
        let changelog = self.workspace.root.join("CHANGELOG.md");
        let changelog = std::fs::read_to_string(changelog).context("CHANGELOG.md")?;
        let repository = changelog::repository(&changelog)?;
        let by_hand = || format!("{repository}/blob/main/docs/releasing.md#build-by-hand");
        let build = Build {
            repository: repository.to_owned(),
            commit: self.commit.clone(),
            version: self.version.to_string(),
            builder: self.builder.clone().unwrap_or_else(by_hand),
            started: self.started.clone(),
            finished: provenance::now()?,
            not_run,
        };
        let files = checksums::digests(&self.folder)?;
        let statement = provenance::statement(&build, &self.toolchain, &files);
        let text = serde_json::to_string_pretty(&statement)? + "\n";
        std::fs::write(self.folder.join(PROVENANCE), text).context(PROVENANCE)
    }
}

fn head(workspace: &Workspace) -> Result<String> {
    output(workspace.command("git", &["rev-parse", "HEAD"]))
}

/// Copies the one wheel that `tests/wheel` leaves.
fn copy_wheel(from: &Path, to: &Path) -> Result<()> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            found.push(path);
        }
    }
    let [wheel] = &found[..] else {
        anyhow::bail!("{} has {} wheels, not one", from.display(), found.len());
    };
    let name = wheel.file_name().context("a wheel has no name")?;
    std::fs::copy(wheel, to.join(name)).context("cannot copy the wheel")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: PackageArgs,
    }

    #[test]
    fn only_a_flag_lets_a_release_pass_whose_dependencies_could_not_be_checked() {
        let dependencies = |args: &[&str]| Cli::parse_from(args).args.dependencies();
        assert_eq!(dependencies(&["package"]), Dependencies::Checked);
        let allowed = dependencies(&["package", "--allow-no-advisories"]);
        assert_eq!(allowed, Dependencies::CheckedIfPossible);
    }

    #[test]
    fn the_one_wheel_is_copied_and_another_number_is_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let copy = || copy_wheel(from.path(), to.path());
        assert!(copy().is_err());
        std::fs::write(from.path().join("a.whl"), "a").unwrap();
        std::fs::write(from.path().join("a.log"), "a").unwrap();
        copy().unwrap();
        assert!(to.path().join("a.whl").is_file() && !to.path().join("a.log").exists());
        std::fs::write(from.path().join("b.whl"), "b").unwrap();
        assert!(copy().is_err());
    }
}
