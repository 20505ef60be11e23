//! Moves an ended run's rows into its manifest. `run_gc.rs` has the invariants of garbage collection.

use crate::batch::run::RunState;
use crate::batch::run_gc::Sealed;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::BlobRef;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// An ended run's rows have moved to a manifest object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The run.
    pub run: RunNo,
    /// The manifest, durable.
    pub manifest: BlobRef,
    /// The log index at which the run had ended when its manifest was made.
    pub ended_index: u64,
}

impl Operation for Seal {
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

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.seal(ctx, self.run, (self.manifest, self.ended_index))
    }
}

impl Ledger {
    fn seal(
        &mut self,
        ctx: &Context,
        no: RunNo,
        (manifest, ended_index): (BlobRef, u64),
    ) -> Result<Reply, Rejection> {
        self.check_unused_by_batch(no)?;
        let at = self.meta.clock();
        let run = self.run_mut(no)?;
        match run.head.state {
            RunState::Deleting => return Err(Rejection::RunDeleting),
            _ if !run.ended() => return Err(Rejection::RunActive),
            _ if run.head.sealed.is_some() => return Ok(Reply::Ok),
            // Failed rows were tried again meanwhile: the manifest does not name their results.
            _ if run.head.ended_index != ended_index => return Err(Rejection::ManifestStale),
            _ => {}
        }
        let segments = run.segments.len() as u32;
        run.head.sealed = Some(Sealed { manifest, at, segments, swept: false });
        self.drop_rows(no);
        self.emit_run(ctx, no, "sealed", "");
        Ok(Reply::Ok)
    }
}
