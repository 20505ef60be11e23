//! Decoders of what a user's client reads back, for fuzz targets only.
//!
//! Invariant: bad bytes are an error here, as they are in a command.
//! Absent: what is public anyway: batch files, contexts, inputs and manifests.

mod checkpoint;

use std::path::Path;

use bytes::Bytes;
use rollout_proto::v1;

pub use self::checkpoint::restored_rank;
pub use crate::dev::fuzzing::{
    pids as dev_pids, settings as dev_settings, written_pids as written_dev_pids,
    written_settings as written_dev_settings,
};

/// Combines a segment's rows with their results, as an export does. `objects` supplies the blobs that the message
/// names, whatever their digests. Returns the number of rows.
///
/// # Errors
/// Why the segment is refused.
pub async fn results(listed: v1::ReadResultsResponse, objects: &[Bytes]) -> Result<u64, String> {
    crate::export::fuzzing::results(listed, objects).await
}

/// Reads the record of an output directory; returns the number of files that it names.
pub fn output_record(bytes: &[u8]) -> Option<usize> {
    crate::export::fuzzing::output_record(bytes)
}

/// Checks the chain of an audit file; returns the number of breaks.
pub fn audit_chain(bytes: &[u8]) -> usize {
    crate::rolloutctl::audit_breaks(bytes)
}

/// Reads a snapshot file as `snapshot verify` does, and prints it. Returns the table and the JSON; `None` if the file is
/// refused.
pub fn snapshot(path: &Path) -> Option<(String, String)> {
    crate::rolloutctl::verified_snapshot(path)
}
