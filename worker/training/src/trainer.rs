//! A trainer's place in its job, kept alive in the background.
//!
//! *Invariant:* a change keeps one request ID until it is answered or the trainer's patience ends. Its session is one
//! that the cluster still remembers, even if the trainer was idle for long. Keep-alives run from the trainer's start
//! until it leaves, whatever it does meanwhile.
//!
//! Absent: shards and checkpoints; the modules below have those.

mod checkpoints;
mod shards;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rollout_gateway::Sessions;
use rollout_proto::{CallOptions, Client, ClientError, services, v1};
use tokio::task::JoinHandle;

use self::shards::PendingClaim;
use crate::error::TrainError;

/// How long the leader holds a wait before it answers that nothing has changed.
const WAIT_MS: u64 = 10_000;
/// Limit of one attempt of a wait: the leader's time plus the round trip.
const WAIT_ATTEMPT: Duration = Duration::from_secs(15);
/// The default silence after which a trainer is lost.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How many keep-alives are sent within this silence.
const KEEP_ALIVES: u32 = 3;

/// The trainer's identity and job.
#[derive(Clone, Debug, Default)]
pub struct TrainerOptions {
    /// The job's namespace; empty for `default`.
    pub namespace: String,
    pub job: String,
    /// The name, unique in the job.
    pub name: String,
    /// The incarnation under this name, from [`draw_instance`]: the same value again is the same trainer, which is how
    /// a start that was not answered is repeated; another value replaces it. 0 draws a new one.
    pub instance: u64,
    /// Human-readable.
    pub host: String,
    /// Silence after which the trainer is lost; zero: 15 s.
    pub keep_alive: Duration,
    /// How long one call is retried; none: as long as the client retries any.
    pub patience: Option<Duration>,
}

/// How a lineage begins.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Above that of the previous lineage; 0, in a world of one, takes the next one.
    pub round: u64,
    /// All trainers by rank; every trainer must give the same list.
    pub world: Vec<String>,
    /// The checkpoint; 0: the last complete one.
    pub from: u32,
    /// Whether the job continues when it loses a trainer with state that the others may not have.
    pub continue_on_loss: bool,
}

/// Where a lineage begins.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The checkpoint to start from; none to start from nothing, at step 0.
    pub checkpoint: Option<v1::Checkpoint>,
    /// The epochs in progress, and the shards of them that this trainer gets first.
    pub passes: Vec<v1::PassAssignment>,
}

/// A trainer in a lineage of its job. Dropping it stops its keep-alives, so it is lost after a while.
pub struct Trainer {
    client: Client,
    sessions: Sessions,
    store_url: String,
    by: v1::TrainerRef,
    lineage: v1::Lineage,
    patience: Option<Duration>,
    lost: Arc<AtomicBool>,
    keeping: JoinHandle<()>,
    /// Claims that are unanswered.
    pending_claims: Mutex<Vec<PendingClaim>>,
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A new incarnation number. Never 0, which means none.
pub fn draw_instance() -> u64 {
    rand::random::<u64>() | 1
}

fn decl(options: &TrainerOptions) -> v1::TrainerDecl {
    v1::TrainerDecl {
        name: options.name.clone(),
        host: options.host.clone(),
        instance: match options.instance {
            0 => draw_instance(),
            drawn => drawn,
        },
        keep_alive_ms: options.keep_alive.as_millis() as u64,
    }
}

fn job(options: &TrainerOptions) -> v1::JobName {
    v1::JobName { namespace: options.namespace.clone(), job: options.job.clone() }
}

fn patient(options: CallOptions, patience: Option<Duration>) -> CallOptions {
    CallOptions { timeout: patience, ..options }
}

impl Trainer {
    /// Joins the present lineage of the job, or creates the job.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`] if the lineage is torn.
    pub async fn join(client: Client, options: &TrainerOptions) -> Result<Self, TrainError> {
        let sessions = Sessions::new(client.clone());
        let request = v1::JoinJobRequest {
            request: None,
            job: Some(job(options)),
            trainer: Some(decl(options)),
            on_loss: v1::LossPolicy::Recover.into(),
        };
        let limits = patient(CallOptions::default(), options.patience);
        let joined = sessions
            .change(|id| {
                let request = v1::JoinJobRequest { request: Some(id), ..request.clone() };
                client.with_leader_opts("join the job", limits, move |channel| {
                    let request = request.clone();
                    async move { services::shards(channel).join_job(request).await }
                })
            })
            .await?;
        Self::begin(client, sessions, options, (joined.ticket, joined.lineage)).await
    }

