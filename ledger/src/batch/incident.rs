//! Where a row last failed or killed an engine, and until when other slots come first.
//!
//! *Invariant:* from cluster version 3 on, a row has one incident: the latest strike, or the latest death of an
//! engine that it shared with other rows. While the incident is open, the row's slot comes after other slots. It is
//! open for [`limits::SECOND_SLOT_WAIT_MS`], until the first `Tick` at its time. The next incident replaces it, but
//! does not prolong the wait if it is of the same slot and the wait is not over. A closed incident still says where
//! the row, alone, last killed an engine. It is removed when the row is decided, or when a user retries it. A group
//! has the incident of its first row.
//!
//! From cluster version 4 on, an open incident also names the slots that failed the row before, each while other slots
//! came first. They come after other slots too, until the incident closes.
//!
//! Below that version rows have none. A run has a list instead: by group of one row, the slot whose engine died of
//! it, and until when other slots come first. The list does not become incidents: images and digests of these
//! versions have it, and its entries stay with the group, whatever becomes of the row. The command that raises the
//! version drops it.
//!
//! Absent: which pending rows an incident keeps from a slot (`avoided_rows.rs`, `failed_sets.rs`), what follows if an
//! engine dies again (`blame.rs`), and what counts against a slot (`slot_incidents.rs`).

use crate::batch::bisection::GroupNo;
use crate::batch::failure_record::FailureRecord;
use crate::batch::run::Run;
use crate::fleet::worker::Worker;
use crate::kernel::id::{LedgerMs, RunNo, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::versions::FAILED_SETS_VERSION;
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// How rows ended at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndKind {
    /// The engine died while it ran them.
    EngineDied,
    /// They failed, and the engine continued.
    RowFailed,
    /// Their input could not be read. Only incidents of slots use this; a row records it as [`EndKind::RowFailed`].
    InputUnreadable,
}

/// A slot by the name of its worker. A worker that registers again under its name is the same worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedSlot {
    /// The worker's name.
    pub worker: String,
    /// The worker's slot.
    pub slot: SlotNo,
}

/// Where a row last failed or killed an engine, and until when other slots come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// How the row ended there.
    pub end: EndKind,
    /// The slot.
    pub at: NamedSlot,
    /// The ledger time from which on that slot may have the row again; `None` once it has come.
    pub until: Option<LedgerMs>,
    /// The slot whose engine last died of this row alone, if one has.
    pub died_alone_at: Option<NamedSlot>,
    /// While it is open: the other slots that failed the row before, oldest first, fewer than
    /// [`limits::HISTORY_MAX`]. The record stores them separately.
    #[serde(skip)]
    pub earlier: Vec<NamedSlot>,
}

impl Incident {
    /// The slots that failed the row before, if it fails at this slot now.
    fn earlier_than(&self, at: &NamedSlot) -> Vec<NamedSlot> {
        if self.until.is_none() {
            return Vec::new();
        }
        let all = self.earlier.iter().chain([&self.at]);
        let mut others: Vec<NamedSlot> = all.filter(|other| *other != at).cloned().collect();
        others.drain(..others.len().saturating_sub(limits::HISTORY_MAX - 1));
        others
    }

    /// Checks the slots that failed the row before.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { at, until, earlier, .. } = self;
        let known: BTreeSet<&NamedSlot> = earlier.iter().collect();
        let fit = earlier.is_empty() || until.is_some() && earlier.len() < limits::HISTORY_MAX;
        match fit && known.len() == earlier.len() && !known.contains(at) {
            true => Ok(()),
            false => Err(format!("failed at {at:?} until {until:?} after {earlier:?}")),
        }
    }

    /// Whether a slot is among those that failed the row.
    fn names(&self, worker: &str, slot: usize) -> bool {
        let mut all = self.earlier.iter().chain([&self.at]);
        all.any(|at| at.worker == worker && usize::from(at.slot.0) == slot)
    }
}

impl FailureRecord {
    /// The incident, while other slots come first.
    pub(crate) fn open_incident(&self) -> Option<&Incident> {
        self.incident.as_ref().filter(|incident| incident.until.is_some())
    }
}

impl Run {
    /// Ends a row's wait that is over at this time. Returns whether there was one.
    pub(super) fn end_incident(&mut self, row: u64, at: LedgerMs) -> bool {
        let incident = self.failures.get_mut(&row).and_then(|record| record.incident.as_mut());
        let Some(incident) = incident.filter(|incident| incident.until == Some(at)) else {
            return false;
        };
        (incident.until, incident.earlier) = (None, Vec::new());
        self.flight.avoided.release(row);
        true
    }

    /// The open incident of the first row that a group has, pending or waiting.
    pub(crate) fn incident_of_group(&self, group: GroupNo) -> Option<&Incident> {
        let &(row, _) = self.flight.groups.get(&group)?.rows.ranges().first()?;
        self.failures.get(&row)?.open_incident()
    }
}

