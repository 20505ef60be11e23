//! Owns: the verbs of nouns for what is run: batch runs, training jobs, their parts and the workers that run them.
//!
//! Invariant: as in `cli`.
//! Absent: the arguments of a verb, which are beside what it does.

use clap::Subcommand;

use crate::rolloutctl::barrier::abort::AbortArgs;
use crate::rolloutctl::barrier::describe::DescribeArgs as BarrierDescribeArgs;
use crate::rolloutctl::barrier::list::ListArgs as BarrierListArgs;
use crate::rolloutctl::checkpoint::abort::AbortArgs as CheckpointAbortArgs;
use crate::rolloutctl::checkpoint::describe::DescribeArgs as CheckpointDescribeArgs;
use crate::rolloutctl::checkpoint::label::LabelArgs;
use crate::rolloutctl::checkpoint::list::ListArgs as CheckpointListArgs;
use crate::rolloutctl::checkpoint::prune::PruneArgs;
use crate::rolloutctl::checkpoint::verify::VerifyArgs as CheckpointVerifyArgs;
use crate::rolloutctl::choose::ChooseArgs;
use crate::rolloutctl::dataset::create::CreateArgs;
use crate::rolloutctl::dataset::delete::DeleteArgs as DatasetDeleteArgs;
use crate::rolloutctl::dataset::describe::DescribeArgs as DatasetDescribeArgs;
use crate::rolloutctl::item::describe::DescribeArgs as ItemDescribeArgs;
use crate::rolloutctl::item::list::ListArgs as ItemListArgs;
use crate::rolloutctl::item::retry::RetryArgs as ItemRetryArgs;
use crate::rolloutctl::job::delete::DeleteArgs as JobDeleteArgs;
use crate::rolloutctl::namespace::describe::DescribeArgs as NamespaceDescribeArgs;
use crate::rolloutctl::namespace::set_quota::SetQuotaArgs;
use crate::rolloutctl::rendezvous::close::CloseArgs;
use crate::rolloutctl::rendezvous::describe::DescribeArgs as RendezvousDescribeArgs;
use crate::rolloutctl::run::control::ControlArgs;
use crate::rolloutctl::run::delete::DeleteArgs;
use crate::rolloutctl::run::describe::DescribeArgs;
use crate::rolloutctl::run::list::ListArgs as RunListArgs;
use crate::rolloutctl::run::retry::RetryArgs;
use crate::rolloutctl::run::watch::WatchArgs;
use crate::rolloutctl::shard::describe::DescribeArgs as ShardDescribeArgs;
use crate::rolloutctl::shard::list::ListArgs as ShardListArgs;
use crate::rolloutctl::worker::cordon::CordonArgs;
use crate::rolloutctl::worker::describe::DescribeArgs as WorkerDescribeArgs;
use crate::rolloutctl::worker::drain::DrainArgs;
use crate::rolloutctl::worker::list::ListArgs as WorkerListArgs;
use crate::rolloutctl::worker::uncordon::UncordonArgs;

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

/// Verbs of `worker`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// Every worker of the namespace
    List(WorkerListArgs),
    /// One worker, slot by slot
    Describe(WorkerDescribeArgs),
    /// Give a worker, or one of its slots, no more work; what it holds it finishes
    Cordon(CordonArgs),
    /// Give it work again, also after a cordon by the ledger
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
    /// List the shards of one epoch and their states
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
