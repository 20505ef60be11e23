//! `Checkpoints`: reports of ranks, and the checkpoint from which a job recovers.
//!
//! *Invariant:* before a report is proposed, its objects were checked in the store (`checkpoint_manifest`). Before a
//! recovery that begins a lineage is proposed, the objects of its checkpoint were (`checkpoint_base`).

use super::checkpoint_base::{Base, Bases};
use super::namespace::Listed;
use super::runs::unexpected;
use super::shard::{record_join, samples_of};
use super::training_convert::{
    by_in, check_recovered, checkpoint_out, dataset_epoch_out, decl_in, generation_out, job_in,
    on_loss_in, state_out,
};
use super::{Shared, Waits, caller, checkpoint_manifest};
use crate::grpc::convert;
use crate::leader::ledger_read::ReadLedger;
use crate::observe::audit;
use rollout_ledger::{
    BlobRef, CheckpointOp, CheckpointState, JobName, JobRefusal, Ledger, OpKind, RankReport, Reply,
    ShardProgress, TrainerOp, TrainerRef, limits,
};
use rollout_proto::{Identity, RpcError, v1};
use rollout_storage::BlobStore;
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct CheckpointsService {
    shared: Arc<Shared>,
    waits: Waits,
    store: BlobStore,
    bases: Bases,
}

impl CheckpointsService {
    pub(crate) fn new(shared: Arc<Shared>, waits: Waits, store: BlobStore) -> Self {
        let bases = Bases::new(store.clone());
        Self { shared, waits, store, bases }
    }

    /// A checkpoint; 0: the last complete one.
    fn found(&self, job: &JobName, number: u32) -> Option<v1::Checkpoint> {
        self.shared.read_ledger(|l| self.shown(l, job, number))
    }

    fn shown(&self, ledger: &Ledger, job: &JobName, number: u32) -> Option<v1::Checkpoint> {
        let training = ledger.training(job)?;
        let number = match number {
            0 => training.generation().checkpoint,
            number => number,
        };
        let view = training.checkpoint(number)?;
        Some(checkpoint_out(&view, self.store.url(), true))
    }

    /// Refuses a report of objects that are not in the store. The objects of a checkpoint that is no longer open may
    /// be gone; then the ledger refuses the report with the reason.
    async fn check_report(
        &self,
        by: &TrainerRef,
        number: u32,
        report: &RankReport,
    ) -> Result<(), RpcError> {
        let open = |l: &Ledger| {
            let state = l.training(&by.job)?.checkpoint(number)?.state();
            (state == CheckpointState::Open).then_some(())
        };
        if self.shared.node.ledger(open).is_none() {
            return Ok(());
        }
        let prefix = rollout_storage::checkpoint_prefix(&by.job.namespace, &by.job.job, number);
        match checkpoint_manifest::check(&self.store, &prefix, &by.trainer, report).await {
            Err(error) if self.shared.node.ledger(open).is_some() => Err(error),
            _ => Ok(()),
        }
    }

    async fn apply(
        &self,
        identity: &Identity,
        request: Option<&v1::RequestId>,
        op: CheckpointOp,
    ) -> Result<Reply, RpcError> {
        let id = self.shared.request_in(identity, request)?;
        self.shared.apply(Some(id), OpKind::Checkpoint(op)).await
    }
}

fn unknown_job() -> RpcError {
    crate::leader::reject::rejected(&JobRefusal::JobUnknown.into())
}

pub(super) fn report_in(report: &v1::ReportCheckpointRequest) -> Result<RankReport, RpcError> {
    let manifest = report.manifest.as_ref();
    let manifest = manifest.ok_or_else(|| convert::invalid("the manifest is missing"))?;
    let digest = manifest.digest.as_ref().try_into();
    let digest =
        digest.map_err(|_| convert::invalid("the manifest's digest must have 32 bytes"))?;
    let manifest = BlobRef { digest, bytes: manifest.bytes };
    Ok(RankReport { manifest, bytes: report.bytes, objects: report.objects })
}

