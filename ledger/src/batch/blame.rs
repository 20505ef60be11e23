//! Decides whether the row or the slot is to blame when an engine dies.
//!
//! *Invariant:* from cluster version 3 on, engine deaths fail a row for good only after it killed engines on two
//! slots, if a second slot that takes work fits the row. The row waits for the second slot for
//! [`limits::SECOND_SLOT_WAIT_MS`] at most. After that the first slot may get it again, and decides. A verdict of one
//! slot does not clear that slot if a second slot was available. A slot of a worker that registers again under its
//! name is the same slot.
//!
//! Absent: where an engine died of a row and how long the row waits (`incident.rs`), what a death means for the rows
//! (`engine_death.rs`), which slot is given which group (`bisection.rs`), how readers see the wait (`second_slot.rs`),
//! and what operators cordon (`cordon.rs`).
//!
//! [`limits::SECOND_SLOT_WAIT_MS`]: crate::kernel::limits::SECOND_SLOT_WAIT_MS

use crate::batch::incident::Incident;
use crate::batch::run::Run;
use crate::fleet::worker::Worker;
use crate::kernel::id::{RunNo, SlotRef};
use crate::kernel::versions::FAILED_SETS_VERSION;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use std::cell::OnceCell;

/// The conclusion from an engine death with a row that ran alone.
pub(crate) struct Conclusion {
    /// Whether the row may fail for good because of it.
    pub(crate) decides: bool,
    /// Whether, if it does, no incident of the row counts against a slot.
    pub(crate) clears_slots: bool,
}

impl Ledger {
    /// Whether the cluster's version tries a second slot before it blames a row.
    pub(crate) fn asks_a_second_slot(&self) -> bool {
        self.meta.version() >= SCHEDULING_VERSION
    }

    /// The conclusion from a death of a slot's engine with one row alone, in a trial or outside.
    pub(crate) fn conclude(&self, slot: SlotRef, (no, row): (RunNo, u64)) -> Conclusion {
        let run = self.runs.get(&no).filter(|_| self.asks_a_second_slot());
        let incident = run.and_then(|run| run.failures.get(&row)?.incident.as_ref());
        let died_here = |incident: &&Incident| {
            incident.died_alone_at.as_ref().is_some_and(|at| self.is_named(slot, at))
        };
        let another_takes = || run.is_some_and(|run| self.another_slot_takes(run, slot));
        match incident.filter(died_here) {
            Some(incident) if another_takes() => {
                Conclusion { decides: incident.until.is_none(), clears_slots: false }
            }
            _ => Conclusion { decides: true, clears_slots: true },
        }
    }

    /// Whether a row may fail for good because its worker reports that the row killed the engine: from cluster version
    /// 4 on, as after the death of an engine. `another` remembers whether another slot takes rows of the run.
    pub(crate) fn report_decides(
        &self,
        slot: SlotRef,
        (no, row): (RunNo, u64),
        another: &OnceCell<bool>,
    ) -> bool {
        let run = self.runs.get(&no).filter(|_| self.meta.version() >= FAILED_SETS_VERSION);
        let incident = run.and_then(|run| run.failures.get(&row)?.open_incident());
        let died_at = incident.and_then(|incident| incident.died_alone_at.as_ref());
        let takes = || run.is_some_and(|run| self.another_slot_takes(run, slot));
        let waits =
            died_at.is_some_and(|at| self.is_named(slot, at) && *another.get_or_init(takes));
        !waits
    }

    /// Whether another slot could take the rows of a run that this slot had: it takes work and fits.
    pub(crate) fn another_slot_takes(&self, run: &Run, slot: SlotRef) -> bool {
        self.takers(run, slot).next().is_some()
    }

    /// The other slots that could take the rows of a run that this slot had.
    pub(crate) fn takers<'a>(
        &'a self,
        run: &'a Run,
        slot: SlotRef,
    ) -> impl Iterator<Item = (&'a Worker, usize)> {
        // If all slots have a cordon, each may have groups, and the others come first among them too.
        let cordoned = self.slot(slot).is_some_and(|pulls| pulls.cordon().is_some());
        self.others(run, slot).filter(move |(worker, number)| {
            worker.is_ready()
                && (self.cordon_of(worker, *number).is_none()
                    || cordoned && self.is_cordoned_by_itself(worker, *number))
        })
    }
}
