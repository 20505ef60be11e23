//! Owns: the verbs of nouns for workloads: batch runs, training jobs, their parts and the workers that run them.
//!
//! Invariant: as in `cli`.
//! Absent: a verb's arguments, which are next to its code.

use crate::rolloutctl::barrier::abort::AbortArgs;
use crate::rolloutctl::barrier::describe::DescribeArgs as BarrierDescribeArgs;
use crate::rolloutctl::barrier::list::ListArgs as BarrierListArgs;
use crate::rolloutctl::checkpoint::abort::AbortArgs as CheckpointAbortArgs;
use crate::rolloutctl::checkpoint::describe::DescribeArgs as CheckpointDescribeArgs;
use crate::rolloutctl::checkpoint::label::LabelArgs;
use crate::rolloutctl::checkpoint::list::ListArgs as CheckpointListArgs;
use crate::rolloutctl::checkpoint::prune::PruneArgs;
use crate::rolloutctl::checkpoint::verify::VerifyArgs as CheckpointVerifyArgs;
use crate::rolloutctl::dataset::create::CreateArgs;
use crate::rolloutctl::dataset::delete::DeleteArgs as DatasetDeleteArgs;
use crate::rolloutctl::dataset::describe::DescribeArgs as DatasetDescribeArgs;
use crate::rolloutctl::dataset::list::ListArgs as DatasetListArgs;
use crate::rolloutctl::item::describe::DescribeArgs as ItemDescribeArgs;
use crate::rolloutctl::item::list::ListArgs as ItemListArgs;
use crate::rolloutctl::item::retry::RetryArgs as ItemRetryArgs;
use crate::rolloutctl::job::delete::DeleteArgs as JobDeleteArgs;
use crate::rolloutctl::job::describe::DescribeArgs as JobDescribeArgs;
use crate::rolloutctl::job::list::ListArgs as JobListArgs;
use crate::rolloutctl::namespace::describe::DescribeArgs as NamespaceDescribeArgs;
use crate::rolloutctl::namespace::list::ListArgs as NamespaceListArgs;
use crate::rolloutctl::namespace::set_quota::SetQuotaArgs;
use crate::rolloutctl::rendezvous::close::CloseArgs;
use crate::rolloutctl::rendezvous::describe::DescribeArgs as RendezvousDescribeArgs;
use crate::rolloutctl::rendezvous::list::ListArgs as RendezvousListArgs;
use crate::rolloutctl::run::cancel::CancelArgs;
use crate::rolloutctl::run::delete::DeleteArgs;
use crate::rolloutctl::run::describe::DescribeArgs;
use crate::rolloutctl::run::list::ListArgs as RunListArgs;
use crate::rolloutctl::run::pause::PauseArgs;
use crate::rolloutctl::run::resume::ResumeArgs;
use crate::rolloutctl::run::retry::RetryArgs;
use crate::rolloutctl::run::set_deadline::SetDeadlineArgs;
use crate::rolloutctl::run::set_weight::SetWeightArgs;
use crate::rolloutctl::run::watch::WatchArgs;
use crate::rolloutctl::shard::describe::DescribeArgs as ShardDescribeArgs;
use crate::rolloutctl::shard::list::ListArgs as ShardListArgs;
use crate::rolloutctl::verb::branch;
use crate::rolloutctl::worker::cordon::CordonArgs;
use crate::rolloutctl::worker::describe::DescribeArgs as WorkerDescribeArgs;
use crate::rolloutctl::worker::drain::DrainArgs;
use crate::rolloutctl::worker::list::ListArgs as WorkerListArgs;
use crate::rolloutctl::worker::uncordon::UncordonArgs;

branch! {
    /// Verbs of `run`.
    enum RunVerb {
        /// List the runs of the namespace, newest first
        List(RunListArgs),
        /// Show one run: progress, spec, failed rows
        Describe(DescribeArgs),
        /// Follow one run until it ends
        Watch(WatchArgs),
        /// Cancel a run; finished rows stay finished
        Cancel(CancelArgs),
        /// Pause a run: grant no more of its rows
        Pause(PauseArgs),
        /// Resume a paused run: grant its rows again
        Resume(ResumeArgs),
        /// Retry all failed rows of a run
        Retry(RetryArgs),
        /// Set or remove the deadline of a run that has not ended
        SetDeadline(SetDeadlineArgs),
        /// Set the weight of a run that has not ended
        SetWeight(SetWeightArgs),
        /// Delete an ended run with its input, results and record
        Delete(DeleteArgs),
    }
}

