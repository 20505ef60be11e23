//! Decoders of what others send to a member, store for it or configure it with. Only fuzz targets use this module.
//!
//! Invariant: bad bytes result in the same errors here as in a running member.
//! Absent: a running member.

use rollout_ledger::{Ledger, Op};

use crate::config::{Config, Flags};
pub use crate::grpc::fuzzing::KINDS;

/// The operations that a message of a client or worker results in. `kind` selects its type.
///
/// # Errors
/// Why the message is refused.
pub fn operations(ledger: &Ledger, kind: u8, bytes: &[u8]) -> Result<Vec<Op>, String> {
    crate::grpc::fuzzing::operations(ledger, kind, bytes).map_err(|error| error.to_string())
}

/// Decodes the message of a dry run and the request in it, as a member does before it checks the request. A request
/// takes at most 1 MiB of memory once it is decoded. Returns its encoded length.
///
/// # Errors
/// Why the message is refused.
///
/// # Panics
/// If the request differs after it was encoded and decoded again, or has another weight in pieces: that is a finding.
pub fn dry_run(bytes: &[u8]) -> Result<usize, String> {
    crate::grpc::fuzzed_dry_run(bytes).map_err(|error| error.to_string())
}

/// Reads a rank's manifest as a member does before it accepts the rank's report. Returns how many chunks it names.
pub fn checkpoint_manifest(bytes: &[u8]) -> Option<usize> {
    crate::grpc::fuzzing::checkpoint_manifest(bytes)
}

/// Reads the text of a configuration file.
///
/// # Errors
/// Why it is refused.
pub fn config(text: &str) -> Result<Config, String> {
    Config::of(text, Flags::default()).map_err(|error| format!("{error:#}"))
}
