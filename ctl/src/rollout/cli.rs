//! Owns: the command line of `rollout`.
//!
//! Invariant: every flag has a help text of one line; flags that several commands share are defined once.
//! Absent: executing commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use rollout_batch::export::follow::OutcomeFilter;
use rollout_batch::export::format::OutputFormat;
use rollout_batch::export::local_dir;

use super::outcome::OutcomeFormat;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::dev::DevArgs;

/// Run batch inference on a fleet of workers: every row exactly once, in order, despite failures
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
    /// Read results of a run, append rows, close its input, or cancel it
    Run {
        #[command(subcommand)]
        command: RunCommand,
    },
    /// Write a run's output again from its parts
    Export(ExportArgs),
    /// Verify that a run has every row once and that every digest matches
    Verify(VerifyArgs),
    /// Serve a training job's shared store to the torch processes of this host, as a TCPStore
    StoreGateway(StoreGatewayArgs),
    /// Run a local cluster
    Dev(DevArgs),
}

#[derive(Debug, Args)]
pub(super) struct StoreGatewayArgs {
    /// Job of the store; all gateways of one job serve the same store
    #[arg(long, value_name = "JOB")]
    pub(super) job: String,
    /// Round of the job's rendezvous; each round has its own store
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) round: u64,
    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = rollout_gateway::LISTEN_DEFAULT)]
    pub(super) listen: std::net::SocketAddr,
    /// Allow other hosts, and on loopback every user of this host, to read and write the store
    /// without TLS
    #[arg(long)]
    pub(super) insecure_tcpstore: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum InferCommand {
    /// Run the rows of input files and write their completions, in order
    Batch(BatchArgs),
}

#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:",
    "\n  rollout infer batch -c batch.toml --dry-run        Check everything, submit nothing",
    "\n  rollout infer batch -c batch.toml                  Run, and write the output",
    "\n  rollout infer batch -c batch.toml --detach         Submit and return",
    "\n  rollout infer batch -c batch.toml --resume eval    Attach to a run",
    "\n  rollout infer batch --model Qwen/Qwen2.5-0.5B-Instruct --input prompts.jsonl --output out",
    "\n                                                     Run without a batch file, with its defaults"
))]
pub(super) struct BatchArgs {
    /// The batch file, TOML
    #[arg(short, long, value_name = "FILE", required_unless_present = "model")]
    pub(super) config: Option<PathBuf>,
    /// Without a batch file: the model that the rows need, as workers advertise it
    #[arg(long, value_name = "MODEL", conflicts_with = "config", requires_all = ["input", "output"])]
    pub(super) model: Option<String>,
    /// Without a batch file: the rows, a path, glob or URL; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "config", requires = "model")]
    pub(super) input: Vec<String>,
    /// Without a batch file: the directory for the output and for the batch file that the command writes
    #[arg(long, value_name = "DIR", conflicts_with = "config", requires = "model")]
    pub(super) output: Option<PathBuf>,
    /// The run's name [default: the file's, else that in the output directory's run-id, else a new one]
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    pub(super) name: Option<String>,
    /// Check everything, list every error, submit nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// With --dry-run: a Python that has transformers and this project's package, to count tokens [default: ROLLOUT_PYTHON]
    #[arg(long, value_name = "PATH", requires = "dry_run")]
    pub(super) python: Option<PathBuf>,
    /// With --dry-run: directory or name of the model whose tokenizer counts [default: the model's URI]
    #[arg(long, value_name = "MODEL", requires = "dry_run")]
    pub(super) tokenizer: Option<String>,
    /// Resume a run: submit the missing input, wait for the end, and write the output
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with = "dry_run",
        add = completer::of(Names::Runs)
    )]
    pub(super) resume: Option<String>,
    /// If an earlier revision of the run is still running, cancel it and reuse the results of its
    /// finished rows
    #[arg(long, conflicts_with_all = ["dry_run", "resume"])]
    pub(super) replace: bool,
    /// Write into a directory with another run's output or other files: replace files with the
    /// names of this output, keep the rest
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Number of workers that you expect; overrides `[workers] count`, and only warns if fewer are ready
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
    /// Format of the printed report; the batch file's `[output] format` sets that of the files
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) report: OutcomeFormat,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum RunCommand {
    /// Print rows as JSON lines, in the order in which they were decided
    Results(ResultsArgs),
    /// Append rows to a run whose input is open; rows that the run already has are skipped
    Append(AppendArgs),
    /// Close a run's input so that the run can end
    Close(CloseArgs),
    /// Cancel a run: finished rows keep their results, the others get none
    Cancel(CancelArgs),
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The runs' names
    #[arg(value_name = "RUN", required = true, add = completer::of(Names::Runs))]
    pub(super) runs: Vec<String>,
    /// Reason, stored with the run
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) reason: String,
    /// Do not print what the command waits for
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
    /// Do not print what the command waits for
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ResultsArgs {
    /// The run's name
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Continue with rows as they are committed, until the run ends
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Only rows of this outcome
    #[arg(long, value_enum, value_name = "STATE", default_value = "all")]
    pub(super) state: OutcomeFilter,
    /// Batch file of the run; its [cluster] and [tls] select the cluster
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print about this number of rows, spread evenly over the input
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) sample: Option<u64>,
    /// Do not print what the command waits for
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The run's name; only one, because a directory has the output of one run
    #[arg(value_name = "RUN", add = completer::of(Names::Runs))]
    pub(super) run: String,
    /// Directory to write the files into
    #[arg(long, value_name = "DIR", value_parser = local_dir)]
    pub(super) output: PathBuf,
    /// The format of the files [default: openai-batch for a run of that input, else jsonl]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) format: Option<OutputFormat>,
    /// Maximum number of rows per file; writes shards and a manifest.json that lists them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) shard_rows: Option<u64>,
    /// Leave out rows that have no outcome yet
    #[arg(long)]
    pub(super) partial: bool,
    /// Write into a directory with another run's output or other files: replace files with the
    /// names of this output, keep the rest
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Format of the printed report; `--format` is that of the files
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) report: OutcomeFormat,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The runs' names
    #[arg(value_name = "RUN", required = true, add = completer::of(Names::Runs))]
    pub(super) runs: Vec<String>,
    /// With one name: compare this directory's files with the run, byte for byte
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Format of these files [default: determined from manifest.json or the file names]
    #[arg(long, value_enum, value_name = "FORMAT", requires = "output")]
    pub(super) format: Option<OutputFormat>,
    /// Format of the report of each run; `--format` is that of the compared files
    #[arg(
        short = 'o',
        long = "report",
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) report: OutcomeFormat,
    /// No progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_help_text_matches_the_golden_file() {
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
