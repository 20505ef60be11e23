//! Pulls that found nothing to give, held back until there is something.
//!
//! *Invariant:* one parked pull a slot. A newer message of the slot answers the parked one first,
//! empty; so nothing waits behind it. A parked pull proposes nothing. The pull of a stream that has
//! gone never takes the place of one that is listened to.

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
    /// Lets a pull wait, unless nobody listens for its answer, or a newer one of its slot waits.
    pub(crate) fn park(&self, pull: Pull) {
        if pull.out.is_closed() {
            return;
        }
        let mut pulls = self.pulls.lock();
        let present = pulls.get(&key(pull.slot));
        if present.is_some_and(|present| !present.out.is_closed() && present.seq > pull.seq) {
            return;
        }
        pulls.insert(key(pull.slot), pull);
    }

    /// Takes a slot's pull out, if one waits.
    pub(crate) fn take(&self, slot: SlotRef) -> Option<Pull> {
        self.pulls.lock().remove(&key(slot))
    }

    /// Takes out those that `ready` names.
    pub(crate) fn take_ready(&self, ready: impl Fn(&Pull) -> bool) -> Vec<Pull> {
        let mut pulls = self.pulls.lock();
        let keys: Vec<SlotKey> = pulls.iter().filter(|(_, p)| ready(p)).map(|(k, _)| *k).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{SessionId, SlotNo};
    use tokio::sync::mpsc;

    fn pull(seq: u64, out: &Outbox) -> Pull {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        Pull { slot, instance: 1, seq, rows_max: 1, out: out.clone() }
    }

    #[test]
    fn a_pull_that_nobody_listens_for_takes_no_place() {
        let parked = Parked::default();
        let ((old, gone), (new, _listens)) = (mpsc::channel(1), mpsc::channel(1));
        parked.park(pull(3, &old));
        drop(gone);
        // The worker repeats it on its next stream; what was under way for the old one comes after.
        parked.park(pull(3, &new));
        parked.park(pull(3, &old));
        parked.sweep();
        let kept = parked.take(pull(3, &new).slot).expect("it waits");
        assert!(kept.out.same_channel(&new));
    }

    #[test]
    fn an_older_pull_takes_no_newer_ones_place() {
        let parked = Parked::default();
        let (out, _listens) = mpsc::channel(1);
        parked.park(pull(4, &out));
        parked.park(pull(3, &out));
        assert_eq!(parked.take(pull(0, &out).slot).map(|p| p.seq), Some(4));
    }
}
