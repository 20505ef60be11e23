//! Workers' registrations.
//!
//! *Invariant:* a session that has ended is gone with its slots (`slot.rs`); its attempts may live on as lapsed grants.
//! A worker counts its free slots by offer (`settle.rs`), so decisions need not scan its slots.
//!
//! Absent: when a worker was last heard. The leader knows that, in memory; only the consequences of
//! silence are logged.

use crate::batch::eligibility::OfferNo;
use crate::fleet::slot::Slot;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::visits::count_visit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerState {
    /// It takes work.
    Ready,
    /// It is silent: its unstarted rows are pending, and its started rows are kept until then.
    Suspect {
        /// Ledger time at which the session ends.
        until: LedgerMs,
        /// The length of the wait, which restarts when a new leader takes over.
        grace_ms: u64,
    },
    /// It takes no more work and finishes its rows.
    Draining,
}

/// A worker was asked to drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Ledger time by which it must be gone: then its session ends, whatever it still holds.
    pub until: Option<LedgerMs>,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Its worker left by itself.
    Left,
    /// Without a request of its worker: it stayed silent, or another process took its name.
    Lost,
}

/// One registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(super) id: SessionId,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) instance: u64,
    pub(super) address: String,
    pub(super) state: WorkerState,
    /// Asked to take no more work. Outlives suspicion; a new process starts without it.
    pub(super) drain: Option<Drain>,
    pub(super) slots: Vec<Slot>,
    /// How many of its slots are free, by offer, as the sums count them (`settle.rs`). Derived.
    #[serde(skip)]
    pub(super) free: BTreeMap<OfferNo, usize>,
    pub(super) stores: Vec<String>,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) since_wall_ms: u64,
}

impl Worker {
    /// Its session.
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The process that it is.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Its address, informational only.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn state(&self) -> WorkerState {
        self.state
    }

    /// Whether it takes work.
    pub(crate) fn is_ready(&self) -> bool {
        self.state == WorkerState::Ready
    }

    /// Whether it is silent.
    pub(crate) fn is_suspect(&self) -> bool {
        matches!(self.state, WorkerState::Suspect { .. })
    }

    /// Its drain, if it was asked to drain, suspect or not.
    pub(crate) fn drain(&self) -> Option<Drain> {
        self.drain
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// A slot, for a change. Mark the slot if its record changes.
    pub(crate) fn slot_mut(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number)
    }

    /// As [`Worker::slot_mut`], for all slots.
    pub(crate) fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.slots
    }

    /// How many of its slots are free, by offer.
    pub(crate) fn free(&self) -> &BTreeMap<OfferNo, usize> {
        &self.free
    }

    /// Counts a slot of an offer that starts or stops being free.
    pub(crate) fn count_free(&mut self, offer: OfferNo, was: bool, is: bool) {
        if is && !was {
            *self.free.entry(offer).or_default() += 1;
        } else if was
            && !is
            && let Some(free) = self.free.get_mut(&offer)
        {
            *free -= 1;
            if *free == 0 {
                self.free.remove(&offer);
            }
        }
    }

    /// The URLs of the object stores that it can use.
    pub(crate) fn stores(&self) -> &[String] {
        &self.stores
    }

    /// Versions of its parts.
    pub(crate) fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }

    /// The state of a worker that is heard.
    pub(crate) fn state_when_heard(&self) -> WorkerState {
        if self.drain.is_some() { WorkerState::Draining } else { WorkerState::Ready }
    }

    /// Ledger time at which the session ends without a word from its worker: because the worker is silent, or because
    /// its drain deadline passes.
    pub(crate) fn ends(&self) -> Option<LedgerMs> {
        count_visit();
        let silent = match self.state {
            WorkerState::Suspect { until, .. } => Some(until),
            WorkerState::Ready | WorkerState::Draining => None,
        };
        silent.into_iter().chain(self.drain.and_then(|drain| drain.until)).min()
    }
}
