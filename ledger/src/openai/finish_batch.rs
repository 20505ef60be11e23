//! Ends a batch whose run has ended and whose output files are written.
//!
//! *Invariant:* the output files and the end of the batch are one operation: a batch never ends without its output, and
//! no output file belongs to a batch that has another one. The end is the one for which the output was written: a batch
//! that is cancelled meanwhile needs other lines for its unfinished rows.
//! Absent: bounds of an API key for stored bytes. The rows have run, so their output is kept.

use crate::batch::run::RunState;
use crate::kernel::id::BatchFence;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{BatchEnd, BatchError, BatchStatus, BatchUsage, Stage};
use crate::openai::batch_output::BatchOutput;
use serde::{Deserialize, Serialize};

/// Ends a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishBatch {
    /// The batch.
    pub batch: String,
    /// The fence of its owner.
    pub fence: BatchFence,
    /// The end for which the output was written: `Completed`, `Expired` or `Cancelled`.
    pub ends_as: BatchStatus,
    /// The file with the results, unless there are none.
    pub output: Option<BatchOutput>,
    /// The file with the lines that failed or never ran, unless there are none.
    pub errors: Option<BatchOutput>,
    /// Tokens of all results together.
    pub usage: BatchUsage,
}

impl Operation for FinishBatch {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.ends_as.came_with())
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        // Files, which are bounded. On a full disk a batch still ends.
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_batch(&self.batch)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.finish_batch(ctx, self)
    }
}

impl Ledger {
    fn finish_batch(&mut self, ctx: &Context, op: FinishBatch) -> Result<Reply, Rejection> {
        let batch = self.fenced_batch(&op.batch, op.fence)?;
        let started = match &batch.stage {
            Stage::Validating(_) => return Err(self.stale(batch)),
            Stage::Ended(end) => {
                // A repeat.
                let same = end.status == op.ends_as
                    && end.output_file.as_deref() == op.output.as_ref().map(|file| &*file.id)
                    && end.error_file.as_deref() == op.errors.as_ref().map(|file| &*file.id);
                return if same { Ok(Reply::Ok) } else { Err(self.stale(batch)) };
            }
            Stage::Started(started) => *started,
        };
        self.check_owned(batch)?;
        let Some(run) = self.run_progress(started.run) else { return Err(self.stale(batch)) };
        let Some(status) = self.end_of(batch) else { return Err(self.stale(batch)) };
        if status != op.ends_as {
            let (status, ends_as) = (self.status_of(batch).to_string(), op.ends_as.to_string());
            return Err(OpenAiRefusal::BatchOtherEnd { status, ends_as }.into());
        }
        let cancelled_run = (run.state == RunState::Cancelled).then_some(run.finished_wall_ms);
        let end = BatchEnd {
            status,
            at: self.meta.clock(),
            index: ctx.index(),
            ended_ms: ctx.wall_ms,
            run: Some(started.run),
            in_progress_ms: Some(started.in_progress_ms),
            finalizing_ms: self.finalizing_ms(started.run),
            cancelling_ms: started.cancelling_ms.or(cancelled_run),
            expires_ms: batch.expires_ms(run.deadline_ms),
            total: run.rows,
            completed: run.done,
            usage: Some(op.usage),
            output_file: op.output.as_ref().map(|file| file.id.clone()),
            error_file: op.errors.as_ref().map(|file| file.id.clone()),
            errors: Vec::new(),
        };
        let files = self.output_files(ctx, batch, op.output.into_iter().chain(op.errors))?;
        for (id, file) in files {
            self.api_files.add_file(id, file);
        }
        self.end_batch(&op.batch, end);
        Ok(Reply::Ok)
    }

    /// Ends a batch that has no run.
    pub(super) fn end_unstarted(
        &mut self,
        ctx: &Context,
        id: &str,
        status: BatchStatus,
        errors: Vec<BatchError>,
    ) {
        let Some(batch) = self.batches.get(id) else { return };
        let cancelling_ms = (status == BatchStatus::Cancelled).then_some(ctx.wall_ms);
        let end = BatchEnd {
            status,
            at: self.meta.clock(),
            index: ctx.index(),
            ended_ms: ctx.wall_ms,
            run: None,
            in_progress_ms: None,
            finalizing_ms: None,
            cancelling_ms,
            expires_ms: batch.expires_ms(batch.spec.window_ms),
            total: 0,
            completed: 0,
            usage: None,
            output_file: None,
            error_file: None,
            errors,
        };
        self.end_batch(id, end);
    }

    /// The batch no longer uses its input file.
    fn end_batch(&mut self, id: &str, end: BatchEnd) {
        let input = self.batches.get(id).map(|batch| batch.spec.input_file.clone());
        self.batches.set_stage(id, Stage::Ended(Box::new(end)));
        if let Some(input) = input {
            self.api_files.remove_user(&input);
        }
    }
}