#[tonic::async_trait]
impl v1::checkpoints_server::Checkpoints for CheckpointsService {
    async fn begin_checkpoint(
        &self,
        request: Request<v1::BeginCheckpointRequest>,
    ) -> Result<Response<v1::BeginCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let by = by_in(&identity, r.by)?;
        let job = by.job.clone();
        let op = CheckpointOp::Begin { by, step: r.step, label: r.label };
        match self.apply(&identity, r.request.as_ref(), op).await? {
            Reply::Checkpoint { number, rank } => {
                let (header, checkpoint) = (Some(self.shared.header()), self.found(&job, number));
                Ok(Response::new(v1::BeginCheckpointResponse { header, checkpoint, rank }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn report_checkpoint(
        &self,
        request: Request<v1::ReportCheckpointRequest>,
    ) -> Result<Response<v1::ReportCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let by = by_in(&identity, r.by.clone())?;
        let report = report_in(&r)?;
        if r.progress.len() > limits::TRAINER_SHARDS_MAX {
            return Err(convert::invalid("too many shards in one report").into());
        }
        self.shared.leader_state()?;
        self.check_report(&by, r.number, &report).await?;
        let mut progress = Vec::with_capacity(r.progress.len());
        for said in r.progress {
            let v1::ShardProgress { dataset, epoch, shard, end_sample } = said;
            let samples = samples_of(&self.shared, &by.job, &dataset, shard, end_sample)?;
            progress.push(ShardProgress { dataset, epoch, shard, samples });
        }
        let job = by.job.clone();
        let report = Box::new(report);
        let op = CheckpointOp::Report { by, number: r.number, report, progress };
        self.apply(&identity, r.request.as_ref(), op).await?;
        let (header, checkpoint) = (Some(self.shared.header()), self.found(&job, r.number));
        Ok(Response::new(v1::ReportCheckpointResponse { header, checkpoint }))
    }

    async fn abort_checkpoint(
        &self,
        request: Request<v1::AbortCheckpointRequest>,
    ) -> Result<Response<v1::AbortCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let op = CheckpointOp::Abort { job: job_in(&identity, r.job)?, number: r.number };
        self.apply(&identity, r.request.as_ref(), op).await?;
        Ok(Response::new(v1::AbortCheckpointResponse { header: Some(self.shared.header()) }))
    }

    async fn wait_checkpoint(
        &self,
        request: Request<v1::WaitCheckpointRequest>,
    ) -> Result<Response<v1::WaitCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let find = |l: &Ledger| Some(l.training(&job)?.checkpoint(r.number)?.state());
        let decided = |state: &Option<CheckpointState>| *state != Some(CheckpointState::Open);
        let state = self.waits.until_enough(&identity, r.wait_ms, find, decided).await?;
        let state = state_out(state.unwrap_or(CheckpointState::Going)).into();
        let header = Some(self.shared.header());
        Ok(Response::new(v1::WaitCheckpointResponse { header, state }))
    }

    async fn latest_checkpoint(
        &self,
        request: Request<v1::LatestCheckpointRequest>,
    ) -> Result<Response<v1::LatestCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let job = job_in(&identity, request.into_inner().job)?;
        self.shared.reading().await?;
        let (header, checkpoint) = (Some(self.shared.header()), self.found(&job, 0));
        Ok(Response::new(v1::LatestCheckpointResponse { header, checkpoint }))
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        let identity = caller(&request)?;
        let job = request.get_ref().job.clone();
        let job = job.ok_or_else(|| convert::invalid("the job's name is missing"))?;
        audit::about("job", &job.job);
        let listed = Listed::of(&identity, &job.namespace)?;
        self.shared.reading_for(&request).await?;
        listed.check_is_there(&self.shared)?;
        let header = Some(self.shared.header());
        let checkpoints = self.shared.read_ledger(|l| {
            let theirs = l.trainings().filter(|t| listed.has(&t.name().namespace));
            let asked = theirs.filter(|t| job.job.is_empty() || t.name().job == job.job);
            let all = asked.flat_map(|t| t.checkpoints().collect::<Vec<_>>());
            all.map(|view| checkpoint_out(&view, self.store.url(), false)).collect()
        });
        Ok(Response::new(v1::ListCheckpointsResponse { header, checkpoints }))
    }

