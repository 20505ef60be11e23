//! Owns: `cargo xtask release`: its steps, and the build of the programs.
//!
//! Invariant: the four programs, and the executable that contains them all, are built from the locked dependencies,
//! without the features that tests add to the workspace, and contain no seeded bug.
//! Absent: commits, tags, and making a release public; maintainers do that (docs/releasing.md).

mod changelog;
mod checksums;
mod first_release;
mod github;
mod package;
mod prepare;
mod provenance;
mod publish;
mod tag;
mod verify;
mod version;

use crate::artifacts::{self, RELEASED};
use crate::report::Report;
use crate::seeded;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use version::Version;

/// cargo-deny may have to be built.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// The verification report in the folder of a release.
const REPORT: &str = "verification.md";

/// Whether the dependencies are checked before a build. The database of known vulnerabilities is on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dependencies {
    Unchecked,
    /// What cannot be checked is reported as not run.
    CheckedIfPossible,
    /// What cannot be checked is a failure.
    Checked,
}

impl Dependencies {
    /// The argument of `tests/deny/check.sh`; none if it is not called.
    fn argument(self) -> Option<&'static str> {
        match self {
            Self::Unchecked => None,
            Self::CheckedIfPossible => Some("advisories-if-possible"),
            Self::Checked => Some("advisories"),
        }
    }
}

/// The arguments of the build. Packages by name: with `--workspace` cargo would add the features that the fuzz targets
/// ask for.
const RELEASE_BUILD: &[&str] = &[
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
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReleaseArgs {
    /// Do not check the dependencies
    #[arg(long)]
    build_only: bool,
    #[command(subcommand)]
    step: Option<Step>,
}

// In the order of a release. A doc comment here would replace the help of `release`.
#[derive(Debug, clap::Subcommand)]
enum Step {
    /// Set the version in the files that carry it, and name the unreleased section of the changelog after it
    Prepare {
        /// Version, three numbers: 0.2.0
        version: Version,
    },
    /// Build the programs, and pack them with the wheel, the SBOM, provenance and checksums
    Package(package::PackageArgs),
    /// Run the nightly tests, and write the verification report beside the files
    Verify(verify::VerifyArgs),
    /// Create a draft of the release on GitHub, with the files
    Publish(publish::PublishArgs),
}

#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// Folder of the files [default: release-VERSION in the target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl FolderArgs {
    /// The folder, as a path that is the same for commands in other folders.
    fn path(&self, workspace: &Workspace, version: Version) -> Result<PathBuf> {
        match &self.out {
            Some(folder) => std::path::absolute(folder).context("the folder has no path"),
            None => Ok(workspace.target.join(format!("release-{version}"))),
        }
    }
}

/// Builds the programs; returns their folder.
///
/// # Errors
/// When the build fails.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    artifacts::folder(&artifacts::build(workspace, RELEASE_BUILD)?)
}

/// Runs a step of a release. Without one, builds and checks the programs. Returns whether all passed.
///
/// # Errors
/// When a step does not begin. Later failures are in its report.
pub(crate) fn run(workspace: &Workspace, args: &ReleaseArgs) -> Result<bool> {
    match &args.step {
        Some(Step::Prepare { version }) => prepare::run(workspace, *version),
        Some(Step::Package(args)) => package::run(workspace, args),
        Some(Step::Verify(args)) => verify::run(workspace, args),
        Some(Step::Publish(args)) => publish::run(workspace, args),
        None => {
            let mut report = Report::begin("release");
            let dependencies = match args.build_only {
                true => Dependencies::Unchecked,
                false => Dependencies::CheckedIfPossible,
            };
            checked_build(workspace, &mut report, dependencies);
            let commit = workspace.commit.as_deref().unwrap_or("unknown");
            println!("commit: {commit}");
            Ok(report.end())
        }
    }
}

/// Checks the dependencies, builds the programs and searches them for seeded bugs. Returns the folder of the programs if
/// all passed.
fn checked_build(
    workspace: &Workspace,
    report: &mut Report,
    dependencies: Dependencies,
) -> Option<PathBuf> {
    let mut passed = true;
    if let Some(argument) = dependencies.argument() {
        let mut check = workspace.command("bash", &["tests/deny/check.sh"]);
        check.arg(workspace.target.join("deny-tools")).arg(argument);
        passed = report.step("dependencies", check, LIMIT);
    }
    let folder = report.try_stage("build", || build(workspace))?;
    let searched = report.try_stage("seeded bugs", || {
        seeded::check(&folder, &RELEASED, &seeded::names(&workspace.root)?)
    });
    let measured = report.try_stage("sizes", || sizes(&folder));
    (passed && searched.is_some() && measured.is_some()).then_some(folder)
}

fn sizes(folder: &Path) -> Result<()> {
    for program in RELEASED {
        let path = folder.join(program);
        let bytes = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        println!("{:>8} KiB  {}", bytes / 1024, path.display());
    }
    Ok(())
}
