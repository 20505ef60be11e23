//! Bytes of commands, replies and records: postcard behind a version byte.
//!
//! *Invariant:* bytes that an older member wrote stay readable forever; bytes with an unknown version are refused,
//! never guessed at.

use serde::{Serialize, de::DeserializeOwned};

/// The version of every encoding in this crate.
const VERSION: u8 = 1;

/// Encodes behind the version byte.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(value, &mut bytes);
    bytes
}

/// Appends the encoding to `bytes`, so that hot paths reuse a buffer.
pub(crate) fn encode_into<T: Serialize>(value: &T, bytes: &mut Vec<u8>) {
    bytes.push(VERSION);
    let taken = std::mem::take(bytes);
    // invariant: these types have no floats, no unknown lengths, and a Vec grows.
    *bytes = postcard::to_extend(value, taken).expect("encoding into a vector cannot fail");
}

/// How many bytes a value takes within an encoding. Nothing is written.
pub(crate) fn size<T: Serialize>(value: &T) -> usize {
    // invariant: as in [`encode_into`], and counting takes no room.
    postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default())
        .expect("counting cannot fail")
}

/// Decodes what [`encode`] wrote; `None` for anything else.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (&version, rest) = bytes.split_first()?;
    if version != VERSION {
        return None;
    }
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}
