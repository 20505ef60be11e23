//! The list of all kinds of operations.
//!
//! *Invariant:* a tag is permanent, because the log contains it: no tag changes, and a new kind gets the next one. The
//! fields of a released kind never change. Everything else that the ledger knows of a kind is in the implementation of
//! [`Operation`] of its type.

use super::Registration;
use crate::fleet::setting::SettingOp;
use crate::identity::member::MemberOp;
use crate::identity::quota::Quota;
use crate::identity::revocation::RevocationOp;
use crate::identity::token::TokenOp;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::op;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::checkpoint::CheckpointOp;
use crate::training::dataset::DatasetOp;
use crate::training::shard::ShardOp;
use crate::training::trainer::TrainerOp;
use serde::{Deserialize, Serialize};

/// Defines [`OpKind`] and its methods from the list of all kinds: tag, name and type.
macro_rules! operations {
    ($($(#[$doc:meta])* $tag:literal $name:ident($operation:ty),)*) => {
        /// Every kind of operation. The roles that may request one are checked for each RPC method, not here.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum OpKind {
            $($(#[$doc])* $name($operation),)*
        }

        /// The tags in the order of the list. A variant's position is its tag in the encoding.
        const TAGS: &[usize] = &[$($tag),*];

        const _: () = {
            let mut position = 0;
            while position < TAGS.len() {
                assert!(TAGS[position] == position, "a tag is not the position in the list");
                position += 1;
            }
        };

        /// Each kind with the cluster version that introduced it.
        #[cfg(test)]
        pub(crate) const KINDS: &[(&str, u32)] =
            &[$((stringify!($name), <$operation as Operation>::SINCE)),*];

        impl OpKind {
            /// The names of all kinds, by tag.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// The name of its kind.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            /// The cluster version that it requires, including its nested enum variants.
            pub fn since(&self) -> u32 {
                match self { $(Self::$name(operation) => operation.since(),)* }
            }

            /// How long `apply` may take for it.
            pub fn cost(&self) -> Cost {
                match self { $(Self::$name(operation) => operation.cost(),)* }
            }

            /// Whether it makes the ledger larger for longer than the request takes.
            pub fn grows(&self) -> bool {
                match self { $(Self::$name(operation) => operation.grows(),)* }
            }

            /// The rows that it grants, decides or returns.
            pub fn rows(&self) -> u64 {
                match self { $(Self::$name(operation) => operation.rows(),)* }
            }

            /// Whether a worker's exchange carries it, and the worker's stream waits for its reply.
            pub fn in_exchange(&self) -> bool {
                match self { $(Self::$name(_) => <$operation as Operation>::IN_EXCHANGE,)* }
            }

            /// Whether a quota may refuse it.
            pub fn is_bounded(&self) -> bool {
                match self { $(Self::$name(_) => <$operation as Operation>::IS_BOUNDED,)* }
            }

            pub(crate) fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
                match self { $(Self::$name(operation) => operation.subject(ledger),)* }
            }

            pub(crate) fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
                match self { $(Self::$name(operation) => operation.dry_run(ledger),)* }
            }

            pub(crate) fn apply(
                self,
                ledger: &mut Ledger,
                ctx: &mut Context,
            ) -> Result<Reply, Rejection> {
                match self { $(Self::$name(operation) => operation.apply(ledger, ctx),)* }
            }
        }
    };
}

operations! {
    /// Opens a client session.
    0 OpenClient(op::OpenClient),
    /// Creates a run, or finds the same one.
    1 CreateRun(op::CreateRun),
    /// Appends segments to an open input.
    2 AddSegments(op::AddSegments),
    /// Closes a run's input: from now on it can finish.
    3 CloseInput(op::CloseInput),
    /// Pauses, resumes or cancels a run.
    4 ControlRun(op::ControlRun),
    /// Registers a worker or resumes its session.
    5 Register(Box<Registration>),
    /// Ends a worker's session. Its rows become pending.
    6 Deregister(op::Deregister),
    /// A worker is silent: its unstarted rows become pending, and it gets no more.
    7 Suspect(op::Suspect),
    /// A suspect worker is back.
    8 Unsuspect(op::Unsuspect),
    /// A worker takes no more work, on its own or an operator's request.
    9 Drain(op::DrainWorker),
    /// Grants pending rows to a slot.
    10 Claim(op::Claim),
    /// Rows are done: their results are in a durable part.
    11 Complete(op::Complete),
    /// An attempt failed.
    12 Fail(op::Fail),
    /// Returns rows, unstarted or unfinished, through no fault of theirs.
    13 Nack(op::Nack),
    /// Creates a namespace, or changes its cap.
    14 SetNamespace(op::SetNamespace),
    /// Moves unstarted rows that a slot yielded to an idle one.
    15 Steal(op::Steal),
    /// Gives a slot rows that other slots already run, at the tail of a run that allows it: the first result wins.
    16 ClaimSpeculatively(op::ClaimSpeculatively),
    /// A slot's engine died with these rows started.
    17 EngineDied(op::EngineDied),
    /// Stops grants to a worker or to one of its slots, or allows them again.
    18 Cordon(op::Cordon),
    /// Rows that failed for good are pending again.
    19 RetryRows(op::RetryRows),
    /// Marks rows that were never granted as done: their results were carried over from an earlier
    /// run of the same items.
    20 ReuseResults(op::ReuseResults),
    /// An ended run's rows have moved to a manifest object.
    21 Seal(op::Seal),
    /// Deletes an ended run; its name stays taken until its objects are gone.
    22 DeleteRun(op::DeleteRun),
    /// The objects of a deleted run are gone; this removes the run.
    23 ForgetRun(op::ForgetRun),
    /// Operations on a shared store, in order, each with its own answer. Without operations, this still counts as a
    /// use and keeps the store alive.
    24 Store(op::UseStore),
    /// Drops a shared store with its contents.
    25 DropStore(op::DropStore),
    /// Takes part in a job and joins its rendezvous, replacing an earlier participant of the name.
    26 Join(op::Join),
    /// Takes part in a job without joining its rendezvous, replacing an earlier participant of the name.
    27 Participate(op::Participate),
    /// A participant leaves.
    28 Leave(op::Leave),
    /// A participant was silent for too long.
    29 LoseParticipant(op::LoseParticipant),
    /// Closes a job's rendezvous for new participants.
    30 CloseRendezvous(op::CloseRendezvous),
    /// A participant has arrived at a barrier.
    31 Arrive(op::Arrive),
    /// A barrier that waits fails.
    32 AbortBarrier(op::AbortBarrier),
    /// Creates or deletes a dataset.
    33 Dataset(DatasetOp),
    /// Joins, keeps alive, removes or recovers trainers, or deletes a job.
    34 Trainer(TrainerOp),
    /// Trainers take shards and give them back.
    35 Shard(ShardOp),
    /// Begins, reports, aborts, retains, labels or forgets a checkpoint.
    36 Checkpoint(CheckpointOp),
    /// Records that the store no longer has objects of a sealed run that its manifest does not name.
    37 Swept(op::Swept),
    /// Changes a namespace's quota.
    38 SetQuota(Quota),
    /// The coordinator delivered a notification of a run's end, or gave it up.
    39 SettleWebhook(op::SettleWebhook),
    /// An operation on a join token.
    40 Token(TokenOp),
    /// As [`OpKind::Suspect`], for a worker that may have started more rows than it reported.
    41 SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts),
    /// A change of the list of revoked certificates.
    42 Revocation(RevocationOp),
    /// Records what the leader observes of members: started, stopped, unreachable.
    43 Member(MemberOp),
    /// As [`OpKind::Store`], by a member of the store's round.
    44 RoundStore(op::UseRoundStore),
    /// An operator changes a setting of the cluster.
    45 Setting(SettingOp),
    /// Changes the deadline of a run that has not ended.
    46 SetDeadline(op::SetDeadline),
    /// Trainers of a job were silent for too long.
    47 LoseTrainers(op::LoseTrainers),
}
