//! Owns: the verbs of nouns for the cluster itself: its members, data and certificates, and this machine.
//!
//! Invariant: as in `cli`.
//! Absent: a verb's arguments, which are next to its code.

use crate::bench::apply::ApplyArgs;
use crate::bench::disk::FsyncArgs;
use crate::bench::failover::FailoverArgs;
use crate::bench::fleet::FleetArgs;
use crate::bench::fleet::part::FleetPartArgs;
use crate::bench::handover::HandoverArgs;
use crate::bench::ledger::LedgerArgs;
use crate::bench::rendezvous::RendezvousArgs;
use crate::bench::store::StoreArgs;
use crate::bench::submit::SubmitArgs;
use crate::rolloutctl::alarm::list::ListArgs as AlarmListArgs;
use crate::rolloutctl::audit::verify::VerifyArgs as AuditVerifyArgs;
use crate::rolloutctl::cert::enroll::EnrollArgs;
use crate::rolloutctl::cert::init_ca::InitCaArgs;
use crate::rolloutctl::cert::init_issuer::InitIssuerArgs;
use crate::rolloutctl::cert::inspect::InspectArgs;
use crate::rolloutctl::cert::issue::IssueArgs;
use crate::rolloutctl::cert::renew::RenewArgs;
use crate::rolloutctl::cert::revocations::RevocationsArgs;
use crate::rolloutctl::cert::revoke::RevokeArgs as CertRevokeArgs;
use crate::rolloutctl::cert::status::StatusArgs as CertStatusArgs;
use crate::rolloutctl::cert::unrevoke::UnrevokeArgs;
use crate::rolloutctl::cluster::bootstrap::BootstrapArgs;
use crate::rolloutctl::cluster::set::SetArgs;
use crate::rolloutctl::cluster::settings::SettingsArgs;
use crate::rolloutctl::cluster::upgrade::UpgradeArgs;
use crate::rolloutctl::cluster::verify::VerifyArgs;
use crate::rolloutctl::config::default::DefaultArgs;
use crate::rolloutctl::config::schema::SchemaArgs;
use crate::rolloutctl::config::validate::ValidateArgs;
use crate::rolloutctl::config::view::ViewArgs;
use crate::rolloutctl::context::add::AddArgs as ContextAddArgs;
use crate::rolloutctl::context::list::ListArgs as ContextListArgs;
use crate::rolloutctl::context::remove::RemoveArgs as ContextRemoveArgs;
use crate::rolloutctl::context::show::ShowArgs as ContextShowArgs;
use crate::rolloutctl::context::use_::UseArgs;
use crate::rolloutctl::errors::explain::ExplainArgs;
use crate::rolloutctl::errors::list::ListArgs as ErrorsListArgs;
use crate::rolloutctl::key::create::CreateArgs as KeyCreateArgs;
use crate::rolloutctl::key::describe::DescribeArgs as KeyDescribeArgs;
use crate::rolloutctl::key::list::ListArgs as KeyListArgs;
use crate::rolloutctl::key::revoke::RevokeArgs as KeyRevokeArgs;
use crate::rolloutctl::leader::show::ShowArgs;
use crate::rolloutctl::leader::transfer::TransferArgs;
use crate::rolloutctl::member::add::AddArgs;
use crate::rolloutctl::member::describe::DescribeArgs as MemberDescribeArgs;
use crate::rolloutctl::member::list::ListArgs as MemberListArgs;
use crate::rolloutctl::member::promote::PromoteArgs;
use crate::rolloutctl::member::remove::RemoveArgs;
use crate::rolloutctl::member::replace::ReplaceArgs;
use crate::rolloutctl::member::update::UpdateArgs;
use crate::rolloutctl::snapshot::restore::RestoreArgs;
use crate::rolloutctl::snapshot::save::SaveArgs;
use crate::rolloutctl::snapshot::verify::VerifyArgs as SnapshotVerifyArgs;
use crate::rolloutctl::status::StatusArgs;
use crate::rolloutctl::storage::stats::StatsArgs;
use crate::rolloutctl::token::create::CreateArgs as TokenCreateArgs;
use crate::rolloutctl::token::list::ListArgs as TokenListArgs;
use crate::rolloutctl::token::revoke::RevokeArgs;
use crate::rolloutctl::verb::branch;

branch! {
    /// Verbs of `member`.
    enum MemberVerb {
        /// List the members and how far behind each is
        List(MemberListArgs),
        /// Show one member
        Describe(MemberDescribeArgs),
        /// Add a member: it receives the log, and a vote when it has caught up
        Add(AddArgs),
        /// Give a learner a vote
        Promote(PromoteArgs),
        /// Remove a member permanently; refused unless a majority of the remaining voters answers and is caught up
        Remove(RemoveArgs),
        /// Replace a member by a new one, or by itself with an empty disk
        Replace(ReplaceArgs),
        /// Change a member's address or zone
        Update(UpdateArgs),
    }
}

branch! {
    /// Verbs of `leader`.
    enum LeaderVerb {
        /// Show the current leader
        Show(ShowArgs),
        /// Transfer leadership to another member, without waiting for an election timeout
        Transfer(TransferArgs),
    }
}

