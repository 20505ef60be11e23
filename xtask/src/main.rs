//! Builds, tests, lints, measures and releases the workspace: `cargo xtask COMMAND`.
//!
//! Invariant: a command exits with 0 only if everything that it names was run and passed. A check that this machine cannot
//! run prints a line that begins with `NOT RUN`.
//! Absent: installing what a build needs; `make preflight` does that.

mod artifacts;
mod bench;
mod checks;
mod filters;
mod lanes;
mod libtest;
mod lint;
mod nightly;
mod nightly_page;
mod nightly_report;
mod release;
mod report;
mod run;
mod seeded;
mod signals;
mod test;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
#[command(about = "Build, test, lint, measure and release the workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build every binary and library, and the extension module of the Python package
    Build,
    /// Build everything once, run all tests and checks, and print what failed
    Test(test::TestArgs),
    /// Run one of the checks that are not Rust tests
    Check {
        /// Check to run
        #[arg(value_enum)]
        check: checks::Check,
    },
    /// Check formatting, clippy with warnings as errors, and the dependencies
    Lint,
    /// Print the figures of docs/figures.md as JSON lines, with a release build
    Bench,
    /// Check the dependencies, build the programs, and verify that they contain no seeded bug; or do a step of a release
    Release(release::ReleaseArgs),
    /// Run the long tests and the benchmarks, and write a report below docs/nightly
    Nightly(nightly::NightlyArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command; returns whether everything passed.
fn run(command: Command) -> Result<bool> {
    signals::watch()?;
    let workspace = Workspace::find()?;
    match command {
        Command::Build => artifacts::build(&workspace, artifacts::PROGRAMS).map(|_| true),
        Command::Test(args) => test::run(&workspace, &args),
        Command::Check { check } => checks::run(&workspace, check),
        Command::Lint => lint::run(&workspace),
        Command::Bench => bench::run(&workspace),
        Command::Release(args) => release::run(&workspace, &args),
        Command::Nightly(args) => nightly::run(&workspace, &args),
    }
}
