//! `Shards`: a job's trainers, and which of them reads which shard.
//!
//! *Invariant:* keep-alives change only this leader's memory, from [`SILENT_TRAINERS_VERSION`] on.

use super::namespace::Listed;
use super::runs::unexpected;
use super::training_convert::{
    by_in, check_recovered, dataset_epoch_out, decl_in, generation_out, job_in, on_loss_in,
    training_out,
};
use super::{Shared, Waits, caller};
use crate::grpc::convert;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::reject;
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    JobName, JobRefusal, Ledger, OpKind, Reply, SILENT_TRAINERS_VERSION, ShardOp, ShardRef,
    ShardView, TrainerOp, TrainerRef, limits,
};
use rollout_proto::{Identity, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Shards in one answer.
const SHARDS_SHOWN: u32 = 1024;

#[derive(Clone)]
pub(crate) struct ShardsService {
    shared: Arc<Shared>,
    waits: Waits,
}

impl ShardsService {
    pub(crate) fn new(shared: Arc<Shared>, waits: Waits) -> Self {
        Self { shared, waits }
    }

    fn generation(&self, job: &JobName) -> Option<v1::Lineage> {
        self.shared.node.ledger(|l| l.training(job).map(|t| generation_out(&t.generation())))
    }

    /// Records keep-alives in this leader's memory. The answer is a read.
    async fn record_keep_alives(
        &self,
        job: &JobName,
        trainers: &[(String, SessionId)],
    ) -> Result<v1::KeepTrainersResponse, RpcError> {
        let leader = self.shared.reading().await?;
        let read = self.shared.read_ledger(|l| {
            let lineage = l.training(job).map(|t| generation_out(&t.generation()));
            Some((l.trainers_present(job, trainers), lineage))
        });
        let (present, lineage) = read.ok_or_else(|| reject::not_leader(None))?;
        let present = present.map_err(|why| reject::rejected(&why))?;
        let (now, mut lost) = (leader.now(), Vec::new());
        for ((name, incarnation), present) in trainers.iter().zip(present) {
            match present {
                true => leader.keep_alives.record_message(*incarnation, now),
                false => lost.push(name.clone()),
            }
        }
        Ok(v1::KeepTrainersResponse { header: Some(self.shared.header()), lost, lineage })
    }

    /// The message about a shard that a trainer has claimed.
    fn assignment(
        &self,
        by: &TrainerRef,
        (dataset, epoch): (&str, u64),
        (shard, token, from): (u32, Attempt, u32),
    ) -> Result<v1::ShardAssignment, RpcError> {
        let namespace = &by.job.namespace;
        let found = self.shared.node.ledger(|l: &Ledger| {
            let (view, seed) =
                (l.dataset(namespace, dataset)?, l.shard_seed(namespace, dataset, epoch, shard)?);
            let (first, end) = view.spec.range(shard);
            Some(v1::ShardAssignment {
                shard,
                token: token.0,
                first_sample: first + u64::from(from),
                end_sample: end,
                uri: view.spec.shard_uri(shard),
                format: view.spec.format.clone(),
                seed,
                shard_first_sample: first,
            })
        });
        found.ok_or_else(|| reject::rejected(&JobRefusal::DatasetUnknown.into()))
    }

    async fn end(
        &self,
        identity: &Identity,
        request: Option<&v1::RequestId>,
        op: ShardOp,
    ) -> Result<bool, Status> {
        let id = self.shared.request_in(identity, request)?;
        match self.shared.apply(Some(id), OpKind::Shard(op)).await? {
            Reply::ShardEnded { epoch_finished } => Ok(epoch_finished),
            other => Err(unexpected(&other)),
        }
    }
}

fn shard_out(view: &ShardView<'_>, (first, end): (u64, u64)) -> v1::Shard {
    let state = match (view.finished, view.holder) {
        (true, _) if first + u64::from(view.sealed) == end => v1::ShardState::Sealed,
        (true, _) => v1::ShardState::Finished,
        (false, "") => v1::ShardState::Free,
        (false, _) => v1::ShardState::Claimed,
    };
    v1::Shard {
        shard: view.number,
        state: state.into(),
        position: view.position,
        preferred: view.preferred.into(),
        holder: view.holder.into(),
        first_sample: first,
        end_sample: end,
        done_sample: first + u64::from(view.done),
        sealed_sample: first + u64::from(view.sealed),
    }
}

/// The ledger's state of an epoch.
fn described(
    l: &Ledger,
    job: &JobName,
    asked: &v1::DescribeShardsRequest,
) -> Option<(v1::Pass, Vec<v1::Shard>)> {
    let (training, dataset) = (l.training(job)?, l.dataset(&job.namespace, &asked.dataset)?);
    let counts = training.counts(&asked.dataset, asked.epoch)?;
    let limit = match asked.limit {
        0 => SHARDS_SHOWN,
        limit => limit.min(SHARDS_SHOWN),
    };
    let shards = training.shards(&asked.dataset, asked.epoch, asked.first, limit as usize);
    let shards = shards.iter().map(|s| shard_out(s, dataset.spec.range(s.number))).collect();
    Some((dataset_epoch_out(&asked.dataset, asked.epoch, counts), shards))
}

#[tonic::async_trait]
impl v1::shards_server::Shards for ShardsService {
    async fn join_job(
        &self,
        request: Request<v1::JoinJobRequest>,
    ) -> Result<Response<v1::JoinJobResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let job = job_in(&identity, r.job)?;
        let (trainer, on_loss) = (decl_in(r.trainer)?, on_loss_in(r.on_loss)?);
        let op = TrainerOp::Join { job: job.clone(), trainer, on_loss };
        match check_recovered(self.shared.apply(Some(id), OpKind::Trainer(op)).await?)? {
            Reply::Joined { incarnation, .. } => {
                record_join(&self.shared, incarnation);
                let (header, lineage) = (Some(self.shared.header()), self.generation(&job));
                Ok(Response::new(v1::JoinJobResponse { header, ticket: incarnation.0, lineage }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn keep_trainers(
        &self,
        request: Request<v1::KeepTrainersRequest>,
    ) -> Result<Response<v1::KeepTrainersResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        if r.trainers.len() > limits::TRAINERS_MAX {
            return Err(convert::invalid("too many trainers in one request").into());
        }
        let asked = r.trainers.into_iter().map(|t| (t.trainer, SessionId(t.ticket)));
        let trainers: Vec<(String, SessionId)> = asked.collect();
        self.shared.leader_state()?;
        if self.shared.node.ledger(|l| l.version() >= SILENT_TRAINERS_VERSION) {
            return Ok(Response::new(self.record_keep_alives(&job, &trainers).await?));
        }
        let op = TrainerOp::Keep { job: job.clone(), trainers };
        match self.shared.apply(None, OpKind::Trainer(op)).await? {
            Reply::KeptAlive { lost } => {
                let (header, lineage) = (Some(self.shared.header()), self.generation(&job));
                Ok(Response::new(v1::KeepTrainersResponse { header, lost, lineage }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn leave_job(
        &self,
        request: Request<v1::LeaveJobRequest>,
    ) -> Result<Response<v1::LeaveJobResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let op = TrainerOp::Leave(by_in(&identity, r.by)?);
        self.shared.apply(Some(id), OpKind::Trainer(op)).await?;
        Ok(Response::new(v1::LeaveJobResponse { header: Some(self.shared.header()) }))
    }

    async fn claim_shard(
        &self,
        request: Request<v1::ClaimShardRequest>,
    ) -> Result<Response<v1::ClaimShardResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let by = by_in(&identity, r.by)?;
        let (dataset, epoch) = (r.dataset.clone(), r.epoch);
        let op = ShardOp::Claim { by: by.clone(), dataset, epoch };
        let (shard, finished) = match self.shared.apply(Some(id), OpKind::Shard(op)).await? {
            Reply::Shard { number, token, from } => {
                (Some(self.assignment(&by, (&r.dataset, epoch), (number, token, from))?), false)
            }
            Reply::NoShard { finished } => (None, finished),
            other => return Err(unexpected(&other)),
        };
        let header = Some(self.shared.header());
        Ok(Response::new(v1::ClaimShardResponse { header, shard, finished }))
    }

    async fn wait_shard(
        &self,
        request: Request<v1::WaitShardRequest>,
    ) -> Result<Response<v1::WaitShardResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let by = by_in(&identity, r.by)?;
        let worth = |l: &Ledger| l.worth_claiming(&by, &r.dataset, r.epoch);
        let ready = self.waits.until_enough(&identity, r.wait_ms, worth, |ready| *ready).await?;
        Ok(Response::new(v1::WaitShardResponse { header: Some(self.shared.header()), ready }))
    }

    async fn finish_shard(
        &self,
        request: Request<v1::FinishShardRequest>,
    ) -> Result<Response<v1::FinishShardResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let by = by_in(&identity, r.by)?;
        let token = Attempt(r.token);
        let shard = ShardRef { dataset: r.dataset, epoch: r.epoch, number: r.shard, token };
        let op = ShardOp::Finish { by, shard, step: r.step };
        let epoch_finished = self.end(&identity, r.request.as_ref(), op).await?;
        let header = Some(self.shared.header());
        Ok(Response::new(v1::FinishShardResponse { header, epoch_finished }))
    }

    async fn release_shard(
        &self,
        request: Request<v1::ReleaseShardRequest>,
    ) -> Result<Response<v1::ReleaseShardResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let by = by_in(&identity, r.by)?;
        // A member that does not lead may not know the dataset yet, so it must not refuse.
        self.shared.leader_state()?;
        let samples = samples_of(&self.shared, &by.job, &r.dataset, r.shard, r.end_sample)?;
        let token = Attempt(r.token);
        let shard = ShardRef { dataset: r.dataset, epoch: r.epoch, number: r.shard, token };
        let op = ShardOp::Release { by, shard, samples, step: r.step };
        self.end(&identity, r.request.as_ref(), op).await?;
        Ok(Response::new(v1::ReleaseShardResponse { header: Some(self.shared.header()) }))
    }

    async fn describe_shards(
        &self,
        request: Request<v1::DescribeShardsRequest>,
    ) -> Result<Response<v1::DescribeShardsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let job = job_in(&identity, r.job.clone())?;
        self.shared.reading_for(&request).await?;
        let header = Some(self.shared.header());
        let (known, found) =
            self.shared.read_ledger(|l| (l.training(&job).is_some(), described(l, &job, r)));
        if !known {
            return Err(reject::rejected(&JobRefusal::JobUnknown.into()).into());
        }
        let (pass, shards) = found.unzip();
        let shards = shards.unwrap_or_default();
        Ok(Response::new(v1::DescribeShardsResponse { header, pass, shards }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let listed = Listed::of(&identity, &r.namespace)?;
        self.shared.reading_for(&request).await?;
        listed.check_is_there(&self.shared)?;
        let header = Some(self.shared.header());
        let jobs = self.shared.read_ledger(|l| {
            if let (Listed::One(namespace), false) = (&listed, r.job.is_empty()) {
                let name = JobName { namespace: namespace.clone(), job: r.job.clone() };
                return l.training(&name).iter().map(training_out).collect();
            }
            let all = l.trainings_newest_first();
            let theirs = all.filter(|t| listed.has(&t.name().namespace));
            let asked = theirs.filter(|t| r.job.is_empty() || t.name().job == r.job);
            asked.map(|t| training_out(&t)).collect::<Vec<_>>()
        });
        Ok(Response::new(v1::ListJobsResponse { header, jobs }))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let op = TrainerOp::DeleteJob(job_in(&identity, r.job)?);
        self.shared.apply(Some(id), OpKind::Trainer(op)).await?;
        Ok(Response::new(v1::DeleteJobResponse { header: Some(self.shared.header()) }))
    }
}

/// Counts the time of a trainer that has joined. A member that no longer leads leaves that to the next leader.
pub(super) fn record_join(shared: &Shared, incarnation: SessionId) {
    if let Ok(leader) = shared.leader_state() {
        leader.keep_alives.record_message(incarnation, leader.now());
    }
}

/// How many samples of a shard lie before a sample of the dataset.
pub(super) fn samples_of(
    shared: &Shared,
    job: &JobName,
    dataset: &str,
    shard: u32,
    end_sample: u64,
) -> Result<u32, RpcError> {
    let samples = |l: &Ledger| samples_before(l, &job.namespace, dataset, shard, end_sample);
    shared.node.ledger(|l| Some(samples(l))).unwrap_or_else(|| Err(unknown_dataset()))
}

fn unknown_dataset() -> RpcError {
    reject::rejected(&JobRefusal::DatasetUnknown.into())
}

/// The same, of a ledger.
pub(super) fn samples_before(
    ledger: &Ledger,
    namespace: &str,
    dataset: &str,
    shard: u32,
    end_sample: u64,
) -> Result<u32, RpcError> {
    let dataset = ledger.dataset(namespace, dataset).ok_or_else(unknown_dataset)?;
    let (first, end) = dataset.spec.range(shard);
    match (first..=end).contains(&end_sample) {
        true => Ok((end_sample - first) as u32),
        false => Err(convert::invalid(format!("shard {shard} has samples {first} to {end}"))),
    }
}
