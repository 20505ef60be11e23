//! Pulls that found nothing to give, held back until there is something.
//!
//! *Invariant:* one parked pull a slot. A newer message of the slot answers the parked one first,
//! empty; so nothing waits behind it. A parked pull proposes nothing.

use crate::leading::Outbox;
use parking_lot::Mutex;
use rollout_ledger::id::SlotRef;
use std::collections::HashMap;

/// One pull that waits.
pub(crate) struct Pull {
    pub(crate) slot: SlotRef,
    /// The process that pulls.
    pub(crate) instance: u64,
    pub(crate) seq: u64,
    pub(crate) rows_max: u32,
    pub(crate) out: Outbox,
}

/// The pulls that wait.
#[derive(Default)]
pub(crate) struct Parked {
    pulls: Mutex<HashMap<SlotKey, Pull>>,
}

/// A slot as a hash key.
type SlotKey = (u64, u16);

fn key(slot: SlotRef) -> SlotKey {
    (slot.session.0, slot.slot.0)
}

impl Parked {
    /// Lets a pull wait. Returns the one that it replaces.
    pub(crate) fn park(&self, pull: Pull) -> Option<Pull> {
        self.pulls.lock().insert(key(pull.slot), pull)
    }

    /// Takes a slot's pull out, if one waits.
    pub(crate) fn take(&self, slot: SlotRef) -> Option<Pull> {
        self.pulls.lock().remove(&key(slot))
    }

    /// Takes out those that `ready` names.
    pub(crate) fn take_ready(&self, ready: impl Fn(SlotRef) -> bool) -> Vec<Pull> {
        let mut pulls = self.pulls.lock();
        let keys: Vec<SlotKey> =
            pulls.iter().filter(|(_, p)| ready(p.slot)).map(|(k, _)| *k).collect();
        keys.into_iter().filter_map(|k| pulls.remove(&k)).collect()
    }

    /// The slots whose pulls wait, in order.
    pub(crate) fn slots(&self) -> Vec<SlotRef> {
        let mut slots: Vec<SlotRef> = self.pulls.lock().values().map(|p| p.slot).collect();
        slots.sort_unstable();
        slots
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pulls.lock().is_empty()
    }

    /// Drops the pulls of streams that have gone.
    pub(crate) fn sweep(&self) {
        self.pulls.lock().retain(|_, p| !p.out.is_closed());
    }
}
