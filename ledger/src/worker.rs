//! Workers' registrations, and what each of their slots holds.
//!
//! *Invariant:* a slot lists exactly the live grants that name it. A session that has ended is
//! gone with its slots; its attempts may live on as lapsed grants.
//!
//! Absent on purpose: when a worker was last heard. The leader knows, in memory; only what
//! follows from silence is logged.

use crate::eligibility::OfferNo;
use crate::id::{Attempt, LedgerMs, RunNo, SessionId};
use crate::looks::look;
use crate::reply::GrantedRows;
use crate::slot_incidents::{SlotIncident, as_deaths};
use crate::spec::SlotOffer;
use crate::tally::SlotUse;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Where a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerState {
    /// It takes work.
    Ready,
    /// It is silent: what it had not started is free, what it had started is kept until then.
    Suspect {
        /// Ledger time at which the session ends.
        until: LedgerMs,
        /// How long the wait was, to begin anew when a new leader takes over.
        grace_ms: u64,
    },
    /// It takes no more work and finishes what it has.
    Draining,
}

/// A worker was asked to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Ledger time by which it has to be gone: then its session ends, whatever it still holds.
    pub until: Option<LedgerMs>,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Its worker left by itself.
    Left,
    /// Without its worker's doing: it stayed silent, or another process took its name.
    Lost,
}

/// One slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) offer: SlotOffer,
    /// The offer's number in the index. Derived.
    #[serde(skip)]
    pub(crate) offer_no: OfferNo,
    /// How the sums count it. Derived.
    #[serde(skip)]
    pub(crate) counted: Option<SlotUse>,
    pub(crate) held: BTreeSet<(RunNo, Attempt)>,
    pub(crate) rows_held: u64,
    pub(crate) rows_done: u64,
    /// The latest pull and its answer, for a repeat at the next leader.
    pub(crate) last_pull: u64,
    pub(crate) last_grant: Vec<GrantedRows>,
    /// The trial that it holds: it gets nothing else meanwhile.
    pub(crate) trial: Option<(RunNo, Attempt)>,
    /// Deaths of its engine; below cluster version 3 but for those in trials.
    pub(crate) deaths: u64,
    /// What ended badly there since it last finished a row, oldest first.
    #[serde(with = "as_deaths")]
    pub(crate) incidents: Vec<SlotIncident>,
    /// When the ledger's own cordon ends by itself, if it needed failures of rows. The image has it from cluster version 3 on;
    /// before, there is none.
    #[serde(skip)]
    pub(crate) cordoned_until: Option<LedgerMs>,
    /// The number of the latest death that its process has told of.
    pub(crate) last_death: u64,
    /// Why the ledger gives it no work; a new process begins anew.
    pub(crate) cordon: Option<String>,
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
    /// Asked to take no more work. Outlives suspicion; a new process begins anew.
    pub(crate) drain: Option<Drain>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) stores: Vec<String>,
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) since_wall_ms: u64,
}

impl Worker {
    /// Where a worker stands that is heard.
    pub(crate) fn state_when_heard(&self) -> WorkerState {
        if self.drain.is_some() { WorkerState::Draining } else { WorkerState::Ready }
    }

    /// Ledger time at which the session ends without a word from its worker: because the worker is
    /// silent, or because it was to be gone by then.
    pub(crate) fn ends(&self) -> Option<LedgerMs> {
        look();
        let silent = match self.state {
            WorkerState::Suspect { until, .. } => Some(until),
            WorkerState::Ready | WorkerState::Draining => None,
        };
        silent.into_iter().chain(self.drain.and_then(|drain| drain.until)).min()
    }
}
