//! `rolloutctl`, for operators: `rolloutctl <noun> <verb> [NAME] [flags]`.
//!
//! Invariant: one file per verb, named after the verb; data goes to stdout, messages to stderr, and the exit status
//! gives the kind of failure (see [`exit`]). Absent: hex IDs on the command line; everything has a name.

mod alarm;
mod audit;
#[cfg(feature = "fuzzing")]
pub(crate) use audit::fuzzed as audit_breaks;
mod barrier;
mod cert;
mod checkpoint;
mod cli;
pub mod cluster;
mod completion;
mod config;
mod consent;
mod context;
mod dataset;
mod distrust;
mod doctor;
mod dry_run;
mod errors;
mod events;
mod exit;
mod flags;
mod for_each_name;
mod item;
mod job;
mod key;
mod leader;
mod list_options;
mod man;
mod member;
mod namespace;
mod read;
mod remaining_validity;
mod rendezvous;
mod request;
mod run;
mod run_summary;
mod shard;
mod snapshot;
#[cfg(feature = "fuzzing")]
pub(crate) use snapshot::fuzzed as verified_snapshot;

pub mod status;
mod storage;
mod token;
mod top;
mod unconfirmed;
pub(crate) mod verb;
mod verbosity;
mod version;
mod watch;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use rollout_proto::trace::{self, TraceContext};

use self::cli::{BenchVerb, Cli, Command};
pub use self::exit::Failure;
use self::verb::Branch as _;
use crate::shell_completion;
use crate::stdio::to_stderr;

/// Parses the command line, runs it, and returns the exit status. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    if shell_completion::answered(Cli::command) {
        return ExitCode::SUCCESS;
    }
    let cli = parse(version);
    let error_style = cli.verbosity.begin();
    let mut builder = match cli.command {
        // The only command with work for several cores; a load generator must not use them.
        Command::Bench(BenchVerb::Submit(_)) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let traced = TraceContext::of_env();
    let result = builder.enable_all().build().map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(trace::within(traced, run(cli)));
        // A DNS query may continue for minutes after its limit, and its result is not needed.
        runtime.shutdown_background();
        ended
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr(&error_style.error(exit::explain(&error)));
            tracing::info!(trace_id = traced.trace_id(), "the command failed");
            ExitCode::from(exit::code(&error))
        }
    }
}

/// The command line of this process. A help text shows the flags that its command accepts.
fn parse(version: &'static str) -> Cli {
    let mut command = flags::command().version(version);
    let matches = command.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Runs the command once, repeatedly, or as a dry run.
async fn run(cli: Cli) -> anyhow::Result<()> {
    if cli.request_id.is_some() && !cli.command.accepts().request_id {
        let text = "--request-id is for commands that print one when their outcome is unknown; \
                    this one may be repeated as it is";
        return Err(Failure::usage(text).into());
    }
    match cli.watch {
        Some(every) => watch::repeat(cli, every).await,
        None if cli.dry_run => {
            let (command, globals) = cli.split();
            command.dry_run(&globals).await
        }
        None => {
            let (command, globals) = cli.split();
            command.dispatch(&globals).await
        }
    }
}
