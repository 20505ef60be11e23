//! How runs end: early, by a cancellation or a deadline, or because every row has an outcome.
//!
//! *Invariant:* an ended run grants nothing. The slots that still hold rows of it return them.

use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::seeded::{Bug, seeded};

impl Ledger {
    /// Ends a run that has rows without an outcome, and all of its leases. `why` is the reason in the events.
    pub(crate) fn end_early(
        &mut self,
        ctx: &Context,
        no: RunNo,
        (state, why): (RunState, &'static str),
        reason: String,
    ) {
        self.end_speculative(ctx, no, why);
        let Some(run) = self.runs.get_mut(&no) else { return };
        let attempts: Vec<_> = run.flight.grants.keys().copied().collect();
        for attempt in attempts {
            self.lapse(ctx, no, attempt, why);
        }
        let Some(run) = self.runs.get_mut(&no) else { return };
        run.flight.lapsed.clear();
        run.dissolve_groups();
        run.notify(ctx);
        run.head.state = state;
        run.head.reason = reason;
        run.head.pause.at_cordon_limit = false;
        run.head.finished_wall_ms = ctx.wall_ms;
        run.head.ended_at = self.meta.clock();
        run.head.ended_index = ctx.index();
        self.runs.end_all_waits(no);
    }

    /// Ends a run whose input is closed and whose rows all have an outcome.
    pub(crate) fn finish_if_done(&mut self, ctx: &Context, no: RunNo) {
        self.settle_canary(ctx, no);
        let Some(run) = self.runs.get_mut(&no) else { return };
        let decided = run.head.counts.done + run.head.counts.failed;
        let closed = run.head.input_closed || seeded(Bug::InputClosedEarly) && decided > 0;
        if closed && decided == run.head.rows && !run.ended() {
            run.notify(ctx);
            run.head.state = RunState::Finished;
            run.head.reason = String::new();
            run.head.pause.at_cordon_limit = false;
            run.head.finished_wall_ms = ctx.wall_ms;
            run.head.ended_at = self.meta.clock();
            run.head.ended_index = ctx.index();
            self.runs.mark(no);
            self.refresh_active(no);
            self.emit_run(ctx, no, "finished", "");
        }
    }
}
