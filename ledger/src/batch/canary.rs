//! Canaries: a run may start with only its first rows, and continues if they end well.
//!
//! *Invariant:* while a run is in its canary, no row from `canary_rows` on is granted. The canary ends when all its
//! rows are decided and at most `canary_failures_max` failed for good, or when the run is resumed after more failed;
//! it never starts again.

use crate::batch::run::{Run, RunState};
use crate::kernel::id::RunNo;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;

impl Run {
    /// Whether the run is still in its canary.
    pub(crate) fn in_canary(&self) -> bool {
        self.head.spec.canary_rows > 0 && !self.head.canary_over && !self.ended()
    }

    /// The end of the rows that may be granted for the first time.
    pub(crate) fn fresh_end(&self) -> u64 {
        match self.in_canary() {
            true => self.head.rows.min(self.head.spec.canary_rows).max(self.head.next_fresh),
            false => self.head.rows,
        }
    }

    /// Whether more canary rows failed for good than the user allows. Only canary rows were granted so far, so every
    /// failure counts.
    fn canary_failed(&self) -> bool {
        self.head.counts.failed > self.head.spec.canary_failures_max
    }

    /// Whether every row of the canary exists and has an outcome.
    fn canary_decided(&self) -> bool {
        let (head, flight) = (&self.head, &self.flight);
        let all_there = head.rows >= head.spec.canary_rows || head.input_closed;
        let all_given =
            self.grantable_fresh() == 0 && flight.returned.is_empty() && flight.groups.is_empty();
        all_there && all_given && head.counts.running == 0 && head.counts.waiting == 0
    }
}

impl Ledger {
    /// Ends or fails a canary after some of its rows were decided.
    pub(crate) fn settle_canary(&mut self, ctx: &Context, no: RunNo) {
        let Some(run) = self.runs.get_mut(&no).filter(|run| run.in_canary()) else { return };
        let (failed, max) = (run.head.counts.failed, run.head.spec.canary_failures_max);
        if run.canary_failed() {
            // Always name the failures: resuming the run accepts them.
            let reason = format!(
                "canary: {failed} of the first {} rows failed for good, more than \
                 canary_failures_max = {max}; resume goes on with all rows",
                run.head.spec.canary_rows
            );
            run.head.reason = reason.clone();
            run.head.pause.at_cordon_limit = false;
            if run.head.state == RunState::Running {
                run.head.state = RunState::Paused;
                self.emit_run(ctx, no, "paused", &reason);
            }
        } else if run.canary_decided() {
            run.head.canary_over = true;
            let (first, done) = (run.head.spec.canary_rows.min(run.head.rows), failed);
            let reason = format!("{done} of the first {first} rows failed for good");
            self.emit_run(ctx, no, "canary_passed", &reason);
        } else {
            return;
        }
        self.runs.mark(no);
        self.refresh_active(no);
    }

    /// A run is resumed: its user accepts the failures of its canary.
    pub(crate) fn accept_canary(&mut self, no: RunNo) {
        let run = self.runs.get_mut(&no);
        if let Some(run) = run.filter(|run| run.in_canary() && run.canary_failed()) {
            run.head.canary_over = true;
        }
    }
}
