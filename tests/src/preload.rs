//! The preloaded library that controls the clock and disk of a process under test.
//!
//! *Invariant:* it is built from the same sources and with the same profile as the test.
//! Absent: the faults themselves; the library's own environment variables select them.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Makes the process of this command, and all processes that it starts, load the library with this variable.
pub(crate) fn give(command: &mut Command, variable: &str, value: &Path) -> Result<()> {
    command.env("LD_PRELOAD", library()?).env(variable, value);
    Ok(())
}

/// The library, built once into the test's own target directory.
fn library() -> Result<&'static Path> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow::anyhow!("the preloaded library: {error}"))
}

fn build() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    // <target>/<profile>/deps/<test>
    let profile = exe.ancestors().nth(2).context("the test is not where cargo puts tests")?;
    let target = profile.parent().context("a profile is in a target directory")?;
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "-p", "rollout-preload", "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status()?;
    let library = profile.join("librollout_preload.so");
    ensure!(status.success() && library.is_file(), "{} was not built", library.display());
    Ok(library)
}
