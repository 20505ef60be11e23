//! A trainer's place in its job, kept alive in the background.
//!
//! *Invariant:* a request is asked for under one request id until it is answered; a shard that was claimed is known,
//! however many leaders it took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_proto::{Client, ClientError, ErrorCode, Session, services, v1};
use tokio::task::JoinHandle;

use crate::error::TrainError;
use crate::writer::Written;

/// How long the leader holds a wait before it says that nothing has come.
const WAIT_MS: u64 = 10_000;
/// One attempt of a wait: the leader's time, and some for the way.
const WAIT_ATTEMPT: Duration = Duration::from_secs(15);
/// Silence after which a trainer is lost that names none.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Of this silence, a keep-alive is sent so often.
const KEEP_ALIVES: u32 = 3;
/// Between two tries when another rank has not come, or too many checkpoints are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Who it is, and where.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// The job's namespace; empty for `default`.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// Unique in the job.
    pub name: String,
    /// For people.
    pub host: String,
    /// Silent for so long, the trainer is lost; zero: 15 s.
    pub keep_alive: Duration,
}

/// How a lineage begins.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Above that of the lineage before; 0, in a world of one: whatever comes next.
    pub round: u64,
    /// All trainers by rank, the same from each of them.
    pub world: Vec<String>,
    /// The checkpoint; 0: the last complete one.
    pub from: u32,
    /// Whether the job goes on when it loses a trainer with work that no checkpoint holds.
    pub continue_on_loss: bool,
}

/// Where a lineage begins.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// What to begin from; none: from nothing, at step 0.
    pub checkpoint: Option<v1::Checkpoint>,
    /// The epochs under way, and which shards of them the trainer is preferred for.
    pub passes: Vec<v1::PassAssignment>,
}

/// A trainer in a lineage of its job. Dropped, it is no longer kept alive, and lost after a while.
pub struct Trainer {
    session: Session,
    by: v1::TrainerRef,
    lineage: v1::Lineage,
    lost: Arc<AtomicBool>,
    keeping: JoinHandle<()>,
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

fn decl(options: &TrainerOptions) -> v1::TrainerDecl {
    v1::TrainerDecl {
        name: options.name.clone(),
        host: options.host.clone(),
        // Never 0, which says nothing.
        instance: rand::random::<u64>() | 1,
        keep_alive_ms: options.keep_alive.as_millis() as u64,
    }
}

fn job(options: &TrainerOptions) -> v1::JobName {
    v1::JobName { namespace: options.namespace.clone(), job: options.job.clone() }
}

impl Trainer {
    /// Joins the present lineage of the job, or makes the job.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`] where the lineage is torn.
    pub async fn join(session: Session, options: &TrainerOptions) -> Result<Self, TrainError> {
        let pending = session.request();
        let request = v1::JoinJobRequest {
            request: Some(pending.id()),
            job: Some(job(options)),
            trainer: Some(decl(options)),
            on_loss: v1::LossPolicy::Recover.into(),
        };
        let joined = session
            .client()
            .with_leader("join the job", |channel| {
                let request = request.clone();
                async move { services::shards(channel).join_job(request).await }
            })
            .await?;
        pending.ack();
        Ok(Self::begin(session, options, joined.ticket, joined.lineage))
    }

    /// Begins the lineage of a round, or joins the others in it.
    ///
    /// # Errors
    /// The cluster's refusal: of a round that is over, or that was begun otherwise.
    pub async fn recover(
        session: Session,
        options: &TrainerOptions,
        recovery: &Recovery,
    ) -> Result<(Self, Recovered), TrainError> {
        let on_loss = match recovery.continue_on_loss {
            true => v1::LossPolicy::Continue,
            false => v1::LossPolicy::Recover,
        };
        let pending = session.request();
        let request = v1::RecoverRequest {
            request: Some(pending.id()),
            job: Some(job(options)),
            round: recovery.round,
            world: recovery.world.clone(),
            trainer: Some(decl(options)),
            from: recovery.from,
            on_loss: on_loss.into(),
        };
        let answer = session
            .client()
            .with_leader("recover the job", |channel| {
                let request = request.clone();
                async move { services::checkpoints(channel).recover(request).await }
            })
            .await?;
        pending.ack();
        let recovered = Recovered { checkpoint: answer.checkpoint, passes: answer.passes };
        Ok((Self::begin(session, options, answer.ticket, answer.lineage), recovered))
    }

