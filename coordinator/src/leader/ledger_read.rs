//! Reads the ledger of a member that may not have one yet.
//!
//! A member that belongs to no cluster answers as an empty ledger would: no run, no worker, epoch 0.

use rollout_ledger::Ledger;
use rollout_raft::Node;

/// Short reads of the ledger, under its read lock.
pub(crate) trait ReadLedger {
    /// What `read` finds, or what it would find in an empty ledger.
    fn ledger<R: Default>(&self, read: impl FnOnce(&Ledger) -> R) -> R;
}

impl ReadLedger for Node {
    fn ledger<R: Default>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        self.with_ledger(read).unwrap_or_default()
    }
}
