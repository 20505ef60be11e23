//! A user's requests about a run besides reading its results: get its status, resume it, cancel it, retry its failed
//! rows, delete it.
//!
//! *Invariant:* each request is repeated under its id until it is answered or the run of the suite ends. A request
//! that stayed unanswered is made anew, because making it twice is allowed.

use super::super::positioned::Positioned;
use super::super::repeat;
use super::super::submitter::NAMESPACE;
use super::super::trainers::SendResult;
use super::LOOK;
use super::batch::Batch;
use super::user::User;
use crate::events::EventKind;
use crate::recorder::By;
use rollout_proto::client::PendingRequest;
use rollout_proto::{CallOptions, ClientError, ErrorCode, services, v1};
use serde_json::{Value, json};

/// Part of the reason for which the ledger pauses a run at the limit of cordons.
const AT_CORDON_LIMIT: &str = "the ledger may cordon no more slots";

/// A leader's counts of a run's rows by state.
fn counts_value(counts: &v1::RunCounts) -> Value {
    let v1::RunCounts { rows, pending, waiting, running, done, failed, .. } = counts;
    json!([rows, pending, waiting, running, done, failed])
}

impl User {
    /// The counts of a run's rows by state, and how they are recorded.
    pub(super) async fn counts(&self, batch: &Batch) -> Result<(v1::RunCounts, By), ClientError> {
        let (answer, by) = self.described(batch).await?.into_parts();
        Ok((answer.run.unwrap_or_default().counts.unwrap_or_default(), by))
    }

