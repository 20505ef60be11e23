//! `rolloutctl snapshot`: the ledger as a file, and a new cluster from it.
//!
//! Invariant: a file that a command says to be there was read back and found whole. Deliberately absent: the ledger
//! and its stores; `rollout-coordinator`, which has them, does what is done to a directory.

mod coordinator;
pub(super) mod restore;
pub(super) mod save;
pub(super) mod shown;
pub(super) mod verify;
