//! The command tree.
//!
//! Invariant: nouns are singular and accept their plural; a verb's arguments are declared in the
//! verb's own file. Deliberately absent: behaviour.

mod cluster;
mod work;

use std::time::Duration;

use clap::{Parser, Subcommand};

pub(crate) use self::cluster::{
    AlarmVerb, AuditVerb, BenchVerb, CertVerb, ClusterVerb, ConfigVerb, ContextVerb, ErrorsVerb,
    LeaderVerb, MemberVerb, SnapshotVerb, StorageVerb, TokenVerb,
};
pub(crate) use self::work::{
    BarrierVerb, CheckpointVerb, DatasetVerb, ItemVerb, JobVerb, NamespaceVerb, RendezvousVerb,
    RunVerb, ShardVerb, WorkerVerb,
};
use super::completion::{CompletionArgs, ManArgs};
use super::doctor::DoctorArgs;
use super::events::EventsArgs;
use super::request::RequestName;
use super::talk::TalkArgs;
use super::top::TopArgs;
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::Format;

/// Operate a rollout cluster
#[derive(Debug, Parser)]
#[command(
    name = "rolloutctl",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 unavailable or no leader, 4 not found, \
                  5 conflict, 6 refused as unsafe, 7 TLS or permission, 8 outcome unknown (repeat it), 9 events no longer kept"
)]
pub(crate) struct Cli {
    /// Where the cluster is.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, global = true, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Show it again every so often, until Ctrl-C [default: 2s]
    #[arg(
        short,
        long,
        global = true,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = parse_duration
    )]
    pub(crate) watch: Option<Duration>,
    /// Say what would change, and change nothing
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Repeat the request of an earlier command, whose outcome is unknown: it takes effect once
    #[arg(long, global = true, value_name = "SESSION.SEQ")]
    pub(crate) request_id: Option<RequestName>,
    /// Do not ask before what cannot be undone
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// What is said besides.
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The nouns.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The cluster on one screen; works without a quorum
    Status,
    /// The cluster, its runs and its workers on a screen that stays current
    Top(TopArgs),
    /// What is wrong with this machine, or with the cluster, and what to do
    Doctor(DoctorArgs),
    /// Batch runs
    #[command(alias = "runs", arg_required_else_help = true)]
    Run {
        /// What to do.
        #[command(subcommand)]
        verb: RunVerb,
    },
    /// Single rows of a run
    #[command(alias = "items", arg_required_else_help = true)]
    Item {
        /// What to do.
        #[command(subcommand)]
        verb: ItemVerb,
    },
    /// Worker agents
    #[command(alias = "workers", arg_required_else_help = true)]
    Worker {
        /// What to do.
        #[command(subcommand)]
        verb: WorkerVerb,
    },
    /// Whose runs these are, and how much they may use together
    #[command(alias = "namespaces", arg_required_else_help = true)]
    Namespace {
        /// What to do.
        #[command(subcommand)]
        verb: NamespaceVerb,
    },
    /// Training jobs: who takes part, and the rounds in which they agree on members and ranks
    #[command(arg_required_else_help = true)]
    Rendezvous {
        /// What to do.
        #[command(subcommand)]
        verb: RendezvousVerb,
    },
    /// Barriers of training jobs: who has arrived, who is missing
    #[command(alias = "barriers", arg_required_else_help = true)]
    Barrier {
        /// What to do.
        #[command(subcommand)]
        verb: BarrierVerb,
    },
    /// What training jobs read
    #[command(alias = "datasets", arg_required_else_help = true)]
    Dataset {
        /// What to do.
        #[command(subcommand)]
        verb: DatasetVerb,
    },
    /// Training jobs as a whole
    #[command(alias = "jobs", arg_required_else_help = true)]
    Job {
        /// What to do.
        #[command(subcommand)]
        verb: JobVerb,
    },
    /// Training jobs, their trainers, and who of them reads what
    #[command(alias = "shards", arg_required_else_help = true)]
    Shard {
        /// What to do.
        #[command(subcommand)]
        verb: ShardVerb,
    },
    /// What training jobs recover from
    #[command(alias = "checkpoints", arg_required_else_help = true)]
    Checkpoint {
        /// What to do.
        #[command(subcommand)]
        verb: CheckpointVerb,
    },
    /// The members as one
    #[command(arg_required_else_help = true)]
    Cluster {
        /// What to do.
        #[command(subcommand)]
        verb: ClusterVerb,
    },
    /// Who takes part in the cluster
    #[command(alias = "members", arg_required_else_help = true)]
    Member {
        /// What to do.
        #[command(subcommand)]
        verb: MemberVerb,
    },
    /// Who leads
    #[command(arg_required_else_help = true)]
    Leader {
        /// What to do.
        #[command(subcommand)]
        verb: LeaderVerb,
    },
    /// The ledger as a file, and a new cluster from it
    #[command(alias = "snapshots", arg_required_else_help = true)]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        verb: SnapshotVerb,
    },
    /// What members keep on their disks
    #[command(arg_required_else_help = true)]
    Storage {
        /// What to do.
        #[command(subcommand)]
        verb: StorageVerb,
    },
    /// What somebody should do something about
    #[command(alias = "alarms", arg_required_else_help = true)]
    Alarm {
        /// What to do.
        #[command(subcommand)]
        verb: AlarmVerb,
    },
    /// The files of a member's audit
    #[command(arg_required_else_help = true)]
    Audit {
        /// What to do.
        #[command(subcommand)]
        verb: AuditVerb,
    },
    /// What happened and what happens: who got, completed, lost which rows; who came and went
    #[command(alias = "event")]
    Events(EventsArgs),
    /// Certificates of a private authority
    #[command(alias = "certs", arg_required_else_help = true)]
    Cert {
        /// What to do.
        #[command(subcommand)]
        verb: CertVerb,
    },
    /// Join tokens: who may come for a first certificate
    #[command(alias = "tokens", arg_required_else_help = true)]
    Token {
        /// What to do.
        #[command(subcommand)]
        verb: TokenVerb,
    },
    /// Measure; for programs with -o jsonl
    #[command(arg_required_else_help = true)]
    Bench {
        /// What to do.
        #[command(subcommand)]
        verb: BenchVerb,
    },
    /// What the daemons are told, by whom, and whether it is good
    #[command(alias = "configs", arg_required_else_help = true)]
    Config {
        /// What to do.
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Clusters under names of your own
    #[command(alias = "contexts", arg_required_else_help = true)]
    Context {
        /// What to do.
        #[command(subcommand)]
        verb: ContextVerb,
    },
    /// What an error code means
    #[command(alias = "error", arg_required_else_help = true)]
    Errors {
        /// What to do.
        #[command(subcommand)]
        verb: ErrorsVerb,
    },
    /// A script that completes commands in a shell
    Completion(CompletionArgs),
    /// Manual pages
    Man(ManArgs),
    /// The version of this program
    Version,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_help_text_is_the_one_that_is_kept() {
        crate::golden::help(Cli::command(), "rolloutctl.txt");
    }

    #[test]
    fn a_plural_noun_is_the_noun_and_flags_may_follow_the_verb() {
        let cli =
            Cli::try_parse_from(["rolloutctl", "runs", "list", "-o", "json", "-e", "h:1"]).unwrap();
        assert!(matches!(cli.command, Command::Run { verb: RunVerb::List(_) }));
        assert_eq!(cli.output, Format::Json);
        assert_eq!(cli.connect.endpoints, ["h:1"]);
    }

    #[test]
    fn several_things_are_described_by_one_command() {
        for noun in ["run", "worker", "namespace", "dataset", "member"] {
            Cli::try_parse_from(["rolloutctl", noun, "describe", "a", "b"]).unwrap();
            assert!(Cli::try_parse_from(["rolloutctl", noun, "describe"]).is_err(), "{noun}");
        }
    }

    #[test]
    fn watching_takes_a_time_only_behind_an_equals_sign() {
        let parse = |args: &[&str]| {
            let args = std::iter::once("rolloutctl").chain(args.iter().copied());
            Cli::try_parse_from(args).unwrap()
        };
        assert_eq!(parse(&["-w", "status"]).watch, Some(Duration::from_secs(2)));
        assert_eq!(parse(&["status", "--watch=500ms"]).watch, Some(Duration::from_millis(500)));
        assert_eq!(parse(&["status"]).watch, None);
    }
}
