//! Remembers which rows of an incident are done, so that judging its slot again does not read them again.
//!
//! *Invariant:* this is a cache and not part of the state: it is never written, digested or compared, and a member
//! that loads an image starts without it. A row that is done stays done until its run drops all of its rows
//! (`run_gc.rs`), so the answer does not depend on how much is remembered.
//! Absent: when a slot is judged (`slot_incidents.rs`).

use crate::batch::runs::Runs;
use crate::kernel::id::RunNo;
use crate::kernel::rows::Rows;
use crate::kernel::visits::count_visit;

/// The first row of an incident that is not known to be done.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoneRows {
    /// The runs before it, in the order of the incident.
    runs: usize,
    row: u64,
}

/// Members that remember different amounts have equal states.
impl PartialEq for DoneRows {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DoneRows {}

impl DoneRows {
    /// Reads outcomes up to the first row that is not done.
    pub(crate) fn advance(&mut self, incident: &[(RunNo, Rows)], runs: &Runs) {
        while let Some((no, rows)) = incident.get(self.runs) {
            let run = runs.get(no);
            let is_done = |row| run.is_some_and(|run| run.outcome(row).part().is_some());
            if let Some(row) =
                rows.from(self.row).inspect(|_| count_visit()).find(|row| !is_done(*row))
            {
                self.row = row;
                return;
            }
            (self.runs, self.row) = (self.runs + 1, 0);
        }
    }

    /// Whether all rows of an incident are done, after [`advance`](Self::advance).
    pub(crate) fn is_all(&self, incident: &[(RunNo, Rows)], runs: &Runs) -> bool {
        let has_rows = |no: &RunNo| runs.get(no).is_some_and(|run| !run.segments.is_empty());
        let read_all = self.runs == incident.len() && !incident.is_empty();
        read_all && incident.iter().all(|(no, _)| has_rows(no))
    }
}
