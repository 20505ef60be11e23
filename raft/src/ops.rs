//! Owns: what keeps a member running and what operators do with it: disk space, image and log upkeep, snapshots, reports.
//!
//! Invariant: it uses consensus, and consensus works without it.
//! Absent: changes of the members; see `membership`.

pub(crate) mod backup;
pub(crate) mod compaction;
pub(crate) mod disk_space;
pub(crate) mod reclaim;
pub(crate) mod restore;
pub(crate) mod salvage;
pub(crate) mod status;
pub(crate) mod successor;
pub(crate) mod watchdog;
