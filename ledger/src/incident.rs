//! The incident that keeps a row from the slot that failed it last.
//!
//! *Invariant:* from cluster version 3 on, a failure that is a strike leaves one incident with the row. It names the worker,
//! the slot and the time until which other slots come first. A later strike replaces it. It ends when the row is decided,
//! when a user retries the row, or in the first `Tick` at its time. Below that version there are none.
//! Absent: which slots the incident excludes (`avoided.rs`), and incidents of trials (`blame.rs`).

use crate::id::{LedgerMs, RunNo, SlotNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::rows::Rows;
use crate::run::Run;
use serde::{Deserialize, Serialize};

/// Where a row failed last, and until when other slots come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The worker's name. A worker that registers again under its name is the same worker.
    pub worker: String,
    /// The worker's slot.
    pub slot: SlotNo,
    /// The ledger time from which on the slot may have the row again.
    pub until: LedgerMs,
}

impl Run {
    /// Ends the incident of a row that ends at this time. Returns whether there was one.
    fn end_incident(&mut self, row: u64, at: LedgerMs) -> bool {
        let trouble = self.troubles.get_mut(&row);
        let ended = trouble.and_then(|trouble| trouble.incident.take_if(|own| own.until == at));
        if ended.is_some() {
            self.flight.avoided.forget(&Rows::range(row, 1));
        }
        ended.is_some()
    }
}

impl Ledger {
    /// The incident that a strike at a slot leaves now.
    pub(crate) fn incident_at(&self, slot: SlotRef) -> Option<Incident> {
        let worker = self.workers.get(&slot.session).filter(|_| self.asks_a_second_slot())?;
        let until = LedgerMs(self.meta.clock.0.saturating_add(limits::SECOND_SLOT_WAIT_MS));
        Some(Incident { worker: worker.name.clone(), slot: slot.slot, until })
    }

    /// Leaves an incident with a row that has failed.
    pub(crate) fn record_incident(&mut self, (no, row): (RunNo, u64), incident: Option<Incident>) {
        let trouble = self.runs.get_mut(&no).and_then(|run| run.troubles.get_mut(&row));
        let (Some(trouble), Some(incident)) = (trouble, incident) else { return };
        self.incident_ends.insert((incident.until, no, row));
        trouble.incident = Some(incident);
        self.dirty.troubles.insert((no, row));
    }

    /// Ends the incidents that are due, as many as one `Tick` may; the others stay due.
    pub(crate) fn end_incidents(&mut self) {
        for _ in 0..limits::TICK_ROWS_MAX {
            let due = self.incident_ends.first().filter(|end| end.0 <= self.meta.clock);
            let Some(&(at, no, row)) = due else { break };
            self.incident_ends.pop_first();
            let run = self.runs.get_mut(&no);
            if run.is_some_and(|run| run.end_incident(row, at)) {
                self.dirty.troubles.insert((no, row));
            }
        }
    }

    /// Builds the order in which incidents end.
    pub(crate) fn derive_incidents(&mut self) {
        for (no, run) in &self.runs {
            let ends = run.troubles.iter().filter_map(|(row, t)| Some((t.incident.as_ref()?, row)));
            self.incident_ends.extend(ends.map(|(incident, row)| (incident.until, *no, *row)));
        }
    }
}
