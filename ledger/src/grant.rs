//! Leases: rows that a slot holds under one attempt.
//!
//! *Invariant:* a row belongs to at most one attempt, its last one, but for a duplicate, which runs
//! beside it until one of the two ends (`duplicate.rs`). A *live* grant's rows run; a
//! *lapsed* one's are pending again, and until another slot gets them the ledger accepts a late
//! result under that attempt.

use crate::id::{LedgerMs, SlotRef};
use crate::rows::Rows;
use crate::trial::TrialNo;
use serde::{Deserialize, Serialize};

/// The rows of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Who holds, or held, them.
    pub(crate) slot: SlotRef,
    /// Those that are neither decided, given back, nor granted anew.
    pub(crate) rows: Rows,
    /// When they were granted.
    pub(crate) granted_at: LedgerMs,
    /// The trial that they are, or are a part of.
    pub(crate) trial: Option<TrialNo>,
}
