//! Leases: rows that a slot holds under one attempt.
//!
//! *Invariant:* a row belongs to at most one attempt, its last one; a speculative attempt is the exception and runs
//! beside that one until one of the two ends (`speculative_attempt.rs`). The rows of a *live* grant run. The rows of a
//! *lapsed* grant are pending again, and until another slot gets them the ledger accepts a late result under that
//! attempt.

use crate::batch::bisection::GroupNo;
use crate::kernel::id::{LedgerMs, SlotRef};
use crate::kernel::rows::Rows;
use serde::{Deserialize, Serialize};

/// The rows of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The slot that holds or held them.
    pub(crate) slot: SlotRef,
    /// Rows that are not decided, returned, or granted again.
    pub(crate) rows: Rows,
    /// When they were granted.
    pub(crate) granted_at: LedgerMs,
    /// The bisection group that they are, or are a part of.
    pub(crate) group: Option<GroupNo>,
}
