//! `rollout-jepsen`: tries to break a fleet, and judges recorded histories.

use clap::{Parser, Subcommand};
use rollout_jepsen::{bugs, check, matrix, run};
use std::process::ExitCode;

/// Exit status for an invalid command line (as in sysexits.h).
const USAGE: u8 = 64;

/// Try to break rollout, and judge what its clients saw.
#[derive(Parser)]
#[command(name = "rollout-jepsen", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judge recorded histories: does one order explain every answer?
    Check(check::Args),
    /// Start three members, inject faults, and judge what clients saw
    Run(run::Args),
    /// Judge a recorded run again
    Recheck(run::RecheckArgs),
    /// Measure which seeded bugs the suite finds
    Bugs(bugs::Args),
    /// Run every workload under every family of faults, until a time budget ends
    Matrix(matrix::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            let usage = err.use_stderr();
            // If the pipe is closed, there is no reader for the error.
            let _ = err.print();
            return if usage { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Check(args) => check::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Recheck(args) => run::recheck(&args),
        Command::Bugs(args) => bugs::run(&args),
        Command::Matrix(args) => matrix::run(&args),
    }
}
