//! `rolloutctl snapshot`: the ledger as a file, and a new cluster from it.
//!
//! Invariant: a file that a command reports as saved was read back and found intact. Absent: the ledger
//! and its stores; `rollout-coordinator`, which has them, does all work on a directory.

mod coordinator;
pub(super) mod restore;
pub(super) mod save;
pub(super) mod summary;
pub(super) mod verify;

/// What `snapshot verify` prints of a file, as a table and as JSON; `None` if it is refused. For fuzz targets only.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzzed(path: &std::path::Path) -> Option<(String, String)> {
    use crate::output::Report as _;

    let progress = crate::progress::Progress::new(true);
    let shown = summary::SnapshotFile::check(path, path, &progress).ok()?;
    Some((shown.table(), serde_json::to_string(&shown).ok()?))
}
