//! Appends segments to a run's input.
//!
//! *Invariant:* a segment that is already there is accepted only if it is the same. A refused operation changed
//! nothing.

use crate::batch::create_run::run_reply;
use crate::batch::run::{Run, RunState};
use crate::batch::segment::Segment;
use crate::kernel::id::{RunNo, SegmentNo};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::SegmentDecl;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::SCHEDULING_VERSION;
use serde::{Deserialize, Serialize};

/// Appends segments to an open input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddSegments {
    /// The run.
    pub run: RunNo,
    /// In order, each already durable in the store.
    pub segments: Vec<SegmentDecl>,
}

impl Operation for AddSegments {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_run(self.run)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.add_segments(self.run, self.segments)
    }
}

impl Ledger {
    fn add_segments(&mut self, no: RunNo, segments: Vec<SegmentDecl>) -> Result<Reply, Rejection> {
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        if run.head.state == RunState::Deleting {
            return Err(Rejection::RunEnded);
        }
        if let Some(sealed) = &run.head.sealed {
            // The manifest has their contents; closing checks that they are the same.
            let is_declared = segments.iter().all(|s| s.number.0 < sealed.segments);
            return if is_declared { Ok(run_reply(run, false)) } else { Err(run.over()) };
        }
        let more = check_segments(run, &segments)?;
        self.admit_rows(&run.head.namespace, more)?;
        let split = self.meta.version() >= SCHEDULING_VERSION;
        let run = self.run_mut(no)?;
        let mut touched = Vec::new();
        for decl in segments {
            if (decl.number.0 as usize) < run.segments.len() {
                continue; // A repeat, checked above.
            }
            touched.push(decl.number);
            let mut segment = Segment::new(run.head.rows, decl.rows, decl.blob);
            segment.split = split;
            run.segments.push(segment);
            run.head.rows += u64::from(decl.rows);
        }
        let reply = run_reply(run, false);
        self.runs.mark_segments(no, touched);
        self.runs.mark(no);
        self.refresh_active(no);
        Ok(reply)
    }
}

/// Checks everything before anything changes, because a refused operation leaves no trace, and returns how many rows
/// are new.
fn check_segments(run: &Run, segments: &[SegmentDecl]) -> Result<u64, Rejection> {
    if segments.len() > limits::SEGMENTS_PER_OP_MAX {
        let max = limits::SEGMENTS_PER_OP_MAX as u64;
        return Err(Rejection::Limit { what: "segments in one request".into(), max });
    }
    let mut next = run.segments.len() as u32;
    let mut rows = run.head.rows;
    for decl in segments {
        if decl.rows == 0 || decl.rows > limits::SEGMENT_ROWS_MAX {
            let max = limits::SEGMENT_ROWS_MAX;
            return Err(Rejection::Invalid(format!("a segment has 1 to {max} rows")));
        }
        let SegmentNo(number) = decl.number;
        match run.segments.get(number as usize) {
            Some(have) if have.rows == decl.rows && have.blob == decl.blob => continue,
            Some(_) => return Err(Rejection::SegmentConflict { number, have: next }),
            None if number != next => {
                return Err(Rejection::SegmentConflict { number, have: next });
            }
            None => {}
        }
        next += 1;
        rows += u64::from(decl.rows);
    }
    if rows > run.head.rows && (run.head.input_closed || run.ended()) {
        return Err(if run.ended() { run.over() } else { Rejection::InputClosed });
    }
    if rows > limits::RUN_ROWS_MAX {
        return Err(Rejection::Limit { what: "rows in a run".into(), max: limits::RUN_ROWS_MAX });
    }
    Ok(rows - run.head.rows)
}