    /// Begins the lineage of a round, or joins the others in it.
    ///
    /// # Errors
    /// The cluster's refusal: the round is over, or began with other parameters.
    pub async fn recover(
        client: Client,
        options: &TrainerOptions,
        recovery: &Recovery,
    ) -> Result<(Self, Recovered), TrainError> {
        let on_loss = match recovery.continue_on_loss {
            true => v1::LossPolicy::Continue,
            false => v1::LossPolicy::Recover,
        };
        let sessions = Sessions::new(client.clone());
        let request = v1::RecoverRequest {
            request: None,
            job: Some(job(options)),
            round: recovery.round,
            world: recovery.world.clone(),
            trainer: Some(decl(options)),
            from: recovery.from,
            on_loss: on_loss.into(),
        };
        // The leader first checks the store, for all ranks.
        let limits = patient(CallOptions::default(), options.patience)
            .attempt_timeout(checkpoints::REPORT_ATTEMPT);
        let answer = sessions
            .change(|id| {
                let request = v1::RecoverRequest { request: Some(id), ..request.clone() };
                client.with_leader_opts("recover the job", limits, move |channel| {
                    let request = request.clone();
                    async move { services::checkpoints(channel).recover(request).await }
                })
            })
            .await?;
        let recovered = Recovered { checkpoint: answer.checkpoint, passes: answer.passes };
        let trainer = Self::begin(client, sessions, options, (answer.ticket, answer.lineage));
        Ok((trainer.await?, recovered))
    }

    async fn begin(
        client: Client,
        sessions: Sessions,
        options: &TrainerOptions,
        (ticket, lineage): (u64, Option<v1::Lineage>),
    ) -> Result<Self, TrainError> {
        let by = v1::TrainerRef { job: Some(job(options)), trainer: options.name.clone(), ticket };
        let silence = match options.keep_alive {
            Duration::ZERO => KEEP_ALIVE,
            keep_alive => keep_alive,
        };
        let lost = Arc::new(AtomicBool::new(false));
        let keeping = keep(client.clone(), by.clone(), silence / KEEP_ALIVES, lost.clone());
        let keeping = tokio::spawn(keeping);
        let (lineage, patience) = (lineage.unwrap_or_default(), options.patience);
        let pending_claims = Mutex::default();
        let store_url = String::new();
        let mut trainer = Self {
            client,
            sessions,
            store_url,
            by,
            lineage,
            patience,
            lost,
            keeping,
            pending_claims,
        };
        // The URL comes with the session in which it joined.
        trainer.store_url = trainer.sessions.take_once().await?.session().store_url().to_owned();
        Ok(trainer)
    }

    /// The lineage as it was when the trainer joined it.
    pub fn lineage(&self) -> &v1::Lineage {
        &self.lineage
    }

    pub fn name(&self) -> &str {
        &self.by.trainer
    }

    /// Where the cluster keeps its objects.
    pub fn store_url(&self) -> &str {
        &self.store_url
    }

    /// Whether the cluster has answered that the ticket is void, or that the lineage is torn.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Leaves the job. Its work stays, because it is in the others' state too, or in a complete checkpoint. If the
    /// last trainer leaves and any work is in no checkpoint, the lineage is torn. Keep-alives stop, whatever the
    /// cluster answers.
    ///
    /// # Errors
    /// The cluster is unreachable.
    pub async fn leave(&self) -> Result<(), TrainError> {
        self.abandon();
        self.sessions
            .change(|id| {
                let request = v1::LeaveJobRequest { request: Some(id), by: Some(self.by.clone()) };
                self.client.with_leader_opts("leave the job", self.changing(), move |channel| {
                    let request = request.clone();
                    async move { services::shards(channel).leave_job(request).await }
                })
            })
            .await?;
        Ok(())
    }

    /// Stops the keep-alives, so the trainer is lost after a while.
    pub fn abandon(&self) {
        self.keeping.abort();
    }

    /// The limits of a change.
    fn changing(&self) -> CallOptions {
        patient(CallOptions::default(), self.patience)
    }

    /// The limits of a request that the leader holds for [`WAIT_MS`].
    fn waiting(&self) -> CallOptions {
        patient(CallOptions::read().attempt_timeout(WAIT_ATTEMPT), self.patience)
    }
}

async fn keep(client: Client, by: v1::TrainerRef, every: Duration, lost: Arc<AtomicBool>) {
    let kept = v1::TrainerKept { trainer: by.trainer, ticket: by.ticket };
    let request = v1::KeepTrainersRequest { job: by.job, trainers: vec![kept] };
    loop {
        tokio::time::sleep(every).await;
        let answer = client
            .with_leader_opts("keep the trainer", CallOptions::read(), |channel| {
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
            // For example, the job is gone, so there is no ticket to keep alive.
            Err(error @ ClientError::Rpc(_)) if !error.may_pass() => {
                tracing::warn!(%error, "keep-alives of the trainer stop");
                lost.store(true, Ordering::Relaxed);
                return;
            }
            Err(error) => tracing::warn!(%error, "a keep-alive of the trainer failed"),
        }
    }
}
