//! Removes a deleted run whose objects are gone.

use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// The objects of a deleted run are gone; this removes the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetRun {
    /// The run.
    pub run: RunNo,
}

impl Operation for ForgetRun {
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

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.forget_run(self.run)
    }
}

impl Ledger {
    fn forget_run(&mut self, no: RunNo) -> Result<Reply, Rejection> {
        match self.runs.get(&no) {
            None => return Ok(Reply::Ok), // A repeat.
            Some(run) if run.head.state != RunState::Deleting => return Err(Rejection::RunActive),
            Some(_) => {}
        }
        self.runs.remove(no);
        Ok(Reply::Ok)
    }
}
