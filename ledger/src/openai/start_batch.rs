//! Starts a batch whose whole file is valid: it gets its run, with all rows.
//!
//! *Invariant:* the run is made whole in one operation, so no row runs before the whole file is valid. Its deadline is
//! the batch's completion window, counted from the creation of the batch.

use crate::batch::create_run::WholeRun;
use crate::batch::spec::RunSpec;
use crate::kernel::id::BatchFence;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{Batch, Stage, Started};
use crate::openai::create_batch::check_key_limit;
use serde::{Deserialize, Serialize};

/// Ends the validation of a batch whose file is valid, and starts its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartBatch {
    /// The batch.
    pub batch: String,
    /// The fence of its owner.
    pub fence: BatchFence,
    /// The spec of its run. The ledger sets the deadline.
    pub spec: Box<RunSpec>,
    /// How many rows it has.
    pub rows: u64,
    /// blake3 over its segments' digests in order.
    pub digest: [u8; 32],
}

impl Operation for StartBatch {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        // All segments.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_batch(&self.batch)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.start_batch(ctx, self)
    }
}

impl Ledger {
    fn start_batch(&mut self, ctx: &Context, op: StartBatch) -> Result<Reply, Rejection> {
        let batch = self.fenced_batch(&op.batch, op.fence)?;
        let cursor = match &batch.stage {
            Stage::Validating(cursor) => *cursor,
            // A repeat: a run has ended only after the answer, or was assigned again.
            Stage::Started(_) => return Ok(Reply::Ok),
            Stage::Ended(_) => return Err(self.stale(batch)),
        };
        self.check_owned(batch)?;
        if cursor.rows == 0 {
            return Err(Rejection::Invalid("a batch without rows cannot start".into()));
        }
        self.admit_batch_rows(batch, cursor.rows)?;
        let spec = RunSpec { deadline_ms: batch.spec.window_ms, ..*op.spec };
        let model = spec.engine.model.clone();
        let run = WholeRun {
            name: (batch.namespace.clone(), batch.id.clone()),
            folder: batch.folder.clone(),
            created_at: batch.created_at,
            segments: self.batches.segments_of(&op.batch).to_vec(),
            rows: op.rows,
            digest: op.digest,
        };
        let run = self.create_whole_run(ctx, spec, run)?;
        if let Some(batch) = self.batches.change(&op.batch) {
            batch.model = model;
        }
        let in_progress_ms = ctx.wall_ms;
        let started = Started { run, in_progress_ms, cancelling_ms: None };
        self.batches.set_stage(&op.batch, Stage::Started(started));
        Ok(Reply::Ok)
    }

    /// Refuses a batch in validation that would have more rows than its namespace or its API key has room for.
    pub(super) fn admit_batch_rows(&self, batch: &Batch, rows: u64) -> Result<(), Rejection> {
        self.admit_rows(&batch.namespace, rows)?;
        let max = self.key_limits(&batch.key).waiting_rows;
        if max == 0 {
            return Ok(());
        }
        let of_key = self.batches.open().filter(|(_, other)| other.key == batch.key);
        let waiting: u64 = of_key.filter_map(|(_, other)| self.tally.open_rows(other.run()?)).sum();
        check_key_limit(&batch.key, "waiting rows", (waiting, rows), max)
    }
}
