//! Compares what members answer and write with the files in `coordinator/testdata`. Only tests use this module.
//!
//! *Invariant:* rewriting the files needs a reason: programs, logs and members of other versions read these texts and
//! bytes.

mod operations;
mod rejections;

use std::fmt::Write as _;

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // invariant: writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that a text names.
fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}
