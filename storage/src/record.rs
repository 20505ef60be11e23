//! Owns: the envelope of every record on disk, `[format version u8][crc32 u32 LE][payload]`.
//!
//! Invariant: the checksum covers the version, the payload and the record's context (its key or its offset), so
//! [`open`] detects both a changed byte and a good record in the wrong place.
//! Absent: what payloads mean, and compression.

use crate::error::FormatError;

/// The version of the envelope and of its content.
pub const RECORD_VERSION: u8 = 1;

/// Bytes that the envelope adds to a payload.
pub const RECORD_OVERHEAD: usize = 5;

/// Wraps `payload`. `context` identifies the record's place (its key, its offset) and is not stored.
pub fn seal(context: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_OVERHEAD + payload.len());
    record.push(RECORD_VERSION);
    record.extend_from_slice(&checksum(RECORD_VERSION, context, payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// Returns the payload of a record that [`seal`] made for the same `context`.
pub fn open<'a>(context: &[u8], record: &'a [u8]) -> Result<&'a [u8], FormatError> {
    let Some((head, payload)) = record.split_first_chunk::<RECORD_OVERHEAD>() else {
        return Err(FormatError::Malformed("record is shorter than its envelope"));
    };
    let [version, crc @ ..] = *head;
    if checksum(version, context, payload) != u32::from_le_bytes(crc) {
        return Err(FormatError::Checksum);
    }
    if version != RECORD_VERSION {
        return Err(FormatError::Version { found: version, supported: RECORD_VERSION });
    }
    Ok(payload)
}

fn checksum(version: u8, context: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[version]);
    // Hashing the length detects a byte that moves between context and payload.
    hasher.update(&(context.len() as u64).to_le_bytes());
    hasher.update(context);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_is_detected() {
        for payload in [&b""[..], b"x", b"a longer payload with some text in it"] {
            let good = seal(b"key", payload);
            assert_eq!(open(b"key", &good), Ok(payload));
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(open(b"key", &bad).is_err(), "bit {bit} went unnoticed");
            }
        }
    }

    #[test]
    fn a_cut_record_is_detected() {
        let good = seal(b"key", b"payload");
        for len in 0..good.len() {
            assert!(open(b"key", &good[..len]).is_err(), "length {len} went unnoticed");
        }
    }

    #[test]
    fn a_record_in_the_wrong_place_is_detected() {
        let good = seal(b"key", b"payload");
        assert_eq!(open(b"kez", &good), Err(FormatError::Checksum));
        assert_eq!(open(b"", &seal(b"a", b"")), Err(FormatError::Checksum));
    }
}
