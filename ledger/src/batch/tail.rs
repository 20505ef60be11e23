//! Runs with no rows left to grant. Reports of their results may wait.
//!
//! *Invariant:* if a worker reports results of such a run earlier than its last report, no slot gets another row for
//! it: no row of the run is pending or will be appended, its results supersede no other attempt, and no cap waits
//! for them.

use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::machine::ledger::Ledger;

impl Ledger {
    /// Whether a run has no more rows for any slot, however soon its results are reported.
    pub fn has_nothing_more(&self, no: RunNo) -> bool {
        let Some(run) = self.runs.get(&no) else { return false };
        let head = &run.head;
        let capped = self.namespaces.get(&head.namespace).is_none_or(|n| n.is_capped());
        head.state == RunState::Running
            && head.input_closed
            && !head.spec.tail_duplicates
            && run.pending() == 0
            && !capped
    }
}
