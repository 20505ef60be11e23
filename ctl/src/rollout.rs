//! Owns: the command `rollout`, for users.
//!
//! Invariant: results and plans go to stdout, everything else to stderr, and the exit status is: 0 done, 1 failed, 2
//! usage or bad input, 3 unavailable, 4 not found, 5 conflict, 7 TLS or permission, 8 outcome unknown, 10 done but
//! some rows failed permanently, 130 interrupted.
//! Absent: operators' commands; those are in `rolloutctl`.

mod append;
mod cancel;
mod cli;
mod close;
mod dry_run;
mod error;
mod export;
mod infer;
mod interrupt;
mod outcome;
mod plan;
mod read_input;
mod report;
mod results;
mod store_gateway;
mod verify;

use std::process::ExitCode;
use std::sync::Arc;

use clap::FromArgMatches as _;
use rollout_batch::submission::error::BatchError;
use rollout_proto::trace::{self, TraceContext};
use rollout_proto::{ClientError, OnWait};

use self::cli::{Cli, Command, InferCommand, RunCommand};
use self::error::CommandError;
use crate::connect::ConnectError;
use crate::progress::Progress;
use crate::shell_completion;
use crate::stdio::to_stderr;

/// The tree of its commands, as it is parsed.
pub(crate) fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the command line of this process. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    if shell_completion::answered(command) {
        return ExitCode::SUCCESS;
    }
    let matches = command().version(version).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let filter = tracing_subscriber::EnvFilter::try_from_env("ROLLOUT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            to_stderr(&format!("error: cannot start: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(trace::within(TraceContext::of_env(), run(cli)));
    // Reads of the input may still be in progress after an interruption.
    runtime.shutdown_background();
    ExitCode::from(code)
}

async fn run(cli: Cli) -> u8 {
    let outcome = match cli.command {
        Command::Infer { command: InferCommand::Batch(args) } => {
            infer::run(&cli.connect, &args).await
        }
        Command::Run { command: RunCommand::Results(args) } => {
            results::run(&cli.connect, &args).await
        }
        Command::Run { command: RunCommand::Append(args) } => {
            append::run(&cli.connect, &args).await
        }
        Command::Run { command: RunCommand::Close(args) } => close::run(&cli.connect, &args).await,
        Command::Run { command: RunCommand::Cancel(args) } => {
            cancel::run(&cli.connect, &args).await
        }
        Command::Export(args) => export::run(&cli.connect, &args).await,
        Command::Verify(args) => verify::run(&cli.connect, &args).await,
        Command::StoreGateway(args) => return store_gateway::run(&cli.connect, &args).await,
        Command::Dev(args) => {
            return match crate::dev::run(args).await {
                Ok(()) => 0,
                Err(error) => {
                    to_stderr(&format!("error: {error:#}\n"));
                    1
                }
            };
        }
    };
    match outcome {
        Ok(code) => code,
        // The next step was printed when it happened.
        Err(CommandError::Interrupted) => 130,
        Err(error) => {
            to_stderr(&explain(&error));
            error.exit_code()
        }
    }
}

/// An error in words, with the command that explains its code if it has one.
fn explain(error: &CommandError) -> String {
    let mut text = format!("error: {error}\n");
    let client = match error {
        CommandError::Batch(BatchError::Client(error))
        | CommandError::Connect(ConnectError::Client(error)) => Some(error),
        _ => None,
    };
    if let Some(code) = client.and_then(ClientError::code) {
        text += &format!("  explain: rolloutctl errors explain {code}\n");
    }
    text
}

/// Reports, above the bar, what the client waits for.
fn on_wait(progress: &Arc<Progress>) -> OnWait {
    let progress = Arc::clone(progress);
    Arc::new(move |what| progress.note(&format!("waiting: {what}")))
}