impl Ledger {
    /// Whether a slot has this name.
    pub(crate) fn is_named(&self, slot: SlotRef, name: &NamedSlot) -> bool {
        let worker = || self.workers.get(&slot.session);
        slot.slot == name.slot && worker().is_some_and(|worker| worker.name() == name.worker)
    }

    /// Records an incident for a row that has a failure record. `alone`: an engine died of this row and of no other.
    pub(crate) fn record_incident(
        &mut self,
        slot: SlotRef,
        (no, row): (RunNo, u64),
        (end, alone): (EndKind, bool),
    ) {
        let worker = self.workers.get(&slot.session).filter(|_| self.asks_a_second_slot());
        let record = self.runs.get(&no).and_then(|run| run.failures.get(&row));
        let (Some(worker), Some(record)) = (worker, record) else { return };
        let at = NamedSlot { worker: worker.name().to_owned(), slot: slot.slot };
        let wait_ends = LedgerMs(self.meta.clock().0.saturating_add(limits::SECOND_SLOT_WAIT_MS));
        let before = record.incident.as_ref();
        let goes_on = before.filter(|before| before.at == at).and_then(|b| b.until);
        let until = goes_on.unwrap_or(wait_ends);
        let died_alone_at = match alone {
            true => Some(at.clone()),
            false => before.and_then(|before| before.died_alone_at.clone()),
        };
        let earlier = before.filter(|_| self.meta.version() >= FAILED_SETS_VERSION);
        let earlier = earlier.map(|before| before.earlier_than(&at)).unwrap_or_default();
        let incident = Incident { end, at, until: Some(until), died_alone_at, earlier };
        self.runs.open_incident((no, row), incident);
    }

    /// Ends the waits that are over, as many as one `Tick` may; the others stay due.
    pub(crate) fn end_incidents(&mut self) {
        let mut ended = 0;
        let now = self.meta.clock();
        while ended < limits::TICK_ROWS_MAX
            && self.runs.first_incident_end().is_some_and(|end| end <= now)
        {
            // Some entries are of incidents that ended earlier. They must not count, because a member that was loaded
            // from an image has none of them.
            ended += u64::from(self.runs.end_first_incident());
        }
    }

    /// Whether a slot comes after other slots for a group.
    pub(crate) fn is_excluded(&self, run: &Run, slot: SlotRef, group: GroupNo) -> bool {
        match self.asks_a_second_slot() {
            true => run.incident_of_group(group).is_some_and(|i| self.is_named(slot, &i.at)),
            false => run.flight.excluded.get(&group).is_some_and(|(at, _)| *at == slot),
        }
    }

    /// Whether a slot comes after other slots for a group because it failed the group's rows before another slot did.
    /// `takers` remembers other slots that take the run's rows. At least one of [`limits::HISTORY_MAX`] has not failed
    /// the rows.
    pub(crate) fn is_excluded_by_earlier<'a>(
        &'a self,
        run: &'a Run,
        slot: SlotRef,
        group: GroupNo,
        takers: &OnceCell<Vec<(&'a Worker, usize)>>,
    ) -> bool {
        let Some(incident) = run.incident_of_group(group) else { return false };
        if !incident.earlier.iter().any(|at| self.is_named(slot, at)) {
            return false;
        }
        let takers =
            takers.get_or_init(|| self.takers(run, slot).take(limits::HISTORY_MAX).collect());
        takers.iter().any(|(worker, number)| !incident.names(worker.name(), *number))
    }

    /// The slot that comes after other slots for a group, and until when: the latest of those that failed its rows.
    pub(crate) fn excluded_slot(&self, run: &Run, group: GroupNo) -> Option<(SlotRef, LedgerMs)> {
        if !self.asks_a_second_slot() {
            return run.flight.excluded.get(&group).copied();
        }
        let incident = run.incident_of_group(group)?;
        let name = (run.head.namespace.clone(), incident.at.worker.clone());
        let session = self.workers.by_name(&name)?;
        Some((SlotRef { session, slot: incident.at.slot }, incident.until?))
    }
}

// Below cluster version 3.

impl Run {
    /// When the first slot may have its group again.
    pub(crate) fn excluded_until(&self) -> Option<LedgerMs> {
        self.flight.excluded.values().map(|excluded| excluded.1).min()
    }

    /// Ends the exclusions that are due. Returns whether there were any.
    pub(crate) fn end_exclusions(&mut self, now: LedgerMs) -> bool {
        let before = self.flight.excluded.len();
        self.flight.excluded.retain(|_, excluded| excluded.1 > now);
        self.flight.excluded.len() < before
    }
}

impl Ledger {
    /// Other slots come first for the latest group of a run.
    pub(crate) fn exclude_from_latest_group(&mut self, no: RunNo, slot: SlotRef) {
        let until = LedgerMs(self.meta.clock().0.saturating_add(limits::OTHER_SLOTS_FIRST_MS));
        let by_incident = self.asks_a_second_slot();
        let Some(run) = self.runs.get_mut(&no).filter(|_| !by_incident) else { return };
        run.flight.excluded.insert(run.flight.groups_made, (slot, until));
        self.runs.mark(no);
    }
}
