//! The decoders of everything that members send each other or keep on disk, for fuzz targets only.
//!
//! Invariant: a value that decodes is encoded and decoded again as the same value.
//! Absent: the values; a target only needs that nothing panics.

use std::path::Path;

use bytes::Bytes;

use crate::codec;

/// Decodes the bytes after the first one as the value that the first one selects.
///
/// # Panics
/// If a decoder panics, or a value differs after it was encoded and decoded again: that is a finding.
pub fn decode(bytes: &[u8]) {
    macro_rules! stable {
        ($decode:ident, $encode:ident, $bytes:expr) => {
            if let Ok(value) = codec::$decode($bytes) {
                let again = codec::$decode(codec::$encode(&value).into())
                    .expect("what was written is read");
                assert_eq!(format!("{value:?}"), format!("{again:?}"));
            }
        };
    }
    let Some((kind, rest)) = bytes.split_first() else { return };
    let rest = Bytes::copy_from_slice(rest);
    match kind % 10 {
        0 => stable!(decode_entry, encode_entry, rest),
        1 => stable!(decode_log_id, encode_log_id, rest),
        2 => stable!(decode_vote, encode_vote, rest),
        3 => stable!(decode_stored_membership, encode_stored_membership, rest),
        4 => stable!(decode_append, encode_append, rest),
        5 => stable!(decode_append_result, encode_append_result, rest),
        6 => stable!(decode_vote_request, encode_vote_request, rest),
        7 => stable!(decode_transfer, encode_transfer, rest),
        8 => stable!(decode_transfer_reply, encode_transfer_reply, rest),
        _ => stable!(decode_snapshot_header, encode_snapshot_header, rest),
    }
}

/// Reads a backup as a restore does, and returns the log index of its state.
///
/// # Errors
/// The reason why the file is refused.
pub fn backup(path: &Path) -> Result<u64, String> {
    crate::ops::restore::position(path).map_err(|error| error.to_string())
}