branch! {
    /// Verbs of `item`.
    enum ItemVerb {
        /// List the rows of a run that are in one state
        List(ItemListArgs),
        /// Show rows: the state, the worker and the failures of each
        Describe(ItemDescribeArgs),
        /// Retry failed rows
        Retry(ItemRetryArgs),
    }
}

branch! {
    /// Verbs of `worker`.
    enum WorkerVerb {
        /// List the workers of the namespace
        List(WorkerListArgs),
        /// Show one worker, slot by slot
        Describe(WorkerDescribeArgs),
        /// Stop granting rows to a worker or one slot; it finishes the rows it holds
        Cordon(CordonArgs),
        /// Lift all cordons of a worker, set by operators or automatically
        Uncordon(UncordonArgs),
        /// Drain a worker: it finishes its running rows, returns the others, and exits
        Drain(DrainArgs),
    }
}

branch! {
    /// Verbs of `namespace`.
    enum NamespaceVerb {
        /// List the namespaces that your certificate allows
        List(NamespaceListArgs),
        /// Show one namespace: usage and quotas
        Describe(NamespaceDescribeArgs),
        /// Set the quotas of a namespace
        SetQuota(SetQuotaArgs),
    }
}

branch! {
    /// Verbs of `job rendezvous`. The noun `rendezvous` is hidden, and works for one release.
    enum RendezvousVerb {
        /// List the namespace's training jobs with the state of their rendezvous
        List(RendezvousListArgs),
        /// Show one job: its participants with state and rank, and departed participants
        Describe(RendezvousDescribeArgs),
        /// Close a job's rendezvous permanently; current members stay until they leave
        Close(CloseArgs),
    }
}

branch! {
    /// Verbs of `job barrier`. The noun `barrier` is hidden, and works for one release.
    enum BarrierVerb {
        /// List the barriers of a job
        List(BarrierListArgs),
        /// Show one barrier: arrived and missing participants, and why it failed
        Describe(BarrierDescribeArgs),
        /// Abort a waiting barrier: it fails for all participants, present and future
        Abort(AbortArgs),
    }
}

branch! {
    /// Verbs of `dataset`.
    enum DatasetVerb {
        /// List the datasets of the namespace
        List(DatasetListArgs),
        /// Show one dataset: location, size, and order of its epochs
        Describe(DatasetDescribeArgs),
        /// Create a dataset; it never changes
        Create(CreateArgs),
        /// Delete the record of a dataset that no job reads; its data stays
        Delete(DatasetDeleteArgs),
    }
}

branch! {
    /// Verbs of `job`.
    enum JobVerb {
        /// List training jobs, newest first: round, participants, training generation, trainers, epochs
        List(JobListArgs),
        /// Show all of one job: participants, barriers, trainers, epochs, checkpoints
        Describe(JobDescribeArgs),
        /// Delete a job without trainers, with its claims and checkpoints
        Delete(JobDeleteArgs),
        /// Show and close the rendezvous of training jobs
        #[command(subcommand, arg_required_else_help = true)]
        Rendezvous(RendezvousVerb),
        /// Show and abort barriers of training jobs
        #[command(subcommand, alias = "barriers", arg_required_else_help = true)]
        Barrier(BarrierVerb),
        /// Show the shards of training jobs and the trainers that hold them
        #[command(subcommand, alias = "shards", arg_required_else_help = true)]
        Shard(ShardVerb),
        /// Manage checkpoints of training jobs
        #[command(subcommand, alias = "checkpoints", arg_required_else_help = true)]
        Checkpoint(CheckpointVerb),
    }
}

branch! {
    /// Verbs of `job shard`. The noun `shard` is hidden, and works for one release.
    enum ShardVerb {
        /// Count each job's shards by state, per epoch in progress; `job list` shows more
        #[command(hide = true)]
        List(ShardListArgs),
        /// List the shards of one epoch and their states
        Describe(ShardDescribeArgs),
    }
}

branch! {
    /// Verbs of `job checkpoint`. The noun `checkpoint` is hidden, and works for one release.
    enum CheckpointVerb {
        /// List checkpoints of the namespace or of one job, newest first
        List(CheckpointListArgs),
        /// Show one checkpoint, rank by rank
        Describe(CheckpointDescribeArgs),
        /// Abort a checkpoint that is not complete
        Abort(CheckpointAbortArgs),
        /// Set or remove a checkpoint's label; labeled checkpoints are kept
        Label(LabelArgs),
        /// Remove old checkpoints, except labeled ones and the one that a recovery would use
        Prune(PruneArgs),
        /// Read every byte of a checkpoint and compare it with what its ranks reported
        Verify(CheckpointVerifyArgs),
    }
}
