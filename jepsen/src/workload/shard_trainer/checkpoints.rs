//! How a trainer reports its rank of a checkpoint.
//!
//! *Invariant:* its manifest is durable before the report, and the report says how far the trainer has read every
//! shard that it holds.

use super::super::repeat;
use super::super::shards::DATASET;
use super::super::trainers::SendResult;
use super::{Membership, MembershipLost, ShardTrainer};
use anyhow::{Context, Result};
use prost::Message;
use rollout_proto::{ErrorCode, services, v1};
use serde_json::{Value, json};
use std::path::Path;

impl ShardTrainer {
    /// Begins the checkpoint of its current step, or finds it; `None` if there can be none.
    async fn begin(
        &mut self,
        membership: &Membership,
    ) -> Result<Option<v1::Checkpoint>, MembershipLost> {
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let (by, step) = (&membership.by, membership.step);
        let send = |channel, id| {
            let request = v1::BeginCheckpointRequest {
                request: Some(id),
                by: Some(by.clone()),
                step,
                label: String::new(),
            };
            async move { services::checkpoints(channel).begin_checkpoint(request).await }
        };
        let summary = |answer: &v1::BeginCheckpointResponse| answer.rank.to_string();
        match self.trainer.change(request, "begin", send, summary).await {
            SendResult::Answered(answer, _) => Ok(Some(answer.checkpoint.unwrap_or_default())),
            SendResult::Refused(
                code @ (ErrorCode::NeedsRecovery | ErrorCode::IncarnationVoid),
                why,
            ) => Err(self.refused(membership, None, code, why)),
            // A trainer has not joined yet, or it is too late for this checkpoint: wait for the next one.
            SendResult::Refused(..) => Ok(None),
            SendResult::Lost(why) => Err(self.lost(None, why)),
        }
    }

    /// Reports its rank of the checkpoint of its current step, if there can be one.
    pub(super) async fn report(
        &mut self,
        membership: &mut Membership,
    ) -> Result<(), MembershipLost> {
        let Some(checkpoint) = self.begin(membership).await? else { return Ok(()) };
        let Ok(manifest) = written(&checkpoint, self.name) else { return Ok(()) };
        let recorder = self.trainer.shared.recorder.clone();
        let (by, step) = (&membership.by, membership.step);
        let reported = membership.held.iter().map(|h| json!([h.epoch, h.shard, h.read - h.first]));
        let reported: Vec<Value> = reported.collect();
        let progress = membership.held.iter().map(|held| v1::ShardProgress {
            dataset: DATASET.into(),
            epoch: held.epoch,
            shard: held.shard,
            end_sample: held.read,
        });
        let progress: Vec<_> = progress.collect();
        let (number, input) =
            (checkpoint.number, json!([self.name, membership.lineage, step, reported]));
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let (key, id) = (format!("checkpoint-{number}"), Some(repeat::request_text(request.id())));
        let op = recorder.invoke("report", self.key(&key), input, id);
        let send = |channel, id| {
            let request = v1::ReportCheckpointRequest {
                request: Some(id),
                by: Some(by.clone()),
                number,
                manifest: Some(manifest.clone()),
                bytes: 0,
                objects: 0,
                progress: progress.clone(),
            };
            async move { services::checkpoints(channel).report_checkpoint(request).await }
        };
        match self.trainer.change(request, "report", send, |_| String::new()).await {
            SendResult::Answered(answer, by) => {
                let state = answer.checkpoint.unwrap_or_default().state();
                let complete = state == v1::CheckpointState::Complete;
                let state = if complete { "complete" } else { "open" };
                recorder.ok(&op, json!(state), by);
                Ok(())
            }
            SendResult::Refused(
                code @ (ErrorCode::NeedsRecovery
                | ErrorCode::IncarnationVoid
                | ErrorCode::ShardConflict),
                why,
            ) => Err(self.refused(membership, Some(&op), code, why)),
            // The checkpoint was given up meanwhile, or it was complete and has been removed.
            SendResult::Refused(_, why) | SendResult::Lost(why) => {
                recorder.info(&op, why);
                Ok(())
            }
        }
    }
}

/// Makes a rank's manifest, of no files, durable in the store.
fn written(checkpoint: &v1::Checkpoint, trainer: &str) -> Result<v1::BlobName> {
    let manifest = v1::CheckpointManifest {
        format: 1,
        trainer: trainer.to_owned(),
        step: checkpoint.step,
        files: Vec::new(),
    };
    let bytes = manifest.encode_to_vec();
    let digest = blake3::hash(&bytes);
    let store = checkpoint.store_url.strip_prefix("file://").context("a store on this machine")?;
    let folder = Path::new(store).join(&checkpoint.prefix);
    std::fs::create_dir_all(&folder)?;
    let (temporary, path) =
        (folder.join(format!(".{trainer}")), folder.join(digest.to_hex().as_str()));
    std::fs::write(&temporary, &bytes)?;
    std::fs::rename(&temporary, &path)?;
    let digest = digest.as_bytes().to_vec().into();
    Ok(v1::BlobName { digest, bytes: bytes.len() as u32 })
}
