//! Runs with no rows left to grant. Their results may wait.
//!
//! *Invariant:* reporting a result sooner than the last one of its worker brings nobody a row: none of the run's is pending
//! or will be appended, its results end no other slot's duplicate, and no cap waits for them.

use crate::id::RunNo;
use crate::ledger::Ledger;
use crate::run::RunState;

impl Ledger {
    /// Whether a run has nothing more for anybody, however soon its results are reported.
    pub fn has_nothing_more(&self, no: RunNo) -> bool {
        let Some(run) = self.runs.get(&no) else { return false };
        let head = &run.head;
        let capped = self.namespaces.get(&head.namespace).is_none_or(|n| n.running_rows_max > 0);
        head.state == RunState::Running
            && head.input_closed
            && !head.spec.tail_duplicates
            && run.pending() == 0
            && !capped
    }
}
