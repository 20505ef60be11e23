//! Owns: the command line of `rollout`.
//!
//! Invariant: every flag says what it does in one line; what several commands share is in one place.
//! Absent: doing anything.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::outcome::Said;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::dev::DevArgs;
use crate::export::follow::Wanted;
use crate::export::format::OutputFormat;
use crate::export::local_dir;

/// Batch inference on a fleet of workers: every row exactly once, in order, whatever dies on the way
#[derive(Debug, Parser)]
#[command(name = "rollout", version, propagate_version = true)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a model
    Infer {
        #[command(subcommand)]
        command: InferCommand,
    },
    /// Look into a run, add to it, or cancel it
    Run {
        #[command(subcommand)]
        command: RunCommand,
    },
    /// Make a run's output again from its parts
    Export(ExportArgs),
    /// Prove that a run has every row once and every digest right
    Verify(VerifyArgs),
    /// Serve a training job's shared store to the torch processes of this host, as a TCPStore
    StoreGateway(StoreGatewayArgs),
    /// Run a local cluster
    Dev(DevArgs),
}

#[derive(Debug, Args)]
pub(super) struct StoreGatewayArgs {
    /// The job whose store it is; gateways of one job share it, on whatever host
    #[arg(long, value_name = "JOB")]
    pub(super) job: String,
    /// The round of the job's rendezvous, for a store of its own
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) round: u64,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = rollout_gateway::LISTEN_DEFAULT)]
    pub(super) listen: std::net::SocketAddr,
    /// Let other hosts, and on loopback every user of this one, connect: they read and write the store, without TLS
    #[arg(long)]
    pub(super) insecure_tcpstore: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum InferCommand {
    /// Run the rows of JSONL files and write their completions, in order
    Batch(BatchArgs),
}

#[derive(Debug, Args)]
pub(super) struct BatchArgs {
    /// The batch file, TOML
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// The run's name [default: the file's, else that in the output directory's run-id, else a new one]
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    pub(super) name: Option<String>,
    /// Check everything, list every error, submit nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// With --dry-run: a Python that has transformers and this project's package, to count tokens [default: ROLLOUT_PYTHON]
    #[arg(long, value_name = "PATH", requires = "dry_run")]
    pub(super) python: Option<PathBuf>,
    /// With --dry-run: the model's directory or name, whose tokenizer counts [default: the model's URI]
    #[arg(long, value_name = "MODEL", requires = "dry_run")]
    pub(super) tokenizer: Option<String>,
    /// Come back to a run: submit what is missing, wait for its end, write its output
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with = "dry_run",
        add = completer::of(Names::Runs)
    )]
    pub(super) resume: Option<String>,
    /// Where another revision of the run still goes on: cancel it, and carry over what it has finished
    #[arg(long, conflicts_with_all = ["dry_run", "resume"])]
    pub(super) replace: bool,
    /// Write where another run's output or other files are; what has our names is replaced, the rest stays
    #[arg(long)]
    pub(super) overwrite: bool,
    /// How many workers you expect; fewer give a warning
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<u32>,
    /// Run the first N rows alone first, and pause if more than `canary_failures_max` of them fail [default: the file's]
    #[arg(long, value_name = "N")]
    pub(super) canary: Option<u64>,
    /// Leave the input open: `rollout run append`, or this command again, adds rows until `rollout run close`
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) keep_open: bool,
    /// Submit and return; `--resume` waits and writes the output
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) detach: bool,
    /// How to say what came of it
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) said: Said,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum RunCommand {
    /// Print rows as JSON lines, as they got their outcome
    Results(ResultsArgs),
    /// Add rows to a run whose input is open; rows that it has already are left out
    Append(AppendArgs),
    /// Close a run's input: no more rows come, and the run can end
    Close(CloseArgs),
    /// Cancel a run: rows that are done keep their results, the others get none
    Cancel(CancelArgs),
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Why, for people who look at the run later
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) reason: String,
    /// Do not say what is waited for
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct AppendArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// JSONL files, or globs of them; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<String>,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct CloseArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Do not say what is waited for
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ResultsArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Go on with rows as they are committed, until the run ends
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Only rows of this outcome
    #[arg(long, value_enum, value_name = "STATE", default_value = "all")]
    pub(super) state: Wanted,
    /// The batch file of the run, whose [cluster] and [tls] say where it is
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// About so many rows, spread evenly over the input
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) sample: Option<u64>,
    /// Do not say what is waited for
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// The directory of the files
    #[arg(long, value_name = "DIR", value_parser = local_dir)]
    pub(super) output: PathBuf,
    /// The format of the files [default: openai-batch for a run of that input, else jsonl]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) format: Option<OutputFormat>,
    /// At most so many rows in a file: shards, and a manifest.json that names them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) shard_rows: Option<u64>,
    /// Leave out rows that have no outcome yet
    #[arg(long)]
    pub(super) partial: bool,
    /// Write where another run's output or other files are; what has our names is replaced, the rest stays
    #[arg(long)]
    pub(super) overwrite: bool,
    /// How to say what came of it
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) said: Said,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Compare this directory's files with the run, byte for byte
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// The format of these files [default: what its manifest.json or its names tell]
    #[arg(long, value_enum, value_name = "FORMAT", requires = "output")]
    pub(super) format: Option<OutputFormat>,
    /// How to say what came of it
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) said: Said,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_help_text_is_the_one_that_is_kept() {
        crate::golden::help(Cli::command(), "rollout.txt");
    }

    #[test]
    fn connection_flags_may_follow_the_verb() {
        let cli = Cli::parse_from(["rollout", "verify", "r", "-e", "a:1", "--namespace", "n"]);
        assert_eq!(cli.connect.endpoints, ["a:1"]);
        assert_eq!(cli.connect.namespace.as_deref(), Some("n"));
        assert!(Cli::try_parse_from(["rollout", "infer", "batch"]).is_err());
    }
}
