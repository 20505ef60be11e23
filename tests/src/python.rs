//! Python programs in a fleet's tests that need only the interpreter and rollout's package.
//!
//! *Invariant:* the package is the one of this tree, with the extension module that was built beside the binaries.
//! Absent: torch; see the module `torch`.

use crate::fleet::Fleet;
use crate::process::Process;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts the program `tests/python/NAME`, which appends to the log NAME.log.
///
/// # Errors
/// When there is no extension module, or no interpreter.
pub fn python(fleet: &Fleet, name: &str, program: &str, args: &[&str]) -> Result<Process> {
    let package = package(fleet)?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let interpreter = std::env::var_os("ROLLOUT_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(interpreter);
    command.env("PYTHONPATH", package).env("ROLLOUT_CONTEXT", fleet.path("user.toml"));
    command.arg("-u").arg(here.join("python").join(program)).args(args);
    fleet.use_store(&mut command, name);
    Process::start(command, &fleet.path(&format!("{name}.log")))
}

/// The directory of the package, made once per fleet from this tree.
fn package(fleet: &Fleet) -> Result<PathBuf> {
    let place = fleet.path("python");
    let package = place.join("rollout");
    if package.exists() {
        return Ok(place);
    }
    let native = fleet.built("librollout_native.so");
    let native =
        native.context("build the extension module first: cargo build -p rollout-python")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/python/rollout");
    std::fs::create_dir_all(&package)?;
    for file in std::fs::read_dir(&source)? {
        let file = file?.path();
        let name = file.file_name().context("a file's name")?;
        if file.is_file() {
            std::fs::copy(&file, package.join(name))?;
        }
    }
    std::fs::copy(native, package.join("_native.abi3.so"))?;
    ensure!(package.join("py.typed").exists(), "the package says that it is typed");
    Ok(place)
}
