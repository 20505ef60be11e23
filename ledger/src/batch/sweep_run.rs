//! Records that a sealed run has no objects left that its manifest does not name.

use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Records that the store no longer has objects of a sealed run that its manifest does not name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// The run.
    pub run: RunNo,
}

impl Operation for Swept {
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

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.swept(self.run)
    }
}

impl Ledger {
    fn swept(&mut self, no: RunNo) -> Result<Reply, Rejection> {
        let run = self.run_mut(no)?;
        match &mut run.head.sealed {
            None => return Err(Rejection::RunActive),
            Some(sealed) => sealed.swept = true,
        }
        self.runs.mark(no);
        Ok(Reply::Ok)
    }
}
