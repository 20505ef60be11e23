//! Pauses, resumes or cancels a run.

use crate::batch::run::{PauseState, RunState};
use crate::kernel::id::RunNo;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::RunAction;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Pauses, resumes or cancels a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRun {
    /// The run.
    pub run: RunNo,
    /// The action.
    pub action: RunAction,
    /// The reason, human-readable.
    pub reason: String,
}

impl Operation for ControlRun {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.action.came_with())
    }

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
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

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_control(self.run, self.action, &self.reason))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.control_run(ctx, self.run, self.action, self.reason)
    }
}

impl Ledger {
    fn check_control(&self, no: RunNo, action: RunAction, reason: &str) -> Result<(), Rejection> {
        if reason.len() > limits::REASON_BYTES_MAX {
            return Err(Rejection::Invalid("the reason is too long".into()));
        }
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        match (run.head.state, action) {
            (RunState::Cancelled, RunAction::Cancel) => Ok(()),
            _ if run.ended() => Err(run.over()),
            _ => Ok(()),
        }
    }

    pub(crate) fn control_run(
        &mut self,
        ctx: &Context,
        no: RunNo,
        action: RunAction,
        reason: String,
    ) -> Result<Reply, Rejection> {
        self.check_control(no, action, &reason)?;
        let run = self.run_mut(no)?;
        let to = match (run.head.state, action) {
            (RunState::Cancelled, RunAction::Cancel) => return Ok(Reply::Ok),
            (_, RunAction::Cancel) => {
                self.end_early(ctx, no, (RunState::Cancelled, "cancelled"), reason.clone());
                "cancelled"
            }
            (_, RunAction::Pause) => {
                run.head.state = RunState::Paused;
                run.head.reason = reason.clone();
                run.head.pause.at_cordon_limit = false;
                "paused"
            }
            (state, RunAction::Resume) => {
                if state == RunState::Paused {
                    run.head.resumed_index = ctx.index();
                    run.head.pause = PauseState::default();
                }
                run.head.state = RunState::Running;
                run.head.reason = String::new();
                self.accept_canary(no);
                "resumed"
            }
        };
        self.emit_run(ctx, no, to, &reason);
        self.runs.mark(no);
        self.refresh_active(no);
        Ok(Reply::Ok)
    }
}