    async fn described(
        &self,
        batch: &Batch,
    ) -> Result<Positioned<v1::DescribeRunResponse>, ClientError> {
        let request = v1::DescribeRunRequest {
            namespace: NAMESPACE.into(),
            name: batch.name.clone(),
            ..Default::default()
        };
        let options = CallOptions::read().timeout(LOOK);
        let read = self.client.client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await.map(Positioned::of) }
        });
        read.await
    }

    /// Records the counts if more rows have ended than before, and resumes the run if it is paused.
    pub(super) async fn progress(&mut self, batch: &Batch, ended_before: &mut u64) {
        let recorder = self.shared.recorder.clone();
        let called = recorder.now_ns();
        let Ok(answer) = self.described(batch).await else { return };
        let (answer, by) = answer.into_parts();
        let run = answer.run.unwrap_or_default();
        self.resume_at_cordon_limit(batch, &run).await;
        let counts = run.counts.unwrap_or_default();
        let ended = counts.done + counts.failed;
        if ended <= *ended_before {
            return;
        }
        *ended_before = ended;
        let op = recorder.invoke_at(called, "progress", batch.key.clone(), Value::Null, None);
        let by = By { member: Some(self.client.name.clone()), ..by };
        recorder.ok(&op, counts_value(&counts), by);
    }

    /// Does what the pause asks an operator to do. Rows of several runs kill engines here. So three deaths in a row of a
    /// healthy slot's engine may have no run in common, which counts as the slot's fault.
    async fn resume_at_cordon_limit(&mut self, batch: &Batch, run: &v1::RunSummary) {
        if run.state() != v1::RunState::Paused || !run.reason.contains(AT_CORDON_LIMIT) {
            return;
        }
        let Some(request) = self.client.request().await else { return };
        let resume = (v1::RunAction::Resume, "resume");
        // The next look shows whether it is resumed.
        drop(self.control(request, batch, resume).await);
    }

    /// Records the counts of a run's rows; the run must exist.
    pub(super) async fn look(&self, batch: &Batch, f: &'static str) {
        let recorder = &self.shared.recorder;
        let op = recorder.invoke(f, batch.key.clone(), Value::Null, None);
        match self.counts(batch).await {
            Ok((counts, by)) => recorder.ok(&op, counts_value(&counts), by),
            Err(error) => {
                let why = error.to_string();
                if error.code() == Some(ErrorCode::RunNotFound) {
                    let what = format!("a look at {}, which was cancelled,", batch.key);
                    recorder.event(EventKind::Refused { what, why: why.clone() });
                }
                recorder.fail(&op, why);
            }
        }
    }

    /// Sends a command about a run, once.
    async fn control(
        &mut self,
        request: PendingRequest,
        batch: &Batch,
        (action, what): (v1::RunAction, &'static str),
    ) -> SendResult<Option<v1::RunCounts>> {
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
        let sent = self.client.change(request, what, send, answered).await;
        sent.map(|answer| answer.run.and_then(|run| run.counts))
    }

    /// Cancels a run. False if it had ended before, or the user no longer waits.
    pub(super) async fn cancel(&mut self, batch: &Batch) -> bool {
        let recorder = self.shared.recorder.clone();
        while !self.shared.is_over() {
            if let Some(request) = self.client.request().await {
                let id = Some(repeat::request_text(request.id()));
                let op = recorder.invoke("cancel", batch.key.clone(), Value::Null, id);
                let order = (v1::RunAction::Cancel, "cancel");
                match self.control(request, batch, order).await {
                    SendResult::Answered(counts, by) => {
                        let value = counts.as_ref().map_or(Value::Null, counts_value);
                        recorder.ok(&op, value, by);
                        return true;
                    }
                    SendResult::Refused(_, why) => {
                        recorder.fail(&op, why);
                        return false;
                    }
                    SendResult::Lost(why) => recorder.info(&op, why),
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Sends a cancelled run requests that it must refuse.
    pub(super) async fn contradict(&mut self, batch: &Batch) {
        let recorder = self.shared.recorder.clone();
        if let Some(request) = self.client.request().await {
            let id = Some(repeat::request_text(request.id()));
            let op = recorder.invoke("resume", batch.key.clone(), Value::Null, id);
            match self.control(request, batch, (v1::RunAction::Resume, "resume")).await {
                SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
                SendResult::Refused(_, why) => recorder.fail(&op, why),
                SendResult::Lost(why) => recorder.info(&op, why),
            }
        }
        self.retry(batch).await;
    }

    /// Retries failed rows. True if that was answered.
    pub(super) async fn retry(&mut self, batch: &Batch) -> bool {
        let Some(request) = self.client.request().await else { return false };
        let recorder = self.shared.recorder.clone();
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("retry", batch.key.clone(), Value::Null, id);
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
        match self.client.change(request, "retry", send, answered).await {
            SendResult::Answered(answer, by) => {
                recorder.ok(&op, json!(answer.rows), by);
                return true;
            }
            SendResult::Refused(_, why) => recorder.fail(&op, why),
            SendResult::Lost(why) => recorder.info(&op, why),
        }
        false
    }

    /// Deletes a run, and waits until its name is free. True if it is.
    pub(super) async fn delete(&mut self, batch: &Batch) -> bool {
        let recorder = self.shared.recorder.clone();
        let Some(request) = self.client.request().await else { return false };
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke("delete", batch.key.clone(), Value::Null, id);
        let name = batch.name.clone();
        let send = |channel, id| {
            let (namespace, name) = (NAMESPACE.into(), name.clone());
            let request = v1::DeleteRunRequest { request: Some(id), namespace, name };
            async move { services::runs(channel).delete_run(request).await }
        };
        match self.client.change(request, "delete", send, |_| String::new()).await {
            SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
            // It is gone: an earlier copy of the request may have deleted it.
            SendResult::Refused(ErrorCode::RunNotFound, _) => {
                recorder.ok(&op, json!("none"), By::default());
            }
            SendResult::Refused(_, why) => {
                recorder.fail(&op, why);
                return false;
            }
            SendResult::Lost(why) => recorder.info(&op, why),
        }
        let mut gone = 0;
        while gone < 2 && !self.shared.is_over() {
            gone += u32::from(self.is_gone(batch).await);
            tokio::time::sleep(LOOK).await;
        }
        gone > 0
    }

    /// Records what exists under a name.
    async fn is_gone(&self, batch: &Batch) -> bool {
        let recorder = &self.shared.recorder;
        let op = recorder.invoke("described", batch.key.clone(), Value::Null, None);
        let (state, by) = match self.described(batch).await.map(Positioned::into_parts) {
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
