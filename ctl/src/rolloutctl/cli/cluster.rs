//! Owns: the verbs of nouns for the cluster itself: its members, data and certificates, and this machine.
//!
//! Invariant: as in `cli`.
//! Absent: the arguments of a verb, which are beside what it does.

use clap::Subcommand;

use crate::bench::apply::ApplyArgs;
use crate::bench::disk::FsyncArgs;
use crate::bench::failover::FailoverArgs;
use crate::bench::fleet::FleetArgs;
use crate::bench::handover::HandoverArgs;
use crate::bench::ledger::LedgerArgs;
use crate::bench::rendezvous::RendezvousArgs;
use crate::bench::store::StoreArgs;
use crate::bench::submit::SubmitArgs;
use crate::completer;
use crate::completer::Names;
use crate::rolloutctl::alarm::list::ListArgs as AlarmListArgs;
use crate::rolloutctl::audit::verify::VerifyArgs as AuditVerifyArgs;
use crate::rolloutctl::cert::enrol::EnrolArgs;
use crate::rolloutctl::cert::init_ca::InitCaArgs;
use crate::rolloutctl::cert::init_issuer::InitIssuerArgs;
use crate::rolloutctl::cert::inspect::InspectArgs;
use crate::rolloutctl::cert::issue::IssueArgs;
use crate::rolloutctl::cert::revoke::{RevokeArgs as CertRevokeArgs, UnrevokeArgs};
use crate::rolloutctl::cert::status::StatusArgs;
use crate::rolloutctl::choose::ChooseArgs;
use crate::rolloutctl::cluster::bootstrap::BootstrapArgs;
use crate::rolloutctl::cluster::upgrade::UpgradeArgs;
use crate::rolloutctl::cluster::verify::VerifyArgs;
use crate::rolloutctl::config::default::DefaultArgs;
use crate::rolloutctl::config::schema::SchemaArgs;
use crate::rolloutctl::config::validate::ValidateArgs;
use crate::rolloutctl::config::view::ViewArgs;
use crate::rolloutctl::context::{AddArgs as ContextAddArgs, NameArgs};
use crate::rolloutctl::leader::transfer::TransferArgs;
use crate::rolloutctl::member::add::AddArgs;
use crate::rolloutctl::member::describe::DescribeArgs as MemberDescribeArgs;
use crate::rolloutctl::member::promote::PromoteArgs;
use crate::rolloutctl::member::remove::RemoveArgs;
use crate::rolloutctl::member::replace::ReplaceArgs;
use crate::rolloutctl::member::update::UpdateArgs;
use crate::rolloutctl::snapshot::restore::RestoreArgs;
use crate::rolloutctl::snapshot::save::SaveArgs;
use crate::rolloutctl::snapshot::verify::VerifyArgs as SnapshotVerifyArgs;
use crate::rolloutctl::token::create::CreateArgs as TokenCreateArgs;
use crate::rolloutctl::token::revoke::RevokeArgs;

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
    /// Show the identity in a certificate and when it expires
    Inspect(InspectArgs),
    /// Show the certificates of members and files: identity, issuer, expiry
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
    /// Print a configuration file with the default values
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
