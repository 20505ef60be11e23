//! Workers' registrations.
//!
//! *Invariant:* a session that has ended is gone with its slots (`slot.rs`); its attempts may live on as lapsed grants.
//!
//! Absent on purpose: when a worker was last heard. The leader knows that, in memory; only the consequences of
//! silence are logged.

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
    pub(crate) id: SessionId,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) instance: u64,
    pub(crate) address: String,
    pub(crate) state: WorkerState,
    /// Asked to take no more work. Outlives suspicion; a new process starts without it.
    pub(crate) drain: Option<Drain>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) stores: Vec<String>,
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) since_wall_ms: u64,
}

impl Worker {
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
