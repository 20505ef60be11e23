//! Each program of a release prints the commit that it was built from.

use anyhow::{Context, Result, ensure};
use rollout_tests::commit::{self, PROGRAMS};
use rollout_tests::program;
use std::path::{Path, PathBuf};

fn bin_dir() -> Result<PathBuf> {
    let member = program(PROGRAMS[0])?;
    Ok(Path::new(member.get_program()).parent().context("a folder")?.to_owned())
}

#[test]
fn programs_are_built_from_the_commit_under_test() -> Result<()> {
    let bin = bin_dir()?;
    let Some(expected) = commit::under_test() else {
        eprintln!("NOT RUN: the programs' commit: {} is not set", commit::VARIABLE);
        return Ok(());
    };
    commit::check(&bin, &expected)
}

#[test]
fn programs_of_another_commit_are_refused() -> Result<()> {
    let refused = commit::check(&bin_dir()?, "a-commit-that-does-not-exist");
    let error = refused.err().context("programs of another commit were accepted")?.to_string();
    ensure!(error.contains("is of another commit"), "{error}");
    Ok(())
}
