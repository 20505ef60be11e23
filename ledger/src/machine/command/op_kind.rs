//! The list of all kinds of operations.
//!
//! *Invariant:* a tag is permanent, because the log contains it: no tag changes, and a new kind gets the next one. The
//! fields of a released kind never change. Everything else that the ledger knows of a kind is in the implementation of
//! [`Operation`] of its type.

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Defines [`OpKind`] and its methods from the list of all kinds: tag, name and type.
macro_rules! operations {
    ($($(#[$doc:meta])* $tag:literal $name:ident(crate::$($operation:ident)::+),)*) => {
        /// Every kind of operation. The roles that may request one are checked for each RPC method, not here.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum OpKind {
            $($(#[$doc])* $name(crate::$($operation)::+),)*
        }

        /// The types of all kinds, by name, for callers that build commands.
        pub mod op {
            $(pub use crate::$($operation)::+;)*
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
            &[$((stringify!($name), <crate::$($operation)::+ as Operation>::SINCE)),*];

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
                match self { $(Self::$name(_) => <crate::$($operation)::+ as Operation>::IN_EXCHANGE,)* }
            }

            /// Whether a quota may refuse it.
            pub fn is_bounded(&self) -> bool {
                match self { $(Self::$name(_) => <crate::$($operation)::+ as Operation>::IS_BOUNDED,)* }
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
    0 OpenClient(crate::identity::open_client::OpenClient),
    /// Creates a run, or finds the same one.
    1 CreateRun(crate::batch::create_run::CreateRun),
    /// Appends segments to an open input.
    2 AddSegments(crate::batch::add_segments::AddSegments),
    /// Closes a run's input: from now on it can finish.
    3 CloseInput(crate::batch::close_input::CloseInput),
    /// Pauses, resumes or cancels a run.
    4 ControlRun(crate::batch::control_run::ControlRun),
    /// Registers a worker or resumes its session.
    5 Register(crate::fleet::register::Register),
    /// Ends a worker's session. Its rows become pending.
    6 Deregister(crate::fleet::deregister::Deregister),
    /// A worker is silent: its unstarted rows become pending, and it gets no more.
    7 Suspect(crate::fleet::suspect::Suspect),
    /// A suspect worker is back.
    8 Unsuspect(crate::fleet::unsuspect::Unsuspect),
    /// A worker takes no more work, on its own or an operator's request.
    9 Drain(crate::fleet::drain::DrainWorker),
    /// Grants pending rows to a slot.
    10 Claim(crate::batch::claim::Claim),
    /// Rows are done: their results are in a durable part.
    11 Complete(crate::batch::complete::Complete),
    /// An attempt failed.
    12 Fail(crate::batch::fail::Fail),
    /// Returns rows, unstarted or unfinished, without counting a strike.
    13 Nack(crate::batch::nack::Nack),
    /// Creates a namespace, or changes its cap.
    14 SetNamespace(crate::identity::set_namespace::SetNamespace),
    /// Moves unstarted rows that a slot yielded to an idle one.
    15 Steal(crate::batch::steal::Steal),
    /// Gives a slot rows that other slots already run, at the tail of a run that allows it: the first result wins.
    16 ClaimSpeculatively(crate::batch::speculative_attempt::ClaimSpeculatively),
    /// A slot's engine died with these rows started.
    17 EngineDied(crate::batch::engine_death::EngineDied),
    /// Stops grants to a worker or to one of its slots, or allows them again.
    18 Cordon(crate::fleet::cordon::Cordon),
    /// Rows that failed for good are pending again.
    19 RetryRows(crate::batch::retry::RetryRows),
    /// Marks rows that were never granted as done: their results are reused from an earlier run
    /// of the same items.
    20 ReuseResults(crate::batch::result_reuse::ReuseResults),
    /// An ended run's rows have moved to a manifest object.
    21 Seal(crate::batch::seal_run::Seal),
    /// Deletes an ended run; its name stays taken until its objects are gone.
    22 DeleteRun(crate::batch::delete_run::DeleteRun),
    /// The objects of a deleted run are gone; this removes the run.
    23 ForgetRun(crate::batch::forget_run::ForgetRun),
    /// Operations on a shared store, in order, each with its own answer. Without operations, this still counts as a
    /// use and keeps the store alive.
    24 Store(crate::training::use_store::UseStore),
    /// Drops a shared store with its contents.
    25 DropStore(crate::training::drop_store::DropStore),
    /// Takes part in a job and joins its rendezvous, replacing an earlier participant of the name.
    26 Join(crate::training::join::Join),
    /// Takes part in a job without joining its rendezvous, replacing an earlier participant of the name.
    27 Participate(crate::training::participate::Participate),
    /// A participant leaves.
    28 Leave(crate::training::leave::Leave),
    /// A participant was silent for too long.
    29 LoseParticipant(crate::training::lose_participant::LoseParticipant),
    /// Closes a job's rendezvous for new participants.
    30 CloseRendezvous(crate::training::close_rendezvous::CloseRendezvous),
    /// A participant has arrived at a barrier.
    31 Arrive(crate::training::arrive::Arrive),
    /// A barrier that waits fails.
    32 AbortBarrier(crate::training::abort_barrier::AbortBarrier),
    /// Creates or deletes a dataset.
    33 Dataset(crate::training::dataset::DatasetOp),
    /// Joins, keeps alive, removes or recovers trainers, or deletes a job.
    34 Trainer(crate::training::trainer::TrainerOp),
    /// Trainers take shards and give them back.
    35 Shard(crate::training::shard::ShardOp),
    /// Begins, reports, aborts, retains, labels or forgets a checkpoint.
    36 Checkpoint(crate::training::checkpoint::CheckpointOp),
    /// Records that the store no longer has objects of a sealed run that its manifest does not name.
    37 Swept(crate::batch::sweep_run::Swept),
    /// Changes a namespace's quota.
    38 SetQuota(crate::identity::quota::Quota),
    /// The coordinator delivered a run's completion webhook, or gave it up.
    39 SettleWebhook(crate::batch::completion_webhook::SettleWebhook),
    /// An operation on a join token.
    40 Token(crate::identity::token::TokenOp),
    /// As [`OpKind::Suspect`], for a worker that may have started more rows than it reported.
    41 SuspectWithUnreportedStarts(crate::batch::unreported_starts::SuspectWithUnreportedStarts),
    /// A change of the list of revoked certificates.
    42 Revocation(crate::identity::revocation::RevocationOp),
    /// Records what the leader observes of members: started, stopped, unreachable.
    43 Member(crate::identity::member::MemberOp),
    /// As [`OpKind::Store`], by a member of the store's round.
    44 RoundStore(crate::training::round_access::UseRoundStore),
    /// An operator changes a setting of the cluster.
    45 Setting(crate::fleet::setting::SettingOp),
    /// Changes the deadline of a run that has not ended.
    46 SetDeadline(crate::batch::set_deadline::SetDeadline),
    /// Trainers of a job were silent for too long.
    47 LoseTrainers(crate::training::lose_trainers::LoseTrainers),
    /// Changes the weight of a run that has not ended.
    48 SetWeight(crate::batch::set_weight::SetWeight),
    /// Creates an API key.
    49 CreateApiKey(crate::identity::create_api_key::CreateApiKey),
    /// Revokes an API key.
    50 RevokeApiKey(crate::identity::revoke_api_key::RevokeApiKey),
    /// Creates a file of OpenAI's API, or finds the same one.
    51 CreateFile(crate::openai::create_file::CreateFile),
    /// Deletes a file of OpenAI's API.
    52 DeleteFile(crate::openai::delete_file::DeleteFile),
    /// Creates an upload of a file in parts.
    53 CreateUpload(crate::openai::create_upload::CreateUpload),
    /// Adds a part to an upload.
    54 AddUploadPart(crate::openai::add_upload_part::AddUploadPart),
    /// Makes a file of the parts of an upload.
    55 CompleteUpload(crate::openai::complete_upload::CompleteUpload),
    /// Cancels an upload.
    56 CancelUpload(crate::openai::cancel_upload::CancelUpload),
    /// The objects of deleted files, or of parts that became no file, are gone.
    57 ForgetContent(crate::openai::forget_content::ForgetContent),
    /// Creates a batch of OpenAI's API, or finds the same one.
    58 CreateBatch(crate::openai::create_batch::CreateBatch),
    /// Assigns the present work of a batch to a member.
    59 AssignBatch(crate::openai::assign_batch::AssignBatch),
    /// Appends validated segments to a batch in validation.
    60 AddBatchSegments(crate::openai::add_batch_segments::AddBatchSegments),
    /// Ends a batch whose file is invalid.
    61 FailBatch(crate::openai::fail_batch::FailBatch),
    /// Starts a batch whose file is valid: it gets its run.
    62 StartBatch(crate::openai::start_batch::StartBatch),
    /// Cancels a batch.
    63 CancelBatch(crate::openai::cancel_batch::CancelBatch),
    /// Ends a batch whose output files are written.
    64 FinishBatch(crate::openai::finish_batch::FinishBatch),
}
