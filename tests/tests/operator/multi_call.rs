//! The executable that contains all four programs: which one it runs as.

use anyhow::{Context, Result, ensure};
use rollout_tests::{output, program};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(150);
const EXECUTABLE: &str = "rollout-programs";
const PROGRAMS: [&str; 4] = ["rollout", "rolloutctl", "rollout-worker", "rollout-coordinator"];

/// A folder that contains the executable and nothing else.
fn alone() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let built = program(EXECUTABLE)?;
    let (from, to) = (Path::new(built.get_program()), folder.path().join(EXECUTABLE));
    // The folder may be on another disk than the build.
    if std::fs::hard_link(from, &to).is_err() {
        std::fs::copy(from, &to).context("the executable cannot be copied")?;
    }
    Ok(folder)
}

fn run(mut command: Command, words: &[&str]) -> Result<Output> {
    command.args(words).env("PATH", "");
    output(command, LIMIT)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a list of the programs has a line for each.
fn lists_all(text: &str) -> bool {
    let words = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let first: Vec<String> = text.lines().filter_map(words).collect();
    PROGRAMS.iter().all(|name| first.iter().any(|word| word == name))
}

#[test]
fn a_link_or_the_first_argument_chooses_the_program() -> Result<()> {
    let folder = alone()?;
    let executable = folder.path().join(EXECUTABLE);
    for name in PROGRAMS {
        let link = folder.path().join(name);
        symlink(EXECUTABLE, &link)?;
        let own = text(&run(program(name)?, &["--version"])?.stdout);
        ensure!(own.starts_with(&format!("{name} ")), "{own}");
        // These commands are read from the arguments of the process, at fixed positions.
        for words in [&["--version"][..], &["--help"], &["snapshot", "--help"], &["mock-engine"]] {
            let expected = run(program(name)?, words)?;
            let linked = run(Command::new(&link), words)?;
            ensure!(linked == expected, "{name} {words:?}: {linked:?}, not {expected:?}");
            let chosen = run(Command::new(&executable), &[&[name], words].concat())?;
            ensure!(chosen == expected, "{name} {words:?}: {chosen:?}, not {expected:?}");
        }
    }
    Ok(())
}

#[test]
fn an_unknown_program_is_refused_with_the_names_of_all_four() -> Result<()> {
    let folder = alone()?;
    let executable = folder.path().join(EXECUTABLE);
    let unknown: [&[&str]; 3] = [&[], &["rollout-unknown", "--version"], &["--rollout"]];
    for words in unknown {
        let refused = run(Command::new(&executable), words)?;
        ensure!(refused.status.code() == Some(2) && refused.stdout.is_empty(), "{refused:?}");
        ensure!(lists_all(&text(&refused.stderr)), "{refused:?}");
    }
    let help = run(Command::new(&executable), &["--help"])?;
    ensure!(help.status.success() && lists_all(&text(&help.stdout)), "{help:?}");
    let version = run(Command::new(&executable), &["--version"])?;
    ensure!(text(&version.stdout).starts_with("rollout-programs "), "{version:?}");
    Ok(())
}
