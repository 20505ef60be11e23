//! Closes a run's input, after which the run can finish.
//!
//! *Invariant:* the submitter and the ledger agree about every segment: the digest covers them all.

use crate::batch::run::RunState;
use crate::batch::segment::Segment;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Closes a run's input: from now on it can finish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseInput {
    /// The run.
    pub run: RunNo,
    /// How many rows it has.
    pub rows: u64,
    /// blake3 over its segments' digests in order.
    pub digest: [u8; 32],
}

impl Operation for CloseInput {
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
        ledger.close_input(ctx, self.run, self.rows, self.digest)
    }
}

/// blake3 over the digests of segments in order.
pub(super) fn digest_of(segments: &[Segment]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    segments.iter().for_each(|segment| {
        hasher.update(&segment.blob.digest);
    });
    *hasher.finalize().as_bytes()
}

impl Ledger {
    fn close_input(
        &mut self,
        ctx: &Context,
        no: RunNo,
        rows: u64,
        digest: [u8; 32],
    ) -> Result<Reply, Rejection> {
        let run = self.runs.get_mut(&no).ok_or(Rejection::RunUnknown)?;
        if run.ended() && run.head.state != RunState::Finished {
            return Err(run.over());
        }
        if run.head.sealed.is_some() {
            return match run.head.rows == rows && run.head.input_digest == digest {
                true => Ok(Reply::Ok),
                false => Err(Rejection::InputMismatch { rows: run.head.rows }),
            };
        }
        if run.head.rows != rows || digest_of(&run.segments) != digest {
            return Err(Rejection::InputMismatch { rows: run.head.rows });
        }
        run.head.input_closed = true;
        run.head.input_digest = digest;
        self.runs.mark(no);
        self.refresh_active(no);
        self.finish_if_done(ctx, no);
        Ok(Reply::Ok)
    }
}
