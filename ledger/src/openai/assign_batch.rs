//! Assigns the present work of a batch to a member.
//!
//! *Invariant:* an assignment gives a greater fence than all before it, and operations with an earlier fence are
//! refused from then on. So of two members that work on a batch, only the one that was assigned last changes it.
//! Absent: which member gets what, which the leader decides.

use crate::kernel::id::BatchFence;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{Batch, BatchStatus};
use serde::{Deserialize, Serialize};

/// Assigns a batch to a member, in place of the one that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignBatch {
    /// The batch.
    pub batch: String,
    /// The member's id.
    pub member: u64,
}

impl Operation for AssignBatch {
    const SINCE: u32 = OPENAI_API_VERSION;
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

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Cluster
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.assign_batch(ctx, &self.batch, self.member)
    }
}

impl Ledger {
    fn assign_batch(&mut self, ctx: &Context, id: &str, member: u64) -> Result<Reply, Rejection> {
        let batch = self.known_batch(id)?;
        let status = self.status_of(batch);
        if !has_work(status) {
            return Err(OpenAiRefusal::BatchFenceStale { status: status.to_string() }.into());
        }
        if let Some(batch) = self.batches.change(id) {
            batch.owner = Some(member);
            batch.fence = ctx.batch_fence();
        }
        Ok(Reply::Ok)
    }

    pub(super) fn known_batch(&self, id: &str) -> Result<&Batch, Rejection> {
        self.batches.get(id).ok_or_else(|| OpenAiRefusal::BatchUnknown(id.to_owned()).into())
    }

    /// The batch, if this is its last fence.
    pub(super) fn fenced_batch(&self, id: &str, fence: BatchFence) -> Result<&Batch, Rejection> {
        let batch = self.known_batch(id)?;
        match batch.fence == fence && fence != BatchFence::default() {
            true => Ok(batch),
            false => Err(self.stale(batch)),
        }
    }

    /// Refuses an operation on a batch whose work nobody has: that of its last owner is done.
    pub(super) fn check_owned(&self, batch: &Batch) -> Result<(), Rejection> {
        match batch.owner {
            Some(_) => Ok(()),
            None => Err(self.stale(batch)),
        }
    }

    /// The refusal of an operation of a member that no longer has the work that it believes to have.
    pub(super) fn stale(&self, batch: &Batch) -> Rejection {
        OpenAiRefusal::BatchFenceStale { status: self.status_of(batch).to_string() }.into()
    }

    /// What an operation on a batch is about.
    pub(super) fn subject_of_batch(&self, id: &str) -> Subject<'_> {
        let batch = self.batches.get(id);
        batch.map_or(Subject::Nothing, |batch| Subject::Namespace(&batch.namespace))
    }
}

/// Whether a member has something to do for a batch.
pub(super) fn has_work(status: BatchStatus) -> bool {
    matches!(status, BatchStatus::Validating | BatchStatus::Finalizing | BatchStatus::Cancelling)
}
