//! `rolloutctl audit`: a member's audit files. Needs no cluster.

pub(super) mod chain;
pub(super) mod verify;

/// Checks the chain of one file's lines; returns the number of breaks. For fuzz targets only.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzzed(bytes: &[u8]) -> usize {
    let mut halves = bytes.splitn(2, |byte| *byte == 0);
    let files = halves.by_ref().map(chain::Checked::of).collect();
    chain::in_order(files).iter().map(|file| file.breaks.len()).sum()
}
