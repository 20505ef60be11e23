//! Byte counts in a configuration, `8388608` or `"8MiB"`.
//!
//! Invariant: a count that does not fit into `usize`, or has an unknown unit, is refused.
//! Absent: decimal units; `MB` would be ambiguous.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("B", 0)];

/// A number, or text with a unit.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    from.deserialize_any(Bytes)
}

/// Text with the unit MiB if that is exact.
pub(crate) fn serialize<S: Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
    match bytes % (1 << 20) {
        0 if *bytes > 0 => to.serialize_str(&format!("{}MiB", bytes >> 20)),
        _ => to.serialize_u64(*bytes as u64),
    }
}

pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["integer", "string"]})
}

/// Reads text.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a number of bytes; write 8388608 or \"8MiB\"");
    let (digits, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, *shift)))
        .unwrap_or((text, 0));
    let value: u64 = digits.trim().parse().map_err(|_| bad())?;
    value.checked_mul(1 << shift).ok_or_else(bad)
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = usize;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number of bytes, or a text like \"8MiB\"")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<usize, E> {
        usize::try_from(value).map_err(|_| E::custom("a number of bytes must not be negative"))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<usize, E> {
        usize::try_from(value).map_err(|_| E::custom("too many bytes"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
        let value = parse(text).map_err(E::custom)?;
        usize::try_from(value).map_err(|_| E::custom("too many bytes"))
    }
}
