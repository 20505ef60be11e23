//! Fails a generation of a barrier that waits.

use crate::kernel::id::JobNo;
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::barrier::{Barrier, BarrierEnd, BarrierFailure};
use crate::training::job::JobName;
use serde::{Deserialize, Serialize};

/// A barrier that waits fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortBarrier {
    /// The job.
    pub job: JobName,
    /// The barrier.
    pub barrier: String,
    /// The generation; 0 for the one that waits.
    pub generation: u64,
    /// The reason, human-readable.
    pub reason: String,
}

impl Operation for AbortBarrier {
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

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.job.namespace)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.abortable(&self.job, (&self.barrier, self.generation), &self.reason).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.abort_barrier(ctx, &self.job, (self.barrier, self.generation), self.reason)
    }
}

impl Ledger {
    /// The job and the barrier of a generation that is still known.
    fn abortable(
        &self,
        job: &JobName,
        (barrier, generation): (&str, u64),
        reason: &str,
    ) -> Result<(JobNo, &Barrier), Rejection> {
        if reason.len() > limits::TEXT_BYTES_MAX {
            return Err(Rejection::Invalid("the reason is too long".into()));
        }
        let no = self.jobs.no(job).ok_or(JobRefusal::BarrierUnknown)?;
        let at = self.jobs.get(no).and_then(|job| job.barriers.get(barrier));
        let at = at.ok_or(JobRefusal::BarrierUnknown)?;
        if generation > 0 && !at.generations.iter().any(|g| g.number == generation) {
            return Err(JobRefusal::BarrierUnknown.into());
        }
        Ok((no, at))
    }

    /// Has no effect if the generation has ended already.
    fn abort_barrier(
        &mut self,
        ctx: &Context,
        job: &JobName,
        (barrier, generation): (String, u64),
        reason: String,
    ) -> Result<Reply, Rejection> {
        let (no, at) = self.abortable(job, (&barrier, generation), &reason)?;
        let waits = at.waiting().is_some_and(|g| generation == 0 || g.number == generation);
        if waits {
            self.change_job(ctx, no, |job, _, told| {
                if let Some(g) = job.barriers.get_mut(&barrier).and_then(Barrier::waiting_mut) {
                    g.end = Some(BarrierEnd::Failed(BarrierFailure::Aborted { reason }));
                }
                told.barriers.insert(barrier.clone());
                job.tell_end(&barrier, told);
            });
        }
        Ok(Reply::Ok)
    }
}