    fn begin(
        session: Session,
        options: &TrainerOptions,
        ticket: u64,
        lineage: Option<v1::Lineage>,
    ) -> Self {
        let by = v1::TrainerRef { job: Some(job(options)), trainer: options.name.clone(), ticket };
        let silence = match options.keep_alive {
            Duration::ZERO => KEEP_ALIVE,
            keep_alive => keep_alive,
        };
        let lost = Arc::new(AtomicBool::new(false));
        let keeping =
            keep(session.client().clone(), by.clone(), silence / KEEP_ALIVES, lost.clone());
        let keeping = tokio::spawn(keeping);
        Self { session, by, lineage: lineage.unwrap_or_default(), lost, keeping }
    }

    /// The lineage as it was when the trainer joined it.
    pub fn lineage(&self) -> &v1::Lineage {
        &self.lineage
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.by.trainer
    }

    /// Where the cluster keeps its objects.
    pub fn store_url(&self) -> &str {
        self.session.store_url()
    }

    /// Whether the cluster has said that the ticket holds no more, or that the lineage is torn.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// A shard of an epoch; none, and whether for good, where others have what is left.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster cannot be reached.
    pub async fn claim(
        &self,
        dataset: &str,
        epoch: u64,
    ) -> Result<(Option<v1::ShardAssignment>, bool), TrainError> {
        let pending = self.session.request();
        let request = v1::ClaimShardRequest {
            request: Some(pending.id()),
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
        };
        let answer = self
            .session
            .client()
            .with_leader("claim a shard", |channel| {
                let request = request.clone();
                async move { services::shards(channel).claim_shard(request).await }
            })
            .await?;
        pending.ack();
        Ok((answer.shard, answer.finished))
    }

    /// Waits until a claim is worth trying.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn wait_for_shard(&self, dataset: &str, epoch: u64) -> Result<(), TrainError> {
        let request = v1::WaitShardRequest {
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
            wait_ms: WAIT_MS,
        };
        loop {
            let answer = self
                .session
                .client()
                .with_leader_deadline("wait for a shard", WAIT_ATTEMPT, |channel| {
                    let request = request.clone();
                    async move { services::shards(channel).wait_shard(request).await }
                })
                .await?;
            if answer.ready {
                return Ok(());
            }
        }
    }

    /// All samples of a claim are in the trainer's state after `step`.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the step.
    pub async fn finish(
        &self,
        (dataset, epoch): (&str, u64),
        shard: &v1::ShardAssignment,
        step: u64,
    ) -> Result<bool, TrainError> {
        let pending = self.session.request();
        let request = v1::FinishShardRequest {
            request: Some(pending.id()),
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
            shard: shard.shard,
            token: shard.token,
            step,
        };
        let answer = self
            .session
            .client()
            .with_leader("finish a shard", |channel| {
                let request = request.clone();
                async move { services::shards(channel).finish_shard(request).await }
            })
            .await?;
        pending.ack();
        Ok(answer.epoch_finished)
    }

    /// Gives a shard back, of which the samples before `end_sample` are in the trainer's state after `step`.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the step or of the samples.
    pub async fn release(
        &self,
        (dataset, epoch): (&str, u64),
        shard: &v1::ShardAssignment,
        end_sample: u64,
        step: u64,
    ) -> Result<(), TrainError> {
        let pending = self.session.request();
        let request = v1::ReleaseShardRequest {
            request: Some(pending.id()),
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
            shard: shard.shard,
            token: shard.token,
            end_sample,
            step,
        };
        self.session
            .client()
            .with_leader("release a shard", |channel| {
                let request = request.clone();
                async move { services::shards(channel).release_shard(request).await }
            })
            .await?;
        pending.ack();
        Ok(())
    }

