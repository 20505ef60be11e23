//! The command tree.
//!
//! Invariant: nouns are singular and accept their plural; a verb's arguments are declared in the verb's own file.
//! Absent: behavior.

mod cluster;
mod work;

use std::time::Duration;

use clap::Parser;

pub(crate) use self::cluster::{
    AlarmVerb, AuditVerb, BenchVerb, CertVerb, ClusterVerb, ConfigVerb, ContextVerb, ErrorsVerb,
    KeyVerb, LeaderVerb, MemberVerb, SnapshotVerb, StorageVerb, TokenVerb,
};
pub(crate) use self::work::{
    BarrierVerb, CheckpointVerb, DatasetVerb, ItemVerb, JobVerb, NamespaceVerb, RendezvousVerb,
    RunVerb, ShardVerb, WorkerVerb,
};
use super::completion::CompletionArgs;
use super::consent::Consent;
use super::doctor::DoctorArgs;
use super::events::EventsArgs;
use super::flags;
use super::man::ManArgs;
use super::request::RequestName;
use super::status::StatusArgs;
use super::top::TopArgs;
use super::verb::{Globals, branch};
use super::verbosity::VerbosityArgs;
use super::version::VersionArgs;
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::Format;

/// Operate a rollout cluster
#[derive(Debug, Parser)]
#[command(
    name = "rolloutctl",
    version,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done, 1 failed, 2 usage, 3 unavailable or no leader, 4 not found, 5 conflict, \
                  6 refused as unsafe or not confirmed, 7 TLS or permission, 8 outcome unknown (repeat it), \
                  9 events no longer kept"
)]
pub(crate) struct Cli {
    /// Where the cluster is.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// Format of the printed results
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
    /// Print what would change, and change nothing. The leader checks the request, unless it
    /// changes members, leadership, snapshots or local files
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Repeat the request of an earlier command whose outcome is unknown; it takes effect at most
    /// once
    #[arg(long, global = true, value_name = "SESSION.SEQ")]
    pub(crate) request_id: Option<RequestName>,
    #[arg(short, long, global = true, help = yes_help())]
    pub(crate) yes: bool,
    /// How much is printed on stderr.
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn yes_help() -> String {
    let asking: Vec<String> = flags::asking().iter().map(|path| format!("`{path}`")).collect();
    let asking = asking.join(", ");
    format!("Do not ask for confirmation. These commands ask: {asking}")
}

impl Cli {
    /// The verb, and the values of the flags that all verbs share.
    pub(super) fn split(self) -> (Command, Globals) {
        let globals = Globals {
            connect: self.connect,
            format: self.output,
            again: self.request_id,
            consent: if self.yes { Consent::Given } else { Consent::Wanted },
            verbosity: self.verbosity,
        };
        (self.command, globals)
    }
}

branch! {
    /// The nouns.
    enum Command {
        /// Show the cluster on one screen; works without a quorum
        Status(StatusArgs),
        /// Show a live view of the cluster, its runs and its workers
        Top(TopArgs),
        /// Check this machine or the cluster, and print problems with their fixes
        Doctor(DoctorArgs),
        /// Show and control batch runs
        #[command(subcommand, alias = "runs", arg_required_else_help = true)]
        Run(RunVerb),
        /// Show and retry single rows of a run
        #[command(subcommand, alias = "items", arg_required_else_help = true)]
        Item(ItemVerb),
        /// Show, cordon and drain workers
        #[command(subcommand, alias = "workers", arg_required_else_help = true)]
        Worker(WorkerVerb),
        /// Show namespaces and set their quotas
        #[command(subcommand, alias = "namespaces", arg_required_else_help = true)]
        Namespace(NamespaceVerb),
        /// Show and close the rendezvous of training jobs
        #[command(subcommand, hide = true, arg_required_else_help = true)]
        Rendezvous(RendezvousVerb),
        /// Show and abort barriers of training jobs
        #[command(subcommand, hide = true, alias = "barriers", arg_required_else_help = true)]
        Barrier(BarrierVerb),
        /// Manage datasets of training jobs
        #[command(subcommand, alias = "datasets", arg_required_else_help = true)]
        Dataset(DatasetVerb),
        /// Show and delete training jobs: rendezvous, barriers, shards, checkpoints
        #[command(subcommand, alias = "jobs", arg_required_else_help = true)]
        Job(JobVerb),
        /// Show the shards of training jobs and the trainers that hold them
        #[command(subcommand, hide = true, alias = "shards", arg_required_else_help = true)]
        Shard(ShardVerb),
        /// Manage checkpoints of training jobs
        #[command(subcommand, hide = true, alias = "checkpoints", arg_required_else_help = true)]
        Checkpoint(CheckpointVerb),
        /// Form, verify, upgrade and configure the cluster
        #[command(subcommand, arg_required_else_help = true)]
        Cluster(ClusterVerb),
        /// Show and change the members of the cluster
        #[command(subcommand, alias = "members", arg_required_else_help = true)]
        Member(MemberVerb),
        /// Show or transfer leadership
        #[command(subcommand, arg_required_else_help = true)]
        Leader(LeaderVerb),
        /// Save the ledger to a file, verify it, and restore a cluster from it
        #[command(subcommand, alias = "snapshots", arg_required_else_help = true)]
        Snapshot(SnapshotVerb),
        /// Show the disk usage of members
        #[command(subcommand, arg_required_else_help = true)]
        Storage(StorageVerb),
        /// Show conditions that need an operator
        #[command(subcommand, alias = "alarms", arg_required_else_help = true)]
        Alarm(AlarmVerb),
        /// Verify a member's audit files
        #[command(subcommand, arg_required_else_help = true)]
        Audit(AuditVerb),
        /// Show events: rows granted, completed and lost; workers and members that join and leave
        #[command(alias = "event")]
        Events(EventsArgs),
        /// Issue, show, enroll, renew and revoke certificates
        #[command(subcommand, alias = "certs", arg_required_else_help = true)]
        Cert(CertVerb),
        /// Manage join tokens, with which workers and clients get their first certificate
        #[command(subcommand, alias = "tokens", arg_required_else_help = true)]
        Token(TokenVerb),
        /// Manage API keys, with which callers of the HTTP API authenticate
        #[command(subcommand, alias = "keys", arg_required_else_help = true)]
        Key(KeyVerb),
        /// Run a benchmark; -o jsonl prints machine-readable figures
        #[command(subcommand, arg_required_else_help = true)]
        Bench(BenchVerb),
        /// Show and validate the configuration of the daemons
        #[command(subcommand, alias = "configs", arg_required_else_help = true)]
        Config(ConfigVerb),
        /// Manage named clusters
        #[command(subcommand, alias = "contexts", arg_required_else_help = true)]
        Context(ContextVerb),
        /// Explain error codes
        #[command(subcommand, alias = "error", arg_required_else_help = true)]
        Errors(ErrorsVerb),
        /// Print a completion script for a shell
        Completion(CompletionArgs),
        /// Print manual pages
        Man(ManArgs),
        /// Print the version of this program
        Version(VersionArgs),
    }
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
        assert!(matches!(cli.command, Command::Run(RunVerb::List(_))));
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
            ("run set-deadline --none", "a b"),
            ("run set-weight --weight 3", "a b"),
            ("job delete", "a b"),
            ("dataset delete", "a b"),
            ("token revoke", "a b"),
            ("key describe", "a b"),
            ("key revoke", "a b"),
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
    fn the_former_nouns_of_a_job_work_and_are_hidden() {
        let root = Cli::command();
        let job = root.find_subcommand("job").unwrap();
        for noun in ["rendezvous", "barrier", "shard", "checkpoint"] {
            let (former, present) = (root.find_subcommand(noun), job.find_subcommand(noun));
            assert!(former.unwrap().is_hide_set() && !present.unwrap().is_hide_set(), "{noun}");
        }
        for line in ["checkpoints describe sft 7", "job checkpoints describe sft 7"] {
            let words = std::iter::once("rolloutctl").chain(line.split(' '));
            Cli::try_parse_from(words).expect(line);
        }
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
