//! The decoders of everything that members send each other or keep on disk, for fuzz targets only.
//!
//! Invariant: a value that decodes is encoded and decoded again as the same value.
//! Absent: the values; a target only needs that nothing panics.

use std::path::Path;

use bytes::Bytes;
use rollout_ledger::Ledger;

use crate::codec;
use crate::ops::restore;
use crate::state::log_meter::LogMeter;

/// What the log of a fuzzed meter keeps.
const KEEP_BYTES: u64 = 640;

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

/// Decodes the stored size of a log, and counts on from it as a member does after a start. Its marks take about as much
/// memory as the bytes.
///
/// # Panics
/// If the size differs after it was encoded and decoded again, or a number of it over- or underflows: that is a
/// finding.
pub fn log_size(bytes: &[u8]) {
    let mut meter = LogMeter::decode(KEEP_BYTES, bytes);
    assert_eq!(LogMeter::decode(KEEP_BYTES, &meter.encode()), meter);
    let all = meter.bytes();
    for index in [0, 1, 100, u64::MAX] {
        assert!(meter.bytes_after(index) <= all, "a part is larger than the log");
    }
    if let Some(index) = meter.index_before(KEEP_BYTES) {
        assert!(all >= KEEP_BYTES, "the bytes after {index} are more than the log has");
    }
    meter.appended(u64::MAX, u64::from(u32::MAX));
    assert_eq!(meter.bytes(), all + u64::from(u32::MAX));
    meter.truncated(100);
    meter.purged(50);
    meter.appended(100, 1);
    assert!(meter.bytes() <= all + u64::from(u32::MAX) + 1);
}

/// The encoded size of a log of twelve entries, of which two were purged.
pub fn encoded_log_size() -> Vec<u8> {
    let mut meter = LogMeter::new(KEEP_BYTES);
    for index in 1..=12 {
        meter.appended(index, 10 * index);
    }
    meter.purged(2);
    meter.encode()
}

/// Reads a backup as a restore does, makes the state of a new cluster from it, and returns the log index of the state.
/// A block of the file has at most 256 MiB, and memory for it is allocated as its bytes arrive.
///
/// # Errors
/// The reason why the file is refused.
///
/// # Panics
/// If the state does not load from its image, so that no member would start: that is a finding.
pub fn backup(path: &Path) -> Result<u64, String> {
    let state = restore::state(path).map_err(|error| error.to_string())?;
    let mut image = Vec::new();
    state.for_each_record(|key, value| image.push((key.to_vec(), value.to_vec())));
    let loaded = Ledger::load(image).expect("a state that was restored loads");
    assert_eq!(loaded.applied(), state.applied());
    Ok(loaded.applied().index)
}