branch! {
    /// Verbs of `cluster`.
    enum ClusterVerb {
        /// Show the cluster on one screen; the same as `rolloutctl status`
        Status(StatusArgs),
        /// Verify that all members hold the same state, in memory and on disk
        Verify(VerifyArgs),
        /// Form a new cluster from members with empty data directories
        Bootstrap(BootstrapArgs),
        /// Enable new commands and formats on all members; irreversible
        Upgrade(UpgradeArgs),
        /// Show the settings of the cluster: value, default and meaning
        Settings(SettingsArgs),
        /// Change a setting of the cluster
        Set(SetArgs),
    }
}

branch! {
    /// Verbs of `snapshot`.
    enum SnapshotVerb {
        /// Save a running cluster's ledger to a file
        Save(SaveArgs),
        /// Read snapshot files to the end, check them, and show their cluster and log index; needs no cluster
        Verify(SnapshotVerifyArgs),
        /// Create the data directory of a member of a new cluster from a snapshot file
        Restore(RestoreArgs),
    }
}

branch! {
    /// Verbs of `audit`.
    enum AuditVerb {
        /// Verify the hash chain of a member's audit files; needs no cluster
        Verify(AuditVerifyArgs),
    }
}

branch! {
    /// Verbs of `storage`.
    enum StorageVerb {
        /// Show the size of log and image of each member
        Stats(StatsArgs),
    }
}

branch! {
    /// Verbs of `alarm`.
    enum AlarmVerb {
        /// List current problems, each with the command that fixes it
        List(AlarmListArgs),
    }
}

branch! {
    /// Verbs of `token`.
    enum TokenVerb {
        /// Create a join token for a worker or client; prints the token once
        Create(TokenCreateArgs),
        /// List the valid join tokens, newest first, without their secrets
        List(TokenListArgs),
        /// Revoke a join token. Certificates issued with it stay valid: revoke them with `cert revoke`
        Revoke(RevokeArgs),
    }
}

branch! {
    /// Verbs of `key`.
    enum KeyVerb {
        /// Create an API key for the namespace; prints the key once
        Create(KeyCreateArgs),
        /// List the valid API keys, newest first, without their secrets
        List(KeyListArgs),
        /// Show one API key, without its secret
        Describe(KeyDescribeArgs),
        /// Revoke an API key: every member refuses it
        Revoke(KeyRevokeArgs),
    }
}

branch! {
    /// Verbs of `cert`.
    enum CertVerb {
        /// Create a certificate authority if it does not exist
        InitCa(InitCaArgs),
        /// Issue a certificate for a member, worker, viewer, client or admin
        Issue(IssueArgs),
        /// Show the identity in a certificate and when it expires
        Inspect(InspectArgs),
        /// Show the certificates of members and files: identity, issuer, expiry
        Status(CertStatusArgs),
        /// Create an intermediate CA, with which members issue certificates to workers and clients
        InitIssuer(InitIssuerArgs),
        /// Get a certificate from the cluster with a join token
        #[command(alias = "enrol")]
        Enroll(EnrollArgs),
        /// Renew your own certificate, if it came from `cert enroll`
        Renew(RenewArgs),
        /// Revoke certificates: every member refuses them and closes their connections
        Revoke(CertRevokeArgs),
        /// Withdraw a revocation
        Unrevoke(UnrevokeArgs),
        /// List the revocations in force, newest first
        Revocations(RevocationsArgs),
    }
}

branch! {
    /// Verbs of `bench`.
    enum BenchVerb {
        /// Measure a disk alone: appends and fsyncs in a loop
        Fsync(FsyncArgs),
        /// Measure the time of a command in the state machine, by number of runs, slots and rows
        Apply(ApplyArgs),
        /// Measure claims and completions per second, each fsynced on a quorum
        Ledger(LedgerArgs),
        /// Measure the time from the leader's SIGKILL to the next claim
        Failover(FailoverArgs),
        /// Measure how long each worker pauses during an orderly handover
        Handover(HandoverArgs),
        /// Measure rows per second from a JSONL file to durable segments
        Submit(SubmitArgs),
        /// Measure the time from the first join of a training job's nodes to the last rank
        Rendezvous(RendezvousArgs),
        /// Measure throughput and latency of a training job's shared store, through a gateway
        Store(StoreArgs),
        /// Simulate thousands of workers: measure leader load, claims, completions, reads, lost
        /// workers
        Fleet(Box<FleetArgs>),
        /// One process of `bench fleet`
        #[command(hide = true)]
        FleetPart(FleetPartArgs),
    }
}

branch! {
    /// Verbs of `config`.
    enum ConfigVerb {
        /// Show every key of a daemon's configuration, its value and its source
        View(ViewArgs),
        /// Print a configuration file with the default values
        Default(DefaultArgs),
        /// List all problems of a configuration file
        Validate(ValidateArgs),
        /// Print the JSON Schema of a configuration file
        Schema(SchemaArgs),
    }
}

branch! {
    /// Verbs of `context`.
    enum ContextVerb {
        /// List the contexts
        List(ContextListArgs),
        /// Show one context, or the current one
        Show(ContextShowArgs),
        /// Set the current context, which commands use by default
        Use(UseArgs),
        /// Add a named cluster from the connection flags of this command
        Add(ContextAddArgs),
        /// Remove contexts; certificate and key files stay
        Remove(ContextRemoveArgs),
    }
}

branch! {
    /// Verbs of `errors`.
    enum ErrorsVerb {
        /// List the error codes
        List(ErrorsListArgs),
        /// Print the page of one code
        Explain(ExplainArgs),
    }
}
