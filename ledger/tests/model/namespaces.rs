//! The namespace rule in the model: what each operation is about, from its own fields and the model's state.

use crate::naive::Model;
use rollout_ledger::id::{RunNo, SessionId};
use rollout_ledger::{
    CheckpointOp, DatasetOp, OpKind, Rejection, Scope, ShardOp, TokenOp, TrainerOp, check_version,
    op,
};

/// What an operation is about.
enum About {
    Namespace(String),
    AllNamespaces,
    Nothing,
}

impl Model {
    /// The refusal of an operation outside of its caller's scope.
    pub(crate) fn denied(&self, scope: &Scope, kind: &OpKind) -> Option<Rejection> {
        let Scope::Namespaces(allowed) = scope else { return None };
        // The ledger refuses a kind of a later version first, and so does the model's function of that kind.
        if check_version(kind, self.version).is_err() {
            return None;
        }
        match self.about(kind) {
            About::Namespace(name) if allowed.contains(&name) => None,
            About::Namespace(name) => Some(Rejection::NamespaceDenied(name)),
            About::AllNamespaces => Some(Rejection::ClusterDenied),
            About::Nothing => None,
        }
    }

    /// Whether a run is of another namespace than a worker.
    pub(crate) fn is_foreign(&self, session: SessionId, no: RunNo) -> bool {
        let worker = self.workers.get(&session);
        worker.is_some_and(|worker| self.is_foreign_to(&worker.namespace, no))
    }

    /// Whether a run is of another namespace than this one, which the ledger checks from version 4 on.
    pub(crate) fn is_foreign_to(&self, namespace: &str, no: RunNo) -> bool {
        let of_run = self.namespace_of_run(no);
        self.version >= 4 && of_run.is_some_and(|of_run| of_run != namespace)
    }

    fn namespace_of_run(&self, no: RunNo) -> Option<String> {
        let run = self.runs.get((no.0 as usize).wrapping_sub(1)).filter(|run| !run.forgotten)?;
        Some(run.namespace.clone())
    }

    fn about(&self, kind: &OpKind) -> About {
        let found = |namespace: Option<String>| namespace.map_or(About::Nothing, About::Namespace);
        let run = |no: RunNo| found(self.namespace_of_run(no));
        let worker = |session: SessionId| {
            found(self.workers.get(&session).map(|worker| worker.namespace.clone()))
        };
        let participant =
            |incarnation: SessionId| found(self.whose(incarnation).map(|(job, _)| job.namespace));
        let named = |namespace: &String| About::Namespace(namespace.clone());
        match kind {
            OpKind::OpenClient(_) | OpKind::Token(TokenOp::Spend(_)) => About::Nothing,
            OpKind::SetQuota(_)
            | OpKind::Token(_)
            | OpKind::Revocation(_)
            | OpKind::Member(_)
            | OpKind::Setting(_) => About::AllNamespaces,
            OpKind::CreateApiKey(of) => named(&of.spec.namespace),
            OpKind::CreateFile(of) => named(&of.spec.namespace),
            OpKind::CreateUpload(of) => named(&of.spec.namespace),
            OpKind::ForgetContent(of) => named(&of.namespace),
            OpKind::CreateBatch(of) => named(&of.namespace),
            OpKind::AssignBatch(_) => About::AllNamespaces,
            OpKind::AddBatchSegments(of) => found(self.namespace_of_batch(&of.batch)),
            OpKind::FailBatch(of) => found(self.namespace_of_batch(&of.batch)),
            OpKind::StartBatch(of) => found(self.namespace_of_batch(&of.batch)),
            OpKind::CancelBatch(of) => found(self.namespace_of_batch(&of.batch)),
            OpKind::FinishBatch(of) => found(self.namespace_of_batch(&of.batch)),
            OpKind::DeleteFile(of) => found(self.namespace_of_file(&of.id)),
            OpKind::AddUploadPart(of) => found(self.namespace_of_file(&of.upload)),
            OpKind::CompleteUpload(of) => found(self.namespace_of_file(&of.id)),
            OpKind::CancelUpload(of) => found(self.namespace_of_file(&of.id)),
            OpKind::RevokeApiKey(of) => found(self.namespace_of_key(&of.id)),
            OpKind::SetNamespace(of) => named(&of.name),
            OpKind::CreateRun(of) => named(&of.namespace),
            OpKind::Register(of) => named(&of.namespace),
            OpKind::AddSegments(of) => run(of.run),
            OpKind::CloseInput(of) => run(of.run),
            OpKind::ControlRun(of) => run(of.run),
            OpKind::RetryRows(of) => run(of.run),
            OpKind::ReuseResults(of) => run(of.run),
            OpKind::Seal(of) => run(of.run),
            OpKind::Swept(of) => run(of.run),
            OpKind::DeleteRun(of) => run(of.run),
            OpKind::ForgetRun(of) => run(of.run),
            OpKind::SettleWebhook(of) => run(of.run),
            OpKind::SetDeadline(of) => run(of.run),
            OpKind::SetWeight(of) => run(of.run),
            OpKind::Complete(of) => run(of.run),
            OpKind::Deregister(of) => worker(of.session),
            OpKind::Suspect(of) => worker(of.session),
            OpKind::SuspectWithUnreportedStarts(of) => worker(of.session),
            OpKind::Unsuspect(of) => worker(of.session),
            OpKind::Drain(of) => worker(of.session),
            OpKind::Cordon(of) => worker(of.session),
            OpKind::Claim(of) => worker(of.slot.session),
            OpKind::ClaimSpeculatively(of) => worker(of.slot.session),
            OpKind::Fail(of) => worker(of.slot.session),
            OpKind::Nack(of) => worker(of.slot.session),
            OpKind::EngineDied(of) => worker(of.slot.session),
            OpKind::Steal(of) => worker(of.victim.session),
            OpKind::Leave(of) => participant(of.incarnation),
            OpKind::LoseParticipant(of) => participant(of.incarnation),
            OpKind::Store(op::UseStore { store, .. })
            | OpKind::RoundStore(op::UseRoundStore { store, .. })
            | OpKind::DropStore(op::DropStore { store }) => named(&store.namespace),
            OpKind::Join(op::Join { job, .. })
            | OpKind::Participate(op::Participate { job, .. })
            | OpKind::CloseRendezvous(op::CloseRendezvous { job })
            | OpKind::Arrive(op::Arrive { job, .. })
            | OpKind::AbortBarrier(op::AbortBarrier { job, .. }) => named(&job.namespace),
            OpKind::LoseTrainers(of) => named(&of.job.namespace),
            OpKind::Dataset(
                DatasetOp::Create { namespace, .. } | DatasetOp::Delete { namespace, .. },
            ) => named(namespace),
            OpKind::Trainer(
                TrainerOp::Join { job, .. }
                | TrainerOp::Keep { job, .. }
                | TrainerOp::Recover { job, .. }
                | TrainerOp::DeleteJob(job),
            ) => named(&job.namespace),
            OpKind::Trainer(TrainerOp::Leave(by))
            | OpKind::Shard(
                ShardOp::Claim { by, .. }
                | ShardOp::Finish { by, .. }
                | ShardOp::Release { by, .. },
            )
            | OpKind::Checkpoint(
                CheckpointOp::Begin { by, .. } | CheckpointOp::Report { by, .. },
            ) => named(&by.job.namespace),
            OpKind::Checkpoint(
                CheckpointOp::Abort { job, .. }
                | CheckpointOp::Retain { job, .. }
                | CheckpointOp::Label { job, .. }
                | CheckpointOp::Forget { job, .. },
            ) => named(&job.namespace),
        }
    }
}
