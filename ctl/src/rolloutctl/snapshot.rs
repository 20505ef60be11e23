//! `rolloutctl snapshot`: the ledger as a file, and a new cluster from it.
//!
//! Invariant: a file that a command reports as saved was read back and found intact. Absent: the ledger
//! and its stores; `rollout-coordinator`, which has them, does all work on a directory.

mod coordinator;
pub(super) mod restore;
pub(super) mod save;
pub(super) mod summary;
pub(super) mod verify;
