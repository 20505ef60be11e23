//! Cancels a batch.
//!
//! *Invariant:* a batch whose cancellation was answered ends as `cancelled`, whatever its run does. A batch without a
//! run ends at once: no row of it has run.

use crate::batch::run::RunState;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::RunAction;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{BatchStatus, Stage, Started};
use serde::{Deserialize, Serialize};

/// Cancels a batch. A repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelBatch {
    /// The batch.
    pub batch: String,
}

impl Operation for CancelBatch {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // All leases of its run.
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
        ledger.cancel_batch(ctx, &self.batch)
    }
}

impl Ledger {
    fn cancel_batch(&mut self, ctx: &Context, id: &str) -> Result<Reply, Rejection> {
        let batch = self.known_batch(id)?;
        let started = match &batch.stage {
            Stage::Validating(_) => {
                self.end_unstarted(ctx, id, BatchStatus::Cancelled, Vec::new());
                return Ok(Reply::Ok);
            }
            Stage::Ended(end) if end.status == BatchStatus::Cancelled => return Ok(Reply::Ok),
            Stage::Ended(end) => {
                return Err(OpenAiRefusal::BatchEnded { status: end.status.to_string() }.into());
            }
            Stage::Started(started) if started.cancelling_ms.is_some() => return Ok(Reply::Ok),
            Stage::Started(started) => *started,
        };
        let ended = self.run_progress(started.run).map(|run| run.state);
        if ended.is_some_and(|state| matches!(state, RunState::Running | RunState::Paused)) {
            let reason = "its batch was cancelled".to_owned();
            self.control_run(ctx, started.run, RunAction::Cancel, reason)?;
        }
        if let Some(batch) = self.batches.change(id) {
            let cancelling_ms = Some(ctx.wall_ms);
            batch.stage = Stage::Started(Started { cancelling_ms, ..started });
        }
        Ok(Reply::Ok)
    }
}
