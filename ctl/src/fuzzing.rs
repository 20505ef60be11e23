//! Decoders of what a user's client reads back, for fuzz targets only.
//!
//! Invariant: bad bytes are an error here, as they are in a command.
//! Absent: what is public anyway: batch files, contexts, inputs and manifests.

mod checkpoint;

use std::path::Path;

pub use self::checkpoint::restored_rank;
pub use crate::dev::fuzzing::{
    pids as dev_pids, settings as dev_settings, written_pids as written_dev_pids,
    written_settings as written_dev_settings,
};

/// Checks the chain of an audit file; returns the number of breaks.
pub fn audit_chain(bytes: &[u8]) -> usize {
    crate::rolloutctl::audit_breaks(bytes)
}

/// Reads a snapshot file as `snapshot verify` does, and prints it. Returns the table and the JSON; `None` if the file is
/// refused.
pub fn snapshot(path: &Path) -> Option<(String, String)> {
    crate::rolloutctl::verified_snapshot(path)
}
