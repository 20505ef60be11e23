//! Owns: `cargo xtask lint`.
//!
//! Invariant: a failed check does not keep the others from running.
//! Absent: the rules; `rustfmt.toml`, the manifests, the `clippy.toml` files and `deny.toml` contain them.

use crate::report::Report;
use crate::workspace::Workspace;
use anyhow::Result;
use std::time::Duration;

/// Clippy compiles every dependency that is not compiled yet.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

const WITH_CARGO: &[(&str, &[&str])] = &[
    ("formatting", &["fmt", "--all", "--check"]),
    // The feature adds code and, but for a constant, removes none. `xtask test` builds without it, and fails on warnings.
    (
        "clippy, with seeded bugs",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "rollout-coordinator/seeded-bugs",
            "--",
            "-D",
            "warnings",
        ],
    ),
];

/// Runs every check; returns whether all passed.
///
/// # Errors
/// Never: each failure is in the report.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::begin("lint");
    for (name, args) in WITH_CARGO {
        report.step(name, workspace.cargo(args), LIMIT);
    }
    let tools = workspace.target.join("deny-tools");
    let deny = workspace.script("bash tests/deny/check.sh \"$1\"", &[tools.as_path()]);
    report.step("dependencies", deny, LIMIT);
    Ok(report.end())
}
