//! Tracks completion webhooks.
//!
//! *Invariant:* if a run's spec has a webhook URL, the webhook is due from the command that ends the run
//! until the command that records that it was delivered or given up. Whichever member leads sends it, at least
//! once. A retry of failed rows reopens the run and cancels its webhook.
//!
//! Absent: sending, and what is sent. The leader does that.

use crate::batch::run::{Run, RunState};
use crate::kernel::id::{LedgerMs, RunNo};
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// The coordinator delivered a run's completion webhook, or gave it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleWebhook {
    /// The run.
    pub run: RunNo,
    /// The log index of its end.
    pub index: u64,
    /// Whether it was acknowledged; otherwise it is given up.
    pub delivered: bool,
}

impl Operation for SettleWebhook {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_run(self.run)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        Ok(ledger.settle_webhook(ctx, self.run, self.index, self.delivered))
    }
}

/// The state of a run's completion webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WebhookState {
    /// The run has no webhook, or it has not ended.
    #[default]
    None,
    /// Not yet.
    Due {
        /// The log index of the end, which identifies the call.
        index: u64,
    },
    /// It was acknowledged.
    Delivered {
        /// The log index of the run's end.
        index: u64,
    },
    /// The receiver did not acknowledge it in time, or it may not be sent.
    GivenUp {
        /// The log index of the run's end.
        index: u64,
    },
}

/// A completion webhook that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueWebhook {
    /// The run.
    pub run: RunNo,
    /// The log index of its end.
    pub index: u64,
    /// Since when it is due.
    pub since: LedgerMs,
}

impl Run {
    /// Makes the webhook due if the run has a URL for it: the run has ended.
    pub(crate) fn notify(&mut self, ctx: &Context) {
        if !self.head.spec.notify_url.is_empty() {
            self.head.webhook = WebhookState::Due { index: ctx.index() };
        }
    }
}

impl Ledger {
    /// The completion webhooks that are due, in the order of runs.
    pub fn webhooks_due(&self) -> Vec<DueWebhook> {
        let runs = self.runs.values().filter(|run| run.head.state != RunState::Deleting);
        let due = runs.filter_map(|run| match run.head.webhook {
            WebhookState::Due { index } => {
                Some(DueWebhook { run: run.no, index, since: run.head.ended_at })
            }
            _ => None,
        });
        due.collect()
    }

    /// Records that a completion webhook was acknowledged or given up. Has no effect if it is no longer due.
    pub(crate) fn settle_webhook(
        &mut self,
        ctx: &Context,
        no: RunNo,
        index: u64,
        delivered: bool,
    ) -> Reply {
        let Some(run) = self.runs.get_mut(&no) else { return Reply::Ok };
        if run.head.webhook != (WebhookState::Due { index }) {
            return Reply::Ok;
        }
        let (webhook, to) = match delivered {
            true => (WebhookState::Delivered { index }, "notified"),
            false => (WebhookState::GivenUp { index }, "notice_given_up"),
        };
        run.head.webhook = webhook;
        self.runs.mark(no);
        self.emit_run(ctx, no, to, "");
        Reply::Ok
    }
}
