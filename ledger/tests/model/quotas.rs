//! Quotas of namespaces and completion webhooks in the model: both are counted from scratch each time.

use crate::naive::{Model, Outcome};
use crate::rows::RowState;
use crate::runs::Run;
use rollout_ledger::id::RunNo;
use rollout_ledger::{Quota, Rejection, Reply, WebhookState};

/// The bounds of pending rows, and of runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pending_rows_max: u64,
    runs_max: u32,
}

fn over(namespace: &str, what: &str, used: u64, max: u64) -> Outcome {
    Err(Rejection::OverQuota { namespace: namespace.into(), what: what.into(), used, max })
}

impl Model {
    pub(crate) fn set_quota(&mut self, quota: &Quota) -> Outcome {
        if !self.namespaces.contains_key(&quota.namespace) && !quota.create {
            return Err(Rejection::NamespaceUnknown(quota.namespace.clone()));
        }
        let running = self.namespaces.entry(quota.namespace.clone()).or_default();
        *running = quota.running_rows_max.unwrap_or(*running);
        let bounds = self.bounds.entry(quota.namespace.clone()).or_default();
        bounds.pending_rows_max = quota.pending_rows_max.unwrap_or(bounds.pending_rows_max);
        bounds.runs_max = quota.runs_max.unwrap_or(bounds.runs_max);
        Ok(Reply::Ok)
    }

    fn live<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |r| r.namespace == namespace && !r.forgotten && !r.ended())
    }

    /// Refused if the namespace has all the runs that it may have.
    pub(crate) fn room_for_a_run(&self, namespace: &str) -> Outcome {
        let max = self.bounds.get(namespace).map_or(0, |bounds| bounds.runs_max.into());
        let used = self.live(namespace).count() as u64;
        match max > 0 && used >= max {
            true => over(namespace, "runs that have not ended", used, max),
            false => Ok(Reply::Ok),
        }
    }

    /// Refused, where these would be more rows than may wait.
    pub(crate) fn room_for_rows(&self, namespace: &str, more: u64) -> Outcome {
        let max = self.bounds.get(namespace).map_or(0, |bounds| bounds.pending_rows_max);
        let waits = |s: &RowState| matches!(s, RowState::Pending { .. } | RowState::Waiting { .. });
        let rows = self.live(namespace).flat_map(|run| &run.rows);
        let used = rows.filter(|row| waits(&row.state)).count() as u64;
        match max > 0 && more > 0 && used + more > max {
            true => over(namespace, "pending rows", used, max),
            false => Ok(Reply::Ok),
        }
    }

    /// Notes runs that have ended or were reopened since the last call.
    pub(crate) fn note_ends(&mut self) {
        let index = self.index;
        for run in &mut self.runs {
            let before = run.ended_index;
            run.ended_index = match run.ended() {
                true if before > 0 => before,
                true => index,
                false => 0,
            };
            if run.spec.notify_url.is_empty() || run.ended_index == before {
                continue;
            }
            run.webhook = match run.ended() {
                true => WebhookState::Due { index },
                false => WebhookState::None,
            };
        }
    }

    pub(crate) fn settle_webhook(&mut self, no: RunNo, index: u64, delivered: bool) -> Outcome {
        let Ok(run) = self.run_of(no) else { return Ok(Reply::Ok) };
        if run.webhook == (WebhookState::Due { index }) {
            run.webhook = match delivered {
                true => WebhookState::Delivered { index },
                false => WebhookState::GivenUp { index },
            };
            self.note("told of an end");
        }
        Ok(Reply::Ok)
    }
}
