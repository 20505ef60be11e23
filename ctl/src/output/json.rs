//! The JSON contract: the envelope, and numbers that survive every reader.
//!
//! Invariant: a u64 is a string, because many readers keep 53 bits of a number; bytes are lower-case hex.
//! Absent: protobuf's own JSON mapping, which omits zeros.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The version of every printed document.
pub const API_VERSION: &str = "rollout/v1";

/// The envelope of every JSON document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<'a, T> {
    api_version: &'static str,
    kind: &'a str,
    as_of: String,
    data: &'a T,
}

impl<'a, T: Serialize> Envelope<'a, T> {
    /// Wraps `data` as a document of the given kind, as of now.
    pub fn new(kind: &'a str, data: &'a T) -> Self {
        Self { api_version: API_VERSION, kind, as_of: rfc3339(SystemTime::now()), data }
    }
}

/// A time as RFC 3339 in UTC, to the millisecond, which is precise enough.
pub fn rfc3339(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    at.replace_millisecond(at.millisecond()).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // invariant: writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_lower_case_and_two_digits_a_byte() {
        assert_eq!(hex(&[0, 0xab, 0x0f]), "00ab0f");
    }
}
