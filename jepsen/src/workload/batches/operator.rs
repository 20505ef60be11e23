//! What a user asks of a run beside its results: how it stands, that it ends, that failed rows are tried again, that it is
//! forgotten.
//!
//! *Invariant:* each request is repeated under its id until it is answered or nobody waits any longer; what was asked for
//! without an answer is asked for anew, for it may be asked for twice.

use super::super::placed::Placed;
use super::super::submitter::NAMESPACE;
use super::super::trainers::Sent;
use super::LOOK;
use super::batch::Batch;
use super::user::User;
use crate::recorder::By;
use rollout_proto::{CallOptions, ErrorCode, services, v1};
use serde_json::{Value, json};

/// What a leader says of where a run's rows are.
fn told(counts: &v1::RunCounts) -> Value {
    let v1::RunCounts { rows, pending, waiting, running, done, failed, .. } = counts;
    json!([rows, pending, waiting, running, done, failed])
}

impl User {
    /// Where the rows of a run are, and how that is recorded.
    pub(super) async fn counts(&self, batch: &Batch) -> Option<(v1::RunCounts, By)> {
        let (answer, by) = self.described(batch).await.ok()?.told();
        Some((answer.run.unwrap_or_default().counts.unwrap_or_default(), by))
    }

    async fn described(
        &self,
        batch: &Batch,
    ) -> Result<Placed<v1::DescribeRunResponse>, rollout_proto::ClientError> {
        let request = v1::DescribeRunRequest {
            namespace: NAMESPACE.into(),
            name: batch.name.clone(),
            ..Default::default()
        };
        let options = CallOptions::read().timeout(LOOK);
        let read = self.client.client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await.map(Placed::of) }
        });
        read.await
    }

    /// Records where the rows are, if more of them have ended than were `told`.
    pub(super) async fn progress(&self, batch: &Batch, told_before: &mut u64) {
        let recorder = &self.shared.recorder;
        let called = recorder.now_ns();
        let Some((counts, by)) = self.counts(batch).await else { return };
        let ended = counts.done + counts.failed;
        if ended <= *told_before {
            return;
        }
        *told_before = ended;
        let op = recorder.invoke_at(called, "progress", batch.key.clone(), Value::Null, None);
        let by = By { member: Some(self.client.name.clone()), ..by };
        recorder.ok(&op, told(&counts), by);
    }

    /// Records where the rows are.
    pub(super) async fn look(&self, batch: &Batch, f: &'static str) {
        let recorder = &self.shared.recorder;
        let op = recorder.invoke(f, batch.key.clone(), Value::Null, None);
        match self.counts(batch).await {
            Some((counts, by)) => recorder.ok(&op, told(&counts), by),
            None => recorder.fail(&op, "no answer".into()),
        }
    }

    /// Sends an order to a run, once.
    async fn control(
        &mut self,
        batch: &Batch,
        action: v1::RunAction,
        what: &'static str,
    ) -> Option<Sent<Option<v1::RunCounts>>> {
        let session = self.client.session().await?;
        let name = batch.name.clone();
        let send = |channel, id| {
            let request = v1::ControlRunRequest {
                request: Some(id),
                namespace: NAMESPACE.into(),
                name: name.clone(),
                action: action.into(),
                reason: "the suite wants it so".into(),
            };
            async move { services::runs(channel).control_run(request).await }
        };
        let answered = |_: &v1::ControlRunResponse| what.to_owned();
        let sent = self.client.change(&session, what, send, answered).await;
        Some(sent.map(|answer| answer.run.and_then(|run| run.counts)))
    }

    /// Cancels a run. False if it had ended before, or nobody waits any longer.
    pub(super) async fn cancel(&mut self, batch: &Batch) -> bool {
        let recorder = self.shared.recorder.clone();
        while !self.shared.is_over() {
            let op = recorder.invoke("cancel", batch.key.clone(), Value::Null, None);
            match self.control(batch, v1::RunAction::Cancel, "cancel").await {
                Some(Sent::Answered(counts, by)) => {
                    let told = counts.as_ref().map_or(Value::Null, told);
                    recorder.ok(&op, told, by);
                    return true;
                }
                Some(Sent::Refused(_, why)) => {
                    recorder.fail(&op, why);
                    return false;
                }
                Some(Sent::Lost(why)) => recorder.info(&op, why),
                None => recorder.fail(&op, "no session".into()),
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Asks of a cancelled run what it cannot do any more.
    pub(super) async fn contradict(&mut self, batch: &Batch) {
        let recorder = self.shared.recorder.clone();
        let op = recorder.invoke("resume", batch.key.clone(), Value::Null, None);
        match self.control(batch, v1::RunAction::Resume, "resume").await {
            Some(Sent::Answered(_, by)) => recorder.ok(&op, Value::Null, by),
            Some(Sent::Refused(_, why)) => recorder.fail(&op, why),
            Some(Sent::Lost(why)) => recorder.info(&op, why),
            None => recorder.fail(&op, "no session".into()),
        }
        self.retry(batch).await;
    }

    /// Has failed rows tried again. True if that was answered.
    pub(super) async fn retry(&mut self, batch: &Batch) -> bool {
        let Some(session) = self.client.session().await else { return false };
        let recorder = self.shared.recorder.clone();
        let op = recorder.invoke("retry", batch.key.clone(), Value::Null, None);
        let name = batch.name.clone();
        let send = |channel, id| {
            let request = v1::RetryItemsRequest {
                request: Some(id),
                namespace: NAMESPACE.into(),
                run: name.clone(),
                all_failed: true,
                rows: None,
            };
            async move { services::items(channel).retry_items(request).await }
        };
        let answered = |answer: &v1::RetryItemsResponse| answer.rows.to_string();
        match self.client.change(&session, "retry", send, answered).await {
            Sent::Answered(answer, by) => {
                recorder.ok(&op, json!(answer.rows), by);
                return true;
            }
            Sent::Refused(_, why) => recorder.fail(&op, why),
            Sent::Lost(why) => recorder.info(&op, why),
        }
        false
    }

    /// Deletes a run, and waits until its name is free. True if it is.
    pub(super) async fn delete(&mut self, batch: &Batch) -> bool {
        let recorder = self.shared.recorder.clone();
        let Some(session) = self.client.session().await else { return false };
        let op = recorder.invoke("delete", batch.key.clone(), Value::Null, None);
        let name = batch.name.clone();
        let send = |channel, id| {
            let (namespace, name) = (NAMESPACE.into(), name.clone());
            let request = v1::DeleteRunRequest { request: Some(id), namespace, name };
            async move { services::runs(channel).delete_run(request).await }
        };
        match self.client.change(&session, "delete", send, |_| String::new()).await {
            Sent::Answered(_, by) => recorder.ok(&op, Value::Null, by),
            // It is gone: an earlier copy of the request may have seen to that.
            Sent::Refused(ErrorCode::RunNotFound, _) => {
                recorder.ok(&op, Value::Null, By::default());
            }
            Sent::Refused(_, why) => {
                recorder.fail(&op, why);
                return false;
            }
            Sent::Lost(why) => recorder.info(&op, why),
        }
        let mut gone = 0;
        while gone < 2 && !self.shared.is_over() {
            gone += u32::from(self.is_gone(batch).await);
            tokio::time::sleep(LOOK).await;
        }
        gone > 0
    }

    /// Records what there is under a name.
    async fn is_gone(&self, batch: &Batch) -> bool {
        let recorder = &self.shared.recorder;
        let op = recorder.invoke("described", batch.key.clone(), Value::Null, None);
        let (state, by) = match self.described(batch).await.map(Placed::told) {
            Ok((answer, by)) => {
                (answer.run.unwrap_or_default().state().as_str_name().to_owned(), by)
            }
            Err(error) if error.code() == Some(ErrorCode::RunNotFound) => {
                ("none".to_owned(), By::default())
            }
            Err(error) => {
                recorder.fail(&op, error.to_string());
                return false;
            }
        };
        let gone = state == "none";
        recorder.ok(&op, json!(state), by);
        gone
    }
}
