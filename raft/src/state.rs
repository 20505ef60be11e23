//! Owns: what a member has on disk and in memory: its identity, the log, the ledger with its image, and openraft's view
//! of both.
//!
//! Invariant: nothing here uses the code that replicates it.
//! Absent: when the image is written and the log is purged; see `ops`.

pub(crate) mod digest;
pub(crate) mod entry_cache;
pub(crate) mod event_ring;
pub(crate) mod identity;
pub(crate) mod log_meter;
pub(crate) mod log_store;
pub(crate) mod machine;
pub(crate) mod records;
pub(crate) mod snapshot_files;
pub(crate) mod state_machine;
pub(crate) mod stores;