    async fn describe_checkpoint(
        &self,
        request: Request<v1::DescribeCheckpointRequest>,
    ) -> Result<Response<v1::DescribeCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let job = job_in(&identity, r.job.clone())?;
        self.shared.reading_for(&request).await?;
        let header = Some(self.shared.header());
        let found = self.found(&job, r.number);
        let unknown = || crate::leader::reject::rejected(&JobRefusal::CheckpointUnknown.into());
        let checkpoint = Some(found.ok_or_else(unknown)?);
        Ok(Response::new(v1::DescribeCheckpointResponse { header, checkpoint }))
    }

    async fn prune_checkpoints(
        &self,
        request: Request<v1::PruneCheckpointsRequest>,
    ) -> Result<Response<v1::PruneCheckpointsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let pruned = if r.dry_run {
            self.shared.reading().await?;
            let found = self.shared.read_ledger(|l| Some(l.training(&job)?.prunable(r.keep_last)));
            found.ok_or_else(unknown_job)?
        } else {
            let op = CheckpointOp::Retain { job, keep_last: r.keep_last, now: r.now };
            match self.apply(&identity, r.request.as_ref(), op).await? {
                Reply::Pruned { numbers } => numbers,
                other => return Err(unexpected(&other)),
            }
        };
        let header = Some(self.shared.header());
        Ok(Response::new(v1::PruneCheckpointsResponse { header, pruned }))
    }

    async fn label_checkpoint(
        &self,
        request: Request<v1::LabelCheckpointRequest>,
    ) -> Result<Response<v1::LabelCheckpointResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let op = CheckpointOp::Label { job, number: r.number, label: r.label };
        self.apply(&identity, r.request.as_ref(), op).await?;
        Ok(Response::new(v1::LabelCheckpointResponse { header: Some(self.shared.header()) }))
    }

    async fn recover(
        &self,
        request: Request<v1::RecoverRequest>,
    ) -> Result<Response<v1::RecoverResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let job = job_in(&identity, r.job)?;
        let (trainer, on_loss) = (decl_in(r.trainer)?, on_loss_in(r.on_loss)?);
        let name = trainer.name.clone();
        self.shared.leader_state()?;
        let base = self.shared.node.ledger(|l| Base::of(l, &job, r.round, r.from));
        if let Some(base) = base {
            self.bases.check(base).await?;
        }
        let op = TrainerOp::Recover {
            job: job.clone(),
            round: r.round,
            world: r.world,
            trainer,
            from: r.from,
            on_loss,
        };
        let incarnation =
            match check_recovered(self.shared.apply(Some(id), OpKind::Trainer(op)).await?)? {
                Reply::Joined { incarnation, .. } => incarnation,
                other => return Err(unexpected(&other)),
            };
        record_join(&self.shared, incarnation);
        let mut answer =
            self.shared.node.ledger(|l| self.recovered(l, &job, &name)).unwrap_or_default();
        (answer.header, answer.ticket) = (Some(self.shared.header()), incarnation.0);
        Ok(Response::new(answer))
    }
}

impl CheckpointsService {
    /// Where a lineage begins, and which part of it a trainer reads first.
    fn recovered(&self, l: &Ledger, job: &JobName, trainer: &str) -> Option<v1::RecoverResponse> {
        let training = l.training(job)?;
        let lineage = training.generation();
        let passes = training.dataset_epochs().map(|pass| v1::PassAssignment {
            shards: training.preferred(pass.dataset, pass.epoch, trainer),
            pass: Some(dataset_epoch_out(pass.dataset, pass.epoch, pass.counts)),
        });
        Some(v1::RecoverResponse {
            header: None,
            ticket: 0,
            passes: passes.collect(),
            checkpoint: self.shown(l, job, lineage.checkpoint).filter(|_| lineage.checkpoint > 0),
            lineage: Some(generation_out(&lineage)),
        })
    }
}
