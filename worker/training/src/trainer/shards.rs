//! How a trainer claims shards, finishes them and gives them back.
//!
//! *Invariant:* if a claim goes unanswered, because its caller stopped waiting or the cluster was silent for too long,
//! the next claim of that epoch repeats it under its request ID. So the holder of a granted shard always learns of it,
//! and no trainer waits for a shard that lies idle. If the cluster has forgotten that request, after it may have
//! granted the claim, the outcome is unknown and the next claim is a new one.

use std::time::Duration;

use parking_lot::Mutex;
use rollout_gateway::{Lent, was_forgotten};
use rollout_proto::{ClientError, PendingRequest, services, v1};
use tokio::time::Instant;

use super::{Trainer, WAIT_MS};
use crate::error::TrainError;

/// An unanswered claim, and its epoch.
pub(super) struct PendingClaim {
    dataset: String,
    epoch: u64,
    request: PendingRequest,
    /// Used for this claim alone until it is answered.
    session: Lent,
    since: Instant,
    /// The cluster may already have granted it.
    doubt: bool,
}

impl PendingClaim {
    fn anew(dataset: &str, epoch: u64, session: Lent) -> Self {
        let (request, since) = (session.session().request(), Instant::now());
        Self { dataset: dataset.to_owned(), epoch, request, session, since, doubt: false }
    }
}

/// Puts a claim back if it ends without an answer.
struct Unanswered<'a> {
    back: &'a Mutex<Vec<PendingClaim>>,
    claim: Option<PendingClaim>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.back.lock().extend(self.claim.take());
    }
}

/// Interprets a call's answer when an earlier call of the same claim may have been granted (`doubt`), and tells
/// whether one may have been granted after it. A forgotten session then hides the outcome, and is not a refusal.
fn judged<T>(
    answer: Result<T, ClientError>,
    doubt: bool,
    since: Instant,
) -> (Result<T, ClientError>, bool) {
    match answer {
        Err(refusal) if doubt && was_forgotten(&refusal) => {
            let unknown = ClientError::OutcomeUnknown {
                what: "claim a shard",
                waited_ms: since.elapsed().as_millis() as u64,
                tried: vec![("the leader".to_owned(), refusal.to_string())],
                forgotten: true,
            };
            (Err(unknown), true)
        }
        Err(unknown @ ClientError::OutcomeUnknown { .. }) => (Err(unknown), true),
        answer => (answer, doubt),
    }
}

impl Trainer {
    /// Claims a shard of an epoch. If other trainers hold the rest, returns none, and whether that is final.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or the cluster is unreachable, or it has forgotten a claim that it may have
    /// granted. That shard then lies idle until this trainer recovers or leaves.
    pub async fn claim(
        &self,
        dataset: &str,
        epoch: u64,
    ) -> Result<(Option<v1::ShardAssignment>, bool), TrainError> {
        let answer = match self.take_pending(dataset, epoch) {
            Some(claim) => self.ask(claim).await?,
            None => {
                let claim = PendingClaim::anew(dataset, epoch, self.sessions.take_once().await?);
                match self.ask(claim).await {
                    Err(refusal) if was_forgotten(&refusal) => {
                        self.ask(PendingClaim::anew(dataset, epoch, self.sessions.open().await?))
                            .await?
                    }
                    answer => answer?,
                }
            }
        };
        Ok((answer.shard, answer.finished))
    }

    async fn ask(&self, mut claim: PendingClaim) -> Result<v1::ClaimShardResponse, ClientError> {
        let request = v1::ClaimShardRequest {
            request: Some(claim.request.id()),
            by: Some(self.by.clone()),
            dataset: claim.dataset.clone(),
            epoch: claim.epoch,
        };
        // A caller that gives up leaves an attempt in flight.
        let (doubt, since) = (std::mem::replace(&mut claim.doubt, true), claim.since);
        let mut unanswered = Unanswered { back: &self.pending_claims, claim: Some(claim) };
        let answer = self
            .client
            .with_leader_opts("claim a shard", self.changing(), |channel| {
                let request = request.clone();
                async move { services::shards(channel).claim_shard(request).await }
            })
            .await;
        let (answer, doubt) = judged(answer, doubt, since);
        let unsettled = answer.as_ref().is_err_and(ClientError::may_pass);
        match &mut unanswered.claim {
            Some(claim) if unsettled => claim.doubt = doubt,
            claim => {
                if let Some(mut claim) = claim.take() {
                    claim.session.record(&answer);
                }
            }
        }
        answer
    }

    fn take_pending(&self, dataset: &str, epoch: u64) -> Option<PendingClaim> {
        let mut pending = self.pending_claims.lock();
        let same = pending.iter().position(|a| a.dataset == dataset && a.epoch == epoch);
        same.map(|at| pending.swap_remove(at))
    }

    /// Waits until a claim is worth trying; false if it is not after `within`.
    ///
    /// # Errors
    /// The cluster is unreachable.
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

    /// Reports that all samples of a claim are in the trainer's state after `step`.
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

    /// Gives back a shard whose samples before `end_sample` are in the trainer's state after `step`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::{ErrorCode, RpcError};

    fn unknown(forgotten: bool) -> ClientError {
        let tried = Vec::new();
        ClientError::OutcomeUnknown { what: "claim a shard", waited_ms: 1, tried, forgotten }
    }

    /// The meaning of the last of these answers to one claim.
    fn result_of(answers: Vec<ClientError>) -> ClientError {
        let (mut doubt, mut last) = (false, None);
        for answer in answers {
            let (answer, now) = judged::<()>(Err(answer), doubt, Instant::now());
            (doubt, last) = (now, answer.err());
        }
        last.expect("an answer")
    }

    #[test]
    fn a_claim_that_may_have_been_granted_is_not_taken_for_one_that_was_refused() {
        let no_leader =
            || ClientError::NoLeader { what: "claim a shard", waited_ms: 1, tried: Vec::new() };
        let forgotten =
            || ClientError::from(RpcError::new(ErrorCode::SessionUnknown, "it is forgotten"));
        let refused = result_of(vec![no_leader(), forgotten()]);
        assert!(was_forgotten(&refused), "no member was asked before: {refused}");
        let doubtful = result_of(vec![unknown(false), no_leader(), forgotten()]);
        assert!(
            matches!(doubtful, ClientError::OutcomeUnknown { forgotten: true, .. }),
            "{doubtful}"
        );
        assert!(!doubtful.may_pass() && !was_forgotten(&doubtful), "or it would be made again");
        assert!(doubtful.to_string().contains("it is forgotten"), "{doubtful}");
    }
}