    /// Begins the checkpoint of a step, or finds it. Waits for ranks that have not joined yet, and while too many
    /// checkpoints are open.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the step.
    pub async fn begin_checkpoint(
        &self,
        step: u64,
        label: &str,
    ) -> Result<v1::Checkpoint, TrainError> {
        loop {
            let pending = self.session.request();
            let request = v1::BeginCheckpointRequest {
                request: Some(pending.id()),
                by: Some(self.by.clone()),
                step,
                label: label.to_owned(),
            };
            let answer = self
                .session
                .client()
                .with_leader("begin a checkpoint", |channel| {
                    let request = request.clone();
                    async move { services::checkpoints(channel).begin_checkpoint(request).await }
                })
                .await;
            pending.ack();
            match answer {
                Ok(answer) => return Ok(answer.checkpoint.unwrap_or_default()),
                Err(error) if passes(&error) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The trainer's part of a checkpoint is durable. Answers whether the checkpoint is complete by that.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the report.
    pub async fn report_checkpoint(
        &self,
        number: u32,
        written: &Written,
        progress: Vec<v1::ShardProgress>,
    ) -> Result<bool, TrainError> {
        let pending = self.session.request();
        let request = v1::ReportCheckpointRequest {
            request: Some(pending.id()),
            by: Some(self.by.clone()),
            number,
            manifest: Some(written.manifest.clone()),
            bytes: written.bytes,
            objects: written.objects,
            progress,
        };
        let answer = self
            .session
            .client()
            .with_leader("report a checkpoint", |channel| {
                let request = request.clone();
                async move { services::checkpoints(channel).report_checkpoint(request).await }
            })
            .await?;
        pending.ack();
        let state = answer.checkpoint.map(|checkpoint| checkpoint.state());
        Ok(state == Some(v1::CheckpointState::Complete))
    }

    /// Waits until a checkpoint is complete; false where it never will be.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn checkpoint_complete(&self, number: u32) -> Result<bool, TrainError> {
        let job = self.by.job.clone();
        let request = v1::WaitCheckpointRequest { job, number, wait_ms: WAIT_MS };
        loop {
            let answer = self
                .session
                .client()
                .with_leader_deadline("wait for a checkpoint", WAIT_ATTEMPT, |channel| {
                    let request = request.clone();
                    async move { services::checkpoints(channel).wait_checkpoint(request).await }
                })
                .await?;
            match answer.state() {
                v1::CheckpointState::Complete => return Ok(true),
                v1::CheckpointState::Going => return Ok(false),
                _ => {}
            }
        }
    }

    /// Leaves the job: what it did stays.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn leave(self) -> Result<(), TrainError> {
        self.keeping.abort();
        let pending = self.session.request();
        let request =
            v1::LeaveJobRequest { request: Some(pending.id()), by: Some(self.by.clone()) };
        self.session
            .client()
            .with_leader("leave the job", |channel| {
                let request = request.clone();
                async move { services::shards(channel).leave_job(request).await }
            })
            .await?;
        pending.ack();
        Ok(())
    }
}

/// Whether trying again a little later may help: others are on their way.
fn passes(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::LimitExceeded | ErrorCode::CheckpointConflict))
}

async fn keep(client: Client, by: v1::TrainerRef, every: Duration, lost: Arc<AtomicBool>) {
    let kept = v1::TrainerKept { trainer: by.trainer, ticket: by.ticket };
    let request = v1::KeepTrainersRequest { job: by.job, trainers: vec![kept] };
    loop {
        tokio::time::sleep(every).await;
        let answer = client
            .with_leader("keep the trainer", |channel| {
                let request = request.clone();
                async move { services::shards(channel).keep_trainers(request).await }
            })
            .await;
        match answer {
            Ok(answer) => {
                let torn = answer.lineage.is_some_and(|lineage| !lineage.torn.is_empty());
                if torn || !answer.lost.is_empty() {
                    lost.store(true, Ordering::Relaxed);
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, "the trainer was not kept alive"),
        }
    }
}
