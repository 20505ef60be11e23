//! When the ledger's own cordons end by themselves.
//!
//! *Invariant:* each cordon that needed failures of rows is listed with its end. Some entries are of cordons that ended
//! earlier. A caller that takes an entry compares it with the entry's slot.
//! Absent: when a slot is cordoned, and what the end of a cordon does (`slot_incidents.rs`).

use crate::kernel::id::{LedgerMs, SlotRef};
use std::collections::BTreeSet;

/// The ends of cordons for failures of rows. Derived.
#[derive(Clone, Debug, Default)]
pub(crate) struct CordonEnds(BTreeSet<(LedgerMs, SlotRef)>);

impl CordonEnds {
    /// Exactly these.
    pub(super) fn of(ends: impl Iterator<Item = (LedgerMs, SlotRef)>) -> Self {
        Self(ends.collect())
    }

    pub(super) fn add(&mut self, at: LedgerMs, slot: SlotRef) {
        self.0.insert((at, slot));
    }

    /// The earliest.
    pub(crate) fn first(&self) -> Option<LedgerMs> {
        self.0.first().map(|end| end.0)
    }

    /// Takes the earliest, if it has come.
    pub(super) fn take_due(&mut self, now: LedgerMs) -> Option<(LedgerMs, SlotRef)> {
        self.first().filter(|at| *at <= now)?;
        self.0.pop_first()
    }
}
