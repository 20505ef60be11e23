//! How a trainer claims shards, finishes them and gives them back.
//!
//! *Invariant:* a claim that was asked for and not answered, because its caller gave up waiting or the cluster was
//! silent for too long, is asked for again under its own request id by the next claim of that epoch: so a shard that
//! the cluster has granted is known to its holder, and nobody waits for one that lies idle.

use std::time::Duration;

use parking_lot::Mutex;
use rollout_gateway::{Lent, was_forgotten};
use rollout_proto::{ClientError, PendingRequest, services, v1};
use tokio::time::Instant;

use super::{Trainer, WAIT_MS};
use crate::error::TrainError;

/// A claim that nobody has answered, and of which epoch it is.
pub(super) struct Asked {
    dataset: String,
    epoch: u64,
    request: PendingRequest,
    /// For this claim alone until it is answered.
    session: Lent,
}

impl Asked {
    fn anew(dataset: &str, epoch: u64, session: Lent) -> Self {
        let request = session.session().request();
        Self { dataset: dataset.to_owned(), epoch, request, session }
    }
}

/// Puts a claim back that ends without an answer.
struct Unanswered<'a> {
    back: &'a Mutex<Vec<Asked>>,
    asked: Option<Asked>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.back.lock().extend(self.asked.take());
    }
}

impl Trainer {
    /// A shard of an epoch; none, and whether for good, where others have what is left.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster cannot be reached.
    pub async fn claim(
        &self,
        dataset: &str,
        epoch: u64,
    ) -> Result<(Option<v1::ShardAssignment>, bool), TrainError> {
        let answer = match self.asked_before(dataset, epoch) {
            Some(asked) => self.ask(asked).await?,
            None => {
                let asked = Asked::anew(dataset, epoch, self.sessions.take_once().await?);
                match self.ask(asked).await {
                    Err(refusal) if was_forgotten(&refusal) => {
                        self.ask(Asked::anew(dataset, epoch, self.sessions.open().await?)).await?
                    }
                    answer => answer?,
                }
            }
        };
        Ok((answer.shard, answer.finished))
    }

    async fn ask(&self, asked: Asked) -> Result<v1::ClaimShardResponse, ClientError> {
        let request = v1::ClaimShardRequest {
            request: Some(asked.request.id()),
            by: Some(self.by.clone()),
            dataset: asked.dataset.clone(),
            epoch: asked.epoch,
        };
        let mut unanswered = Unanswered { back: &self.asked, asked: Some(asked) };
        let answer = self
            .client
            .with_leader_opts("claim a shard", self.changing(), |channel| {
                let request = request.clone();
                async move { services::shards(channel).claim_shard(request).await }
            })
            .await;
        if answer.as_ref().map_or_else(|error| !error.may_pass(), |_| true)
            && let Some(mut asked) = unanswered.asked.take()
        {
            asked.session.heard(&answer);
        }
        answer
    }

    fn asked_before(&self, dataset: &str, epoch: u64) -> Option<Asked> {
        let mut asked = self.asked.lock();
        let same = asked.iter().position(|a| a.dataset == dataset && a.epoch == epoch);
        same.map(|at| asked.swap_remove(at))
    }

    /// Waits until a claim is worth trying; false where it is not after `within`.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn wait_for_shard(
        &self,
        dataset: &str,
        epoch: u64,
        within: Duration,
    ) -> Result<bool, TrainError> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let request = v1::WaitShardRequest {
                by: Some(self.by.clone()),
                dataset: dataset.to_owned(),
                epoch,
                wait_ms: WAIT_MS.min(left.as_millis() as u64),
            };
            let answer = self
                .client
                .with_leader_opts("wait for a shard", self.waiting(), |channel| {
                    let request = request.clone();
                    async move { services::shards(channel).wait_shard(request).await }
                })
                .await?;
            if answer.ready || left.is_zero() {
                return Ok(answer.ready);
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
        let request = v1::FinishShardRequest {
            request: None,
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
            shard: shard.shard,
            token: shard.token,
            step,
        };
        let answer = self.sessions.change(|id| {
            let request = v1::FinishShardRequest { request: Some(id), ..request.clone() };
            self.client.with_leader_opts("finish a shard", self.changing(), move |channel| {
                let request = request.clone();
                async move { services::shards(channel).finish_shard(request).await }
            })
        });
        Ok(answer.await?.epoch_finished)
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
        let request = v1::ReleaseShardRequest {
            request: None,
            by: Some(self.by.clone()),
            dataset: dataset.to_owned(),
            epoch,
            shard: shard.shard,
            token: shard.token,
            end_sample,
            step,
        };
        let answer = self.sessions.change(|id| {
            let request = v1::ReleaseShardRequest { request: Some(id), ..request.clone() };
            self.client.with_leader_opts("release a shard", self.changing(), move |channel| {
                let request = request.clone();
                async move { services::shards(channel).release_shard(request).await }
            })
        });
        answer.await?;
        Ok(())
    }
}
