//! The command tree.
//!
//! Invariant: nouns are singular and accept their plural; a verb's arguments are declared in the verb's own file.
//! Deliberately absent: behavior.

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
    /// Output format
    #[arg(short, long, value_enum, default_value_t, global = true, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Repeat the command at this interval until Ctrl-C [default: 2s]
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
    /// Print what would change, and change nothing
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Repeat the request of an earlier command whose outcome is unknown; it takes effect at most
    /// once
    #[arg(long, global = true, value_name = "SESSION.SEQ")]
    pub(crate) request_id: Option<RequestName>,
    /// Do not ask for confirmation of operations that cannot be undone
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
    /// Show the cluster on one screen; works without a quorum
    Status,
    /// Show a live view of the cluster, its runs and its workers
    Top(TopArgs),
    /// Check this machine or the cluster, and print problems with their fixes
    Doctor(DoctorArgs),
    /// Show and control batch runs
    #[command(alias = "runs", arg_required_else_help = true)]
    Run {
        /// What to do.
        #[command(subcommand)]
        verb: RunVerb,
    },
    /// Show and retry single rows of a run
    #[command(alias = "items", arg_required_else_help = true)]
    Item {
        /// What to do.
        #[command(subcommand)]
        verb: ItemVerb,
    },
    /// Show, cordon and drain workers
    #[command(alias = "workers", arg_required_else_help = true)]
    Worker {
        /// What to do.
        #[command(subcommand)]
        verb: WorkerVerb,
    },
    /// Show namespaces and set their quotas
    #[command(alias = "namespaces", arg_required_else_help = true)]
    Namespace {
        /// What to do.
        #[command(subcommand)]
        verb: NamespaceVerb,
    },
    /// Show and close the rendezvous of training jobs
    #[command(arg_required_else_help = true)]
    Rendezvous {
        /// What to do.
        #[command(subcommand)]
        verb: RendezvousVerb,
    },
    /// Show and abort barriers of training jobs
    #[command(alias = "barriers", arg_required_else_help = true)]
    Barrier {
        /// What to do.
        #[command(subcommand)]
        verb: BarrierVerb,
    },
    /// Manage datasets of training jobs
    #[command(alias = "datasets", arg_required_else_help = true)]
    Dataset {
        /// What to do.
        #[command(subcommand)]
        verb: DatasetVerb,
    },
    /// List and delete training jobs
    #[command(alias = "jobs", arg_required_else_help = true)]
    Job {
        /// What to do.
        #[command(subcommand)]
        verb: JobVerb,
    },
    /// Show the shards of training jobs and the trainers that hold them
    #[command(alias = "shards", arg_required_else_help = true)]
    Shard {
        /// What to do.
        #[command(subcommand)]
        verb: ShardVerb,
    },
    /// Manage checkpoints of training jobs
    #[command(alias = "checkpoints", arg_required_else_help = true)]
    Checkpoint {
        /// What to do.
        #[command(subcommand)]
        verb: CheckpointVerb,
    },
    /// Form, verify, upgrade and configure the cluster
    #[command(arg_required_else_help = true)]
    Cluster {
        /// What to do.
        #[command(subcommand)]
        verb: ClusterVerb,
    },
    /// Show and change the members of the cluster
    #[command(alias = "members", arg_required_else_help = true)]
    Member {
        /// What to do.
        #[command(subcommand)]
        verb: MemberVerb,
    },
    /// Show or transfer leadership
    #[command(arg_required_else_help = true)]
    Leader {
        /// What to do.
        #[command(subcommand)]
        verb: LeaderVerb,
    },
    /// Save the ledger to a file, verify it, and restore a cluster from it
    #[command(alias = "snapshots", arg_required_else_help = true)]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        verb: SnapshotVerb,
    },
    /// Show the disk usage of members
    #[command(arg_required_else_help = true)]
    Storage {
        /// What to do.
        #[command(subcommand)]
        verb: StorageVerb,
    },
    /// Show conditions that need an operator
    #[command(alias = "alarms", arg_required_else_help = true)]
    Alarm {
        /// What to do.
        #[command(subcommand)]
        verb: AlarmVerb,
    },
    /// Verify a member's audit files
    #[command(arg_required_else_help = true)]
    Audit {
        /// What to do.
        #[command(subcommand)]
        verb: AuditVerb,
    },
    /// Show events: rows granted, completed and lost; workers and members that join and leave
    #[command(alias = "event")]
    Events(EventsArgs),
    /// Issue, show, enroll, renew and revoke certificates
    #[command(alias = "certs", arg_required_else_help = true)]
    Cert {
        /// What to do.
        #[command(subcommand)]
        verb: CertVerb,
    },
    /// Manage join tokens, with which workers and clients get their first certificate
    #[command(alias = "tokens", arg_required_else_help = true)]
    Token {
        /// What to do.
        #[command(subcommand)]
        verb: TokenVerb,
    },
    /// Run a benchmark; -o jsonl prints machine-readable figures
    #[command(arg_required_else_help = true)]
    Bench {
        /// What to do.
        #[command(subcommand)]
        verb: BenchVerb,
    },
    /// Show and validate the configuration of the daemons
    #[command(alias = "configs", arg_required_else_help = true)]
    Config {
        /// What to do.
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Manage named clusters
    #[command(alias = "contexts", arg_required_else_help = true)]
    Context {
        /// What to do.
        #[command(subcommand)]
        verb: ContextVerb,
    },
    /// Explain error codes
    #[command(alias = "error", arg_required_else_help = true)]
    Errors {
        /// What to do.
        #[command(subcommand)]
        verb: ErrorsVerb,
    },
    /// Print a completion script for a shell
    Completion(CompletionArgs),
    /// Print manual pages
    Man(ManArgs),
    /// Print the version of this program
    Version,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_help_text_matches_the_golden_file() {
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
        for noun in ["run", "worker", "namespace", "dataset", "member", "rendezvous"] {
            Cli::try_parse_from(["rolloutctl", noun, "describe", "a", "b"]).unwrap();
            assert!(Cli::try_parse_from(["rolloutctl", noun, "describe"]).is_err(), "{noun}");
        }
    }

    #[test]
    fn a_verb_that_takes_a_name_takes_several_and_none_is_refused() {
        for (verb, names) in [
            ("run retry --failed", "a b"),
            ("job delete", "a b"),
            ("dataset delete", "a b"),
            ("token revoke", "a b"),
            ("cert inspect", "a.pem b.pem"),
            ("shard describe --dataset d", "a b"),
            ("rendezvous close", "a b"),
            ("barrier describe job", "a b"),
            ("barrier abort job", "a b"),
            ("namespace set-quota --runs-max 3", "a b"),
            ("cert unrevoke", "worker/a worker/b"),
            ("checkpoint abort job", "7 8"),
        ] {
            let parse = |line: &str| {
                let words = std::iter::once("rolloutctl").chain(line.split_whitespace());
                Cli::try_parse_from(words)
            };
            parse(&format!("{verb} {names}")).expect(verb);
            assert!(parse(verb).is_err(), "{verb}");
        }
        let last = ["rolloutctl", "checkpoint", "describe", "job"];
        Cli::try_parse_from(last).unwrap();
        Cli::try_parse_from(last.into_iter().chain(["7", "8"])).unwrap();
    }

    #[test]
    fn shells_complete_the_files_that_cert_inspect_reads() {
        let cli = Cli::command();
        let cert = cli.find_subcommand("cert").unwrap();
        let inspect = cert.find_subcommand("inspect").unwrap();
        let files = inspect.get_positionals().next().unwrap();
        assert_eq!(files.get_value_hint(), clap::ValueHint::FilePath);
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
