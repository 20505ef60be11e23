//! Closes a job's rendezvous for new participants.

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::job::JobName;
use serde::{Deserialize, Serialize};

/// Closes a job's rendezvous for new participants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseRendezvous {
    /// The job, made if need be.
    pub job: JobName,
}

impl Operation for CloseRendezvous {
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
        Some(ledger.job_or_room(&self.job).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.close_rendezvous(ctx, self.job)
    }
}

impl Ledger {
    fn close_rendezvous(&mut self, ctx: &Context, job: JobName) -> Result<Reply, Rejection> {
        self.job_or_room(&job)?;
        let no = self.make_job(job);
        if self.jobs.get(no).is_some_and(|job| !job.head.rendezvous.closed) {
            self.change_job(ctx, no, |job, _, told| job.close(told));
        }
        Ok(Reply::Ok)
    }
}
