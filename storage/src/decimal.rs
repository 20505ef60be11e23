//! Owns: u64 values as strings in JSON, so that no reader rounds them.
//!
//! Invariant: a value is read back to the last digit.
//! Absent: anything but `#[serde(with = "decimal")]`.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
