//! Ends a batch whose file is invalid.
//!
//! *Invariant:* no row of it has run, and it has no run: there is nothing else to undo. The objects of its segments
//! belong to no run, so the garbage collector removes them.

use crate::kernel::id::BatchFence;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{BatchError, BatchStatus, Stage};
use serde::{Deserialize, Serialize};

/// Ends a batch whose file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailBatch {
    /// The batch.
    pub batch: String,
    /// The fence of its owner.
    pub fence: BatchFence,
    /// The first things that are wrong, 1 to [`limits::BATCH_ERRORS_MAX`].
    pub errors: Vec<BatchError>,
}

impl Operation for FailBatch {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // All segments.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_batch(&self.batch)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.fail_batch(ctx, self)
    }
}

impl Ledger {
    fn fail_batch(&mut self, ctx: &Context, op: FailBatch) -> Result<Reply, Rejection> {
        if !(1..=limits::BATCH_ERRORS_MAX).contains(&op.errors.len()) {
            let max = limits::BATCH_ERRORS_MAX;
            return Err(Rejection::Invalid(format!("a failed batch has 1 to {max} errors")));
        }
        op.errors.iter().try_for_each(BatchError::check)?;
        let batch = self.fenced_batch(&op.batch, op.fence)?;
        match &batch.stage {
            Stage::Validating(_) => self.check_owned(batch)?,
            // A repeat.
            Stage::Ended(end) if end.status == BatchStatus::Failed && end.errors == op.errors => {
                return Ok(Reply::Ok);
            }
            _ => return Err(self.stale(batch)),
        }
        self.end_unstarted(ctx, &op.batch, BatchStatus::Failed, op.errors);
        Ok(Reply::Ok)
    }
}
