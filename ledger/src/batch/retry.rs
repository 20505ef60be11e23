//! Makes failed rows pending again at a user's request.
//!
//! *Invariant:* finished rows do not change. A retried row keeps its history and has no strike; a run that had
//! finished runs again, and finishes again.

use crate::batch::completion_webhook::WebhookState;
use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation};
use serde::{Deserialize, Serialize};

/// Rows that failed for good are pending again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryRows {
    /// The run.
    pub run: RunNo,
    /// Which; `None` for all that failed.
    pub rows: Option<Rows>,
}

impl Operation for RetryRows {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.retryable(self.run, self.rows.as_ref()).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.retry_rows(ctx, self.run, self.rows)
    }
}

impl Ledger {
    /// The failed rows that a retry of these makes pending.
    fn retryable(&self, no: RunNo, rows: Option<&Rows>) -> Result<Rows, Rejection> {
        let now = self.meta.clock;
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        let lives =
            matches!(run.head.state, RunState::Running | RunState::Paused | RunState::Finished);
        if !lives || !run.has_rows() {
            return Err(run.over());
        }
        let finished = run.head.state == RunState::Finished;
        if finished && run.deadline().is_some_and(|at| at <= now) {
            return Err(Rejection::DeadlineExceeded);
        }
        let failed = run.troubles.iter().filter(|t| t.1.failed).map(|t| (*t.0, 1));
        let failed = Rows::from_ranges(failed).unwrap_or_default();
        let again = match rows {
            Some(rows) => failed.partition(rows).0,
            None => failed,
        };
        if !again.is_empty() {
            self.admit_rows(&run.head.namespace, again.len())?;
            if finished {
                self.admit_run(&run.head.namespace)?;
            }
        }
        Ok(again)
    }

    pub(crate) fn retry_rows(
        &mut self,
        ctx: &Context,
        no: RunNo,
        rows: Option<Rows>,
    ) -> Result<Reply, Rejection> {
        let again = self.retryable(no, rows.as_ref())?;
        if again.is_empty() {
            return Ok(Reply::Retried { rows: 0 });
        }
        let run = self.run_mut(no)?;
        let finished = run.head.state == RunState::Finished;
        for row in again.iter() {
            if let Some(trouble) = run.troubles.get_mut(&row) {
                trouble.pardon();
            }
        }
        let touched = run.reopen(&again);
        run.head.counts.failed -= again.len();
        run.bring_back(&again);
        if finished {
            run.head.state = RunState::Running;
            run.head.webhook = WebhookState::None;
            run.head.finished_wall_ms = 0;
        }
        self.runs.mark_troubles(no, again.iter());
        self.runs.mark_segments(no, touched);
        self.runs.mark(no);
        self.refresh_active(no);
        self.emit(ctx, EventKind::Retried { run: no, rows: again.clone() });
        if finished {
            self.emit_run(ctx, no, "resumed", "failed rows are tried again");
        }
        Ok(Reply::Retried { rows: again.len() })
    }
}
