//! The command tree.
//!
//! Invariant: nouns are singular and accept their plural; a verb's arguments are declared in the
//! verb's own file. Deliberately absent: behaviour.

use std::time::Duration;

use clap::{Parser, Subcommand};

use super::alarm::list::ListArgs as AlarmListArgs;
use super::audit::verify::VerifyArgs as AuditVerifyArgs;
use super::barrier::{
    abort::AbortArgs, describe::DescribeArgs as BarrierDescribeArgs,
    list::ListArgs as BarrierListArgs,
};
use super::cert::{
    enrol::EnrolArgs,
    init_ca::InitCaArgs,
    init_issuer::InitIssuerArgs,
    inspect::InspectArgs,
    issue::IssueArgs,
    revoke::{RevokeArgs as CertRevokeArgs, UnrevokeArgs},
    status::StatusArgs,
};
use super::checkpoint::{
    abort::AbortArgs as CheckpointAbortArgs, describe::DescribeArgs as CheckpointDescribeArgs,
    label::LabelArgs, list::ListArgs as CheckpointListArgs, prune::PruneArgs,
    verify::VerifyArgs as CheckpointVerifyArgs,
};
use super::choose::ChooseArgs;
use super::cluster::{bootstrap::BootstrapArgs, upgrade::UpgradeArgs, verify::VerifyArgs};
use super::completion::{CompletionArgs, ManArgs};
use super::config::{
    default::DefaultArgs, schema::SchemaArgs, validate::ValidateArgs, view::ViewArgs,
};
use super::context::{AddArgs as ContextAddArgs, NameArgs};
use super::dataset::{
    create::CreateArgs, delete::DeleteArgs as DatasetDeleteArgs,
    describe::DescribeArgs as DatasetDescribeArgs,
};
use super::doctor::DoctorArgs;
use super::events::EventsArgs;
use super::item::{
    describe::DescribeArgs as ItemDescribeArgs, list::ListArgs as ItemListArgs,
    retry::RetryArgs as ItemRetryArgs,
};
use super::job::delete::DeleteArgs as JobDeleteArgs;
use super::leader::transfer::TransferArgs;
use super::member::{
    add::AddArgs, describe::DescribeArgs as MemberDescribeArgs, promote::PromoteArgs,
    remove::RemoveArgs, replace::ReplaceArgs, update::UpdateArgs,
};
use super::namespace::{describe::DescribeArgs as NamespaceDescribeArgs, set_quota::SetQuotaArgs};
use super::rendezvous::{close::CloseArgs, describe::DescribeArgs as RendezvousDescribeArgs};
use super::request::RequestName;
use super::run::control::ControlArgs;
use super::run::delete::DeleteArgs;
use super::run::describe::DescribeArgs;
use super::run::list::ListArgs as RunListArgs;
use super::run::retry::RetryArgs;
use super::run::watch::WatchArgs;
use super::shard::{describe::DescribeArgs as ShardDescribeArgs, list::ListArgs as ShardListArgs};
use super::snapshot::{
    restore::RestoreArgs, save::SaveArgs, verify::VerifyArgs as SnapshotVerifyArgs,
};
use super::talk::TalkArgs;
use super::token::{create::CreateArgs as TokenCreateArgs, revoke::RevokeArgs};
use super::top::TopArgs;
use super::worker::{
    cordon::CordonArgs, describe::DescribeArgs as WorkerDescribeArgs, drain::DrainArgs,
    list::ListArgs as WorkerListArgs, uncordon::UncordonArgs,
};
use crate::bench::{
    apply::ApplyArgs, disk::FsyncArgs, failover::FailoverArgs, fleet::FleetArgs,
    handover::HandoverArgs, ledger::LedgerArgs, rendezvous::RendezvousArgs, store::StoreArgs,
    submit::SubmitArgs,
};
use crate::completer::{self, Names};
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

/// Verbs of `run`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunVerb {
    /// Every run of the namespace, the newest first
    List(RunListArgs),
    /// One run: progress, spec, failed rows
    Describe(DescribeArgs),
    /// Follow one run until it ends
    Watch(WatchArgs),
    /// End a run; rows that are done stay done
    Cancel(ControlArgs),
    /// Grant no more rows of a run
    Pause(ControlArgs),
    /// Grant rows of a paused run again
    Resume(ControlArgs),
    /// Try all failed rows of a run again
    Retry(RetryArgs),
    /// Delete an ended run with its input, results and record
    Delete(DeleteArgs),
}

