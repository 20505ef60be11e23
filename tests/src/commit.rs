//! Owns: the comparison of the programs' commits with the commit under test.
//!
//! Invariant: under `cargo xtask test` no test starts a program of another commit: a stale program fails the test.
//! Absent: the programs of earlier builds, which tests of upgrades start on purpose.

use crate::process;
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Names the commit that the programs were built from. `cargo xtask test` sets it.
pub const VARIABLE: &str = "ROLLOUT_COMMIT";

/// The executables of a release: the four programs, and the one that contains them all.
pub const PROGRAMS: [&str; 5] =
    ["rollout-coordinator", "rollout-worker", "rollout", "rolloutctl", "rollout-programs"];

const LIMIT: Duration = Duration::from_secs(60);

/// The commit under test, if this process knows it.
pub fn under_test() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty())
}

/// Compares the commits of a release's programs in a folder with the expected one.
///
/// # Errors
/// When a program is of another commit, or cannot be run.
pub fn check(bin: &Path, expected: &str) -> Result<()> {
    for program in PROGRAMS {
        let mut command = Command::new(bin.join(program));
        command.arg("--version");
        let ended = process::output(command, LIMIT)?;
        ensure!(ended.status.success(), "{program} --version: {ended:?}");
        let stdout = String::from_utf8_lossy(&ended.stdout);
        ensure!(
            is_of(&stdout, expected),
            "{} is of another commit: --version prints {:?}, and the commit under test is {expected}; run `make build`",
            bin.join(program).display(),
            stdout.trim_end()
        );
    }
    Ok(())
}

/// Whether the output of `--version` ends with this commit in parentheses.
fn is_of(said: &str, commit: &str) -> bool {
    said.trim_end().ends_with(&format!(" ({commit})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_without_a_commit_or_with_another_one_is_refused() {
        assert!(is_of("rollout 0.1.0 (4f2c)\n", "4f2c"));
        assert!(!is_of("rollout 0.1.0 (4f2c-dirty)\n", "4f2c"));
        assert!(!is_of("rollout 0.1.0 (a4f2c)\n", "4f2c"));
        assert!(!is_of("rollout 0.1.0\n", "4f2c"));
    }
}
