//! `rollout-jepsen`: tries to break a fleet, and judges recorded histories.

use clap::{Parser, Subcommand};
use rollout_jepsen::{bugs, check, matrix, run};
use std::process::ExitCode;

/// Status of a command line that says nothing this program knows (as in sysexits.h).
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
    /// Judge recorded histories: is there one order that explains every answer?
    Check(check::Args),
    /// Start three members, break things, and judge what clients saw
    Run(run::Args),
    /// Judge a recorded run again
    Recheck(run::RecheckArgs),
    /// Measure which seeded bugs the suite finds
    Bugs(bugs::Args),
    /// Every workload under every family of faults, until a budget of time ends
    Matrix(matrix::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            let usage = err.use_stderr();
            // A closed pipe leaves nobody to tell.
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
