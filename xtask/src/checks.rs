//! Owns: the checks that are no Rust tests: deploy/, the pages, the guides, preflight.
//!
//! Invariant: they use programs that are built already; no script here calls cargo for them.
//! Absent: what they check; their scripts are in `tests/`.

use crate::artifacts::{PROGRAMS, build, folder};
use crate::lanes::{Judge, Piece, Sequence};
use crate::report::Report;
use crate::workspace::Workspace;
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A check takes minutes. ROLLOUT_PREFLIGHT_MAKE adds a build of everything, RocksDB included.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Check {
    /// The chart, units, configurations, alert rules and dashboard below deploy/
    Deploy,
    /// Commands, configurations and code in every page, compared with the programs and schemas
    Docs,
    /// The shell blocks of the quickstart and of the guide, word for word
    Guide,
    /// Preflight in clean Debian roots
    Preflight,
}

impl Check {
    /// All checks, in the order in which they run.
    const ALL: [Self; 4] = [Self::Deploy, Self::Docs, Self::Guide, Self::Preflight];

    fn name(self) -> &'static str {
        match self {
            Self::Deploy => "check deploy",
            Self::Docs => "check docs",
            Self::Guide => "check guide",
            Self::Preflight => "check preflight",
        }
    }

    /// The script for bash. `$1` is the folder of the programs, `$2` the target directory.
    fn script(self) -> &'static str {
        match self {
            Self::Deploy => r#"bash tests/deploy/check.sh "$1" "$2/deploy-python""#,
            Self::Docs => {
                r#"python="$(bash tests/deploy/setup.sh "$2/deploy-python")"
                   export PYTHONDONTWRITEBYTECODE=1
                   for check in test_checker check; do "$python" "tests/docs/$check.py" "$1"; done"#
            }
            Self::Guide => {
                r#"python3 tests/guide/run.py "$1" docs/quickstart.md
                   python3 tests/guide/run.py "$1" docs/guide.md docs/guide-repairs.md"#
            }
            Self::Preflight => r#"bash tests/preflight/check.sh "$2/preflight""#,
        }
    }
}

/// All checks. None may run beside another: they share folders, ports and the package manager.
pub(crate) fn all(workspace: &Workspace, programs: &Path) -> Sequence<'static> {
    let piece = |check: Check| Piece {
        label: check.name().to_owned(),
        judge: Judge::ExitStatus,
        command: command(workspace, check, programs),
        limit: LIMIT,
    };
    Check::ALL.map(piece).into()
}

fn command(workspace: &Workspace, check: Check, programs: &Path) -> Command {
    workspace.script(check.script(), &[programs, workspace.target.as_path()])
}

/// Builds the programs if the check needs them, and runs it.
///
/// # Errors
/// When the build fails.
pub(crate) fn run(workspace: &Workspace, check: Check) -> Result<bool> {
    let programs = match check {
        Check::Preflight => workspace.target.join("debug"),
        _ => folder(&build(workspace, PROGRAMS)?)?,
    };
    let mut report = Report::begin("check");
    report.step(check.name(), command(workspace, check, &programs), LIMIT);
    Ok(report.end())
}