/// Verbs of `item`.
#[derive(Debug, Subcommand)]
pub(crate) enum ItemVerb {
    /// Rows of a run that are in one state
    List(ItemListArgs),
    /// One row: where it is, who has it, and what it went through
    Describe(ItemDescribeArgs),
    /// Try failed rows again
    Retry(ItemRetryArgs),
}

/// Verbs of `member`.
#[derive(Debug, Subcommand)]
pub(crate) enum MemberVerb {
    /// Every member, and how far each is
    List(ChooseArgs),
    /// One member
    Describe(MemberDescribeArgs),
    /// Bring in a new member: it receives the log, and its vote as soon as it has caught up
    Add(AddArgs),
    /// Have a learner get a vote
    Promote(PromoteArgs),
    /// Take a member out for good; refused where the rest would have no majority that answers
    Remove(RemoveArgs),
    /// Put a new member, or the same one on an empty disk, in the place of another
    Replace(ReplaceArgs),
    /// Record another address or zone
    Update(UpdateArgs),
}

/// Verbs of `leader`.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaderVerb {
    /// Who leads now
    Show,
    /// Have another member lead; the pause is that of a hand-over, not of an election
    Transfer(TransferArgs),
}

/// Verbs of `worker`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// Every worker of the namespace
    List(WorkerListArgs),
    /// One worker, slot by slot
    Describe(WorkerDescribeArgs),
    /// Give a worker, or one of its slots, no more work; what it holds it finishes
    Cordon(CordonArgs),
    /// Give it work again, whoever had cordoned it
    Uncordon(UncordonArgs),
    /// Have it finish what it can, give back the rest, and leave
    Drain(DrainArgs),
}

/// Verbs of `namespace`.
#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceVerb {
    /// Every namespace that your certificate names
    List(ChooseArgs),
    /// One namespace: what it uses, and what it may
    Describe(NamespaceDescribeArgs),
    /// Bound what the runs of a namespace may use together
    SetQuota(SetQuotaArgs),
}

/// Verbs of `rendezvous`.
#[derive(Debug, Subcommand)]
pub(crate) enum RendezvousVerb {
    /// Every training job of the namespace
    List(ChooseArgs),
    /// One job: its participants, their standing and rank, and who is gone
    Describe(RendezvousDescribeArgs),
    /// Let nobody join a job any more, for good; members stay until they leave
    Close(CloseArgs),
}

/// Verbs of `barrier`.
#[derive(Debug, Subcommand)]
pub(crate) enum BarrierVerb {
    /// The barriers of a job
    List(BarrierListArgs),
    /// One barrier: who has arrived, who is missing, why it failed
    Describe(BarrierDescribeArgs),
    /// Let a barrier that waits fail, for all who are there and all who come
    Abort(AbortArgs),
}

/// Verbs of `dataset`.
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetVerb {
    /// Every dataset of the namespace
    List(ChooseArgs),
    /// One dataset: where it is, how large, and in which order its epochs go
    Describe(DatasetDescribeArgs),
    /// Name one, for jobs to read; it never changes
    Create(CreateArgs),
    /// Forget one that no job reads; its data stays where it is
    Delete(DatasetDeleteArgs),
}

/// Verbs of `job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    /// Every training job, or one: lineage, trainers, and the epochs under way
    List(ShardListArgs),
    /// Delete one that has no trainers, with its claims and its checkpoints
    Delete(JobDeleteArgs),
}

/// Verbs of `shard`.
#[derive(Debug, Subcommand)]
pub(crate) enum ShardVerb {
    /// Every training job, or one: lineage, trainers, and the epochs under way
    List(ShardListArgs),
    /// The shards of one epoch: free, claimed by whom, finished, sealed by a checkpoint
    Describe(ShardDescribeArgs),
}

/// Verbs of `checkpoint`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointVerb {
    /// Every checkpoint of the namespace, or of one job
    List(CheckpointListArgs),
    /// One checkpoint, rank by rank
    Describe(CheckpointDescribeArgs),
    /// Give up one that is not complete
    Abort(CheckpointAbortArgs),
    /// Keep one under a label, or take the label away
    Label(LabelArgs),
    /// Remove old checkpoints; labelled ones, and the one that recovery would give, stay
    Prune(PruneArgs),
    /// Read every byte of a checkpoint and compare it with what its ranks reported
    Verify(CheckpointVerifyArgs),
}

