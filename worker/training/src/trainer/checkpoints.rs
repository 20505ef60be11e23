//! How a trainer begins checkpoints, reports its part of them, and learns their outcome.
//!
//! *Invariant:* every wait for other ranks has a time limit that the caller sets.

use std::time::Duration;

use rollout_proto::{ClientError, ErrorCode, services, v1};
use tokio::time::{Instant, sleep};

use super::{Trainer, WAIT_MS};
use crate::error::TrainError;
use crate::writer::{Writing, Written};

/// The pause between two tries when another rank has not joined, or too many checkpoints are open.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it checks whether its unfinished part is still needed: with a healthy store, the part is durable sooner.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Limit of one attempt of a report: the leader checks every object that it names.
pub(super) const REPORT_ATTEMPT: Duration = Duration::from_secs(60);

impl Trainer {
    /// Begins the checkpoint of a step, or finds it. Waits for ranks that have not joined yet, and while too many
    /// checkpoints are open; both for at most `within`.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the step; after `within` the last refusal, which names the
    /// missing rank.
    pub async fn begin_checkpoint(
        &self,
        step: u64,
        label: &str,
        within: Duration,
    ) -> Result<v1::Checkpoint, TrainError> {
        let until = Instant::now() + within;
        let (by, label) = (Some(self.by.clone()), label.to_owned());
        let request = v1::BeginCheckpointRequest { request: None, by, step, label };
        loop {
            let answer = self.sessions.change(|id| {
                let request = v1::BeginCheckpointRequest { request: Some(id), ..request.clone() };
                self.client.with_leader_opts("begin a checkpoint", self.changing(), move |channel| {
                    let request = request.clone();
                    async move { services::checkpoints(channel).begin_checkpoint(request).await }
                })
            });
            match answer.await {
                Ok(answer) => return Ok(answer.checkpoint.unwrap_or_default()),
                Err(error) if passes(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until the trainer's part of a checkpoint is durable, for as long as the part is needed: a store that does
    /// not answer is retried. None: the checkpoint is over, because a later one was complete first or it was aborted.
    ///
    /// # Errors
    /// The store's refusal; [`TrainError::has_to_recover`] if the trainer is lost meanwhile.
    pub async fn durable(
        &self,
        number: u32,
        writing: Writing,
    ) -> Result<Option<Written>, TrainError> {
        tokio::select! {
            biased;
            written = writing.wait() => written.map(Some),
            over = self.until_over(number) => over.map(|()| None),
        }
    }

    /// Returns once no part of the checkpoint is needed any more.
    async fn until_over(&self, number: u32) -> Result<(), TrainError> {
        loop {
            sleep(LOOK_EVERY).await;
            if self.is_lost() {
                return Err(TrainError::Lost);
            }
            match self.checkpoint_complete(number, Duration::ZERO).await {
                Ok(Some(false)) => return Ok(()),
                Err(error) if error.checkpoint_is_over() => return Ok(()),
                // It is open, or its state is unknown now.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Reports that the trainer's part of a checkpoint is durable. Returns whether this completes the checkpoint.
    ///
    /// # Errors
    /// [`TrainError::has_to_recover`], or a refusal of the report.
    pub async fn report_checkpoint(
        &self,
        number: u32,
        written: &Written,
        progress: Vec<v1::ShardProgress>,
    ) -> Result<bool, TrainError> {
        let request = v1::ReportCheckpointRequest {
            request: None,
            by: Some(self.by.clone()),
            number,
            manifest: Some(written.manifest.clone()),
            bytes: written.bytes,
            objects: written.objects,
            progress,
        };
        let options = self.changing().attempt_timeout(REPORT_ATTEMPT);
        let answer = self.sessions.change(|id| {
            let request = v1::ReportCheckpointRequest { request: Some(id), ..request.clone() };
            self.client.with_leader_opts("report a checkpoint", options, move |channel| {
                let request = request.clone();
                async move { services::checkpoints(channel).report_checkpoint(request).await }
            })
        });
        let state = answer.await?.checkpoint.map(|checkpoint| checkpoint.state());
        Ok(state == Some(v1::CheckpointState::Complete))
    }

    /// Waits until a checkpoint is complete. Returns false if it never will be, or was complete and is pruned by now;
    /// none if it is still open after `within`.
    ///
    /// # Errors
    /// The cluster is unreachable.
    pub async fn checkpoint_complete(
        &self,
        number: u32,
        within: Duration,
    ) -> Result<Option<bool>, TrainError> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait_ms = WAIT_MS.min(left.as_millis() as u64);
            let request = v1::WaitCheckpointRequest { job: self.by.job.clone(), number, wait_ms };
            let answer = self
                .client
                .with_leader_opts("wait for a checkpoint", self.waiting(), |channel| {
                    let request = request.clone();
                    async move { services::checkpoints(channel).wait_checkpoint(request).await }
                })
                .await?;
            match answer.state() {
                v1::CheckpointState::Complete => return Ok(Some(true)),
                v1::CheckpointState::Going => return Ok(Some(false)),
                _ if left.is_zero() => return Ok(None),
                _ => {}
            }
        }
    }
}

/// Whether a retry a little later may help because other ranks are about to join.
fn passes(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::LimitExceeded | ErrorCode::CheckpointConflict))
}
