//! Compares the daemons' `--help` with the files in `tests/tests/testdata/help`.
//!
//! Invariant: a flag, variable or default of a daemon that appears, disappears or changes shows in the diff of a file
//! that a reviewer reads, like those of `rollout` and `rolloutctl` in `ctl/testdata/help`. `ROLLOUT_REWRITE=1`
//! rewrites the files.

use anyhow::{Result, ensure};
use rollout_recorded::check;
use rollout_tests::{output, program};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The help of a program and of its subcommands, independent of the environment and the terminal.
fn help(name: &str, commands: &[&[&str]]) -> Result<String> {
    let mut text = String::new();
    for words in commands {
        let mut command = program(name)?;
        command.args(*words).arg("--help").env_clear();
        let ended = output(command, LIMIT)?;
        ensure!(ended.status.success(), "{ended:?}");
        let line = [&[name], *words, &["--help"]].concat().join(" ");
        text.push_str(&format!("$ {line}\n{}\n", String::from_utf8(ended.stdout)?));
    }
    Ok(text)
}

fn compare(name: &str, commands: &[&[&str]]) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/help");
    check(folder.join(format!("{name}.txt")), &help(name, commands)?);
    Ok(())
}

#[test]
fn the_help_of_a_member_and_of_what_it_does_offline_is_the_one_that_is_kept() -> Result<()> {
    let commands: [&[&str]; 4] =
        [&[], &["snapshot"], &["snapshot", "restore"], &["snapshot", "salvage"]];
    compare("rollout-coordinator", &commands)
}

#[test]
fn the_help_of_a_worker_is_the_one_that_is_kept() -> Result<()> {
    compare("rollout-worker", &[&[]])
}
