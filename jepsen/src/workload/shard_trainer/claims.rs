//! How a trainer claims shards, reads them, finishes them and gives them back.
//!
//! *Invariant:* for each shard that it had, it says once how far it read it, when it no longer has it.

use super::super::repeat;
use super::super::shards::DATASET;
use super::super::trainers::SendResult;
use super::{HeldShard, Membership, MembershipLost, ShardTrainer};
use rand::Rng;
use rollout_proto::{ErrorCode, services, v1};
use serde_json::json;

impl ShardTrainer {
    /// Asks for a shard. True if the epoch is finished.
    pub(super) async fn claim(
        &mut self,
        membership: &mut Membership,
    ) -> Result<bool, MembershipLost> {
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let recorder = self.trainer.shared.recorder.clone();
        let (called, epoch) = (recorder.now_ns(), membership.epoch);
        let id = Some(repeat::request_text(request.id()));
        self.launch.epoch_is(epoch);
        let by = &membership.by;
        let send = |channel, id| {
            let request = v1::ClaimShardRequest {
                request: Some(id),
                by: Some(by.clone()),
                dataset: DATASET.into(),
                epoch,
            };
            async move { services::shards(channel).claim_shard(request).await }
        };
        let summary = |answer: &v1::ClaimShardResponse| {
            let shard = answer.shard.as_ref().map(|shard| (shard.shard, shard.token));
            format!("{shard:?}, finished: {}", answer.finished)
        };
        let (answer, by) = match self.trainer.change(request, "claim", send, summary).await {
            SendResult::Answered(answer, by) => (answer, by),
            // Too many epochs are open: a checkpoint must come first.
            SendResult::Refused(ErrorCode::LimitExceeded, _) => return Ok(false),
            SendResult::Refused(code, why) => return Err(self.refused(membership, None, code, why)),
            SendResult::Lost(why) => return Err(self.lost(None, why)),
        };
        let input = json!([self.name, membership.lineage]);
        match answer.shard {
            Some(shard) => {
                let key = self.key(&format!("{epoch}/{}", shard.shard));
                let from = shard.first_sample - shard.shard_first_sample;
                let op = recorder.invoke_at(called, "claim", key, input, id);
                recorder.ok(&op, json!([shard.token, from]), by);
                let (first, end, read) =
                    (shard.shard_first_sample, shard.end_sample, shard.first_sample);
                let (shard, token) = (shard.shard, shard.token);
                membership.held.push(HeldShard { epoch, shard, token, first, end, read });
            }
            None if answer.finished => {
                let op =
                    recorder.invoke_at(called, "over", self.key(&epoch.to_string()), input, id);
                recorder.ok(&op, json!(true), by);
                membership.epoch += 1;
                return Ok(true);
            }
            None => self.trainer.pause(20..120).await,
        }
        Ok(false)
    }

    /// Reads on in a shard, and finishes it at its end.
    pub(super) async fn read(&mut self, membership: &mut Membership) -> Result<(), MembershipLost> {
        let at = self.trainer.rng.random_range(0..membership.held.len());
        let held = &mut membership.held[at];
        held.read += self.trainer.rng.random_range(1..=held.end - held.read);
        if held.read < held.end {
            return Ok(());
        }
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let recorder = self.trainer.shared.recorder.clone();
        let held = membership.held.remove(at);
        let input = json!([self.name, membership.lineage, held.token, membership.step]);
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("finish", self.key(&held.key()), input, id);
        let (by, step) = (&membership.by, membership.step);
        let send = |channel, id| {
            let request = v1::FinishShardRequest {
                request: Some(id),
                by: Some(by.clone()),
                dataset: DATASET.into(),
                epoch: held.epoch,
                shard: held.shard,
                token: held.token,
                step,
            };
            async move { services::shards(channel).finish_shard(request).await }
        };
        let summary = |answer: &v1::FinishShardResponse| answer.epoch_finished.to_string();
        match self.trainer.change(request, "finish", send, summary).await {
            SendResult::Answered(_, by) => recorder.ok(&op, json!("finished"), by),
            SendResult::Refused(code, why) => {
                return Err(self.refused(membership, Some(&op), code, why));
            }
            SendResult::Lost(why) => return Err(self.lost(Some(&op), why)),
        }
        Ok(())
    }

    /// Gives a shard back, as far as it was read.
    pub(super) async fn release(
        &mut self,
        membership: &mut Membership,
    ) -> Result<(), MembershipLost> {
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let recorder = self.trainer.shared.recorder.clone();
        let at = self.trainer.rng.random_range(0..membership.held.len());
        let held = membership.held.remove(at);
        let read = held.read - held.first;
        let input = json!([self.name, membership.lineage, held.token, membership.step, read]);
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("release", self.key(&held.key()), input, id);
        let (by, step) = (&membership.by, membership.step);
        let send = |channel, id| {
            let request = v1::ReleaseShardRequest {
                request: Some(id),
                by: Some(by.clone()),
                dataset: DATASET.into(),
                epoch: held.epoch,
                shard: held.shard,
                token: held.token,
                end_sample: held.read,
                step,
            };
            async move { services::shards(channel).release_shard(request).await }
        };
        match self.trainer.change(request, "release", send, |_| String::new()).await {
            SendResult::Answered(_, by) => recorder.ok(&op, json!("released"), by),
            SendResult::Refused(code, why) => {
                return Err(self.refused(membership, Some(&op), code, why));
            }
            SendResult::Lost(why) => return Err(self.lost(Some(&op), why)),
        }
        Ok(())
    }
}