/// Verbs of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    /// The cluster on one screen; the same as `rolloutctl status`
    Status,
    /// Prove that all members hold the same state, in memory and on disk
    Verify(VerifyArgs),
    /// Form a new cluster of fresh members, once
    Bootstrap(BootstrapArgs),
    /// Raise the version that gates commands and formats, where every member supports it
    Upgrade(UpgradeArgs),
}

/// Verbs of `snapshot`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Save a running cluster's ledger to a file
    Save(SaveArgs),
    /// Prove that a snapshot file is whole, and show what it is of; needs no cluster
    Verify(SnapshotVerifyArgs),
    /// Make the data directory of a member of a new cluster from a snapshot file
    Restore(RestoreArgs),
}

/// Verbs of `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditVerb {
    /// Prove that the lines of a member's audit files follow each other; needs no cluster
    Verify(AuditVerifyArgs),
}

/// Verbs of `storage`.
#[derive(Debug, Subcommand)]
pub(crate) enum StorageVerb {
    /// Bytes of log and image, member by member
    Stats,
}

/// Verbs of `alarm`.
#[derive(Debug, Subcommand)]
pub(crate) enum AlarmVerb {
    /// What is wrong now, and the command that mends it
    List(AlarmListArgs),
}

/// Verbs of `token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Let a worker or a client come for a certificate; prints the token, once
    Create(TokenCreateArgs),
    /// Every token that is good yet, without its secret
    List(ChooseArgs),
    /// Let nobody in by a token any more; certificates that it brought stay good until they end
    Revoke(RevokeArgs),
}

/// Verbs of `cert`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertVerb {
    /// Create a certificate authority, unless it is there
    InitCa(InitCaArgs),
    /// Issue a certificate for a member, worker, viewer, client or admin
    Issue(IssueArgs),
    /// Show whom a certificate names and when it ends
    Inspect(InspectArgs),
    /// What members present, and what files hold: who, by whom, how long
    Status(StatusArgs),
    /// Create the issuing key below the authority, by which members certify workers and clients
    InitIssuer(InitIssuerArgs),
    /// Get a certificate from the cluster, by a join token
    Enrol(EnrolArgs),
    /// Get another one in the place of your own, which has to have come by `cert enrol`
    Renew,
    /// Have every member refuse certificates, and close the connections that were made with them
    Revoke(CertRevokeArgs),
    /// Withdraw a revocation
    Unrevoke(UnrevokeArgs),
    /// Every revocation in force
    Revocations,
}

/// Verbs of `bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// What a disk does by itself: appends and fsyncs in a loop
    Fsync(FsyncArgs),
    /// Time of a command in the state machine, by number of runs, slots and rows
    Apply(ApplyArgs),
    /// Claims plus completions a second, each fsynced on a quorum
    Ledger(LedgerArgs),
    /// From the leader's SIGKILL to the next claim
    Failover(FailoverArgs),
    /// How long each worker pauses when the leader is stopped in good order, or hands over
    Handover(HandoverArgs),
    /// Rows a second from a JSONL file to durable segments
    Submit(SubmitArgs),
    /// Time from the first join of a training job's nodes to the last rank
    Rendezvous(RendezvousArgs),
    /// Throughput and latency of a training job's shared store, through a gateway
    Store(StoreArgs),
    /// Thousands of simulated workers: leader load, claims, completions, reads, lost workers
    Fleet(Box<FleetArgs>),
    /// One process of `bench fleet`
    #[command(hide = true)]
    FleetPart,
}

/// Verbs of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Every key of a daemon, its value, and who says so
    View(ViewArgs),
    /// A configuration file that says what holds without one
    Default(DefaultArgs),
    /// Every problem of a configuration file
    Validate(ValidateArgs),
    /// A JSON Schema of a configuration file
    Schema(SchemaArgs),
}

/// Verbs of `context`.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextVerb {
    /// Every context
    List,
    /// One context, or the current one
    Show {
        /// Its name
        #[arg(add = completer::of(Names::Contexts))]
        name: Option<String>,
    },
    /// Make a context the current one: commands use it where nothing else says which cluster
    Use(NameArgs),
    /// Keep a cluster under a name, with the connection flags of this command
    Add(ContextAddArgs),
    /// Forget a context; its files stay
    Remove(NameArgs),
}

/// Verbs of `errors`.
#[derive(Debug, Subcommand)]
pub(crate) enum ErrorsVerb {
    /// Every code
    List,
    /// The page of one code
    Explain {
        /// The code, such as RO-1001
        #[arg(value_name = "RO-NNNN")]
        code: String,
    },
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
