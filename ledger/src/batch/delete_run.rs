//! Deletes an ended run. Its name stays taken until its objects are gone.

use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Deletes an ended run; its name stays taken until its objects are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRun {
    /// The run.
    pub run: RunNo,
}

impl Operation for DeleteRun {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

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
        Some(ledger.check_delete(self.run))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.delete_run(ctx, self.run)
    }
}

impl Ledger {
    fn check_delete(&self, no: RunNo) -> Result<(), Rejection> {
        // A run that is being deleted has ended too.
        match self.runs.get(&no).ok_or(Rejection::RunUnknown)?.ended() {
            true => self.check_unused_by_batch(no),
            false => Err(Rejection::RunActive),
        }
    }

    fn delete_run(&mut self, ctx: &Context, no: RunNo) -> Result<Reply, Rejection> {
        self.check_delete(no)?;
        let run = self.run_mut(no)?;
        if run.head.state == RunState::Deleting {
            return Ok(Reply::Ok);
        }
        run.head.state = RunState::Deleting;
        self.drop_rows(no);
        self.emit_run(ctx, no, "deleted", "");
        Ok(Reply::Ok)
    }
}
