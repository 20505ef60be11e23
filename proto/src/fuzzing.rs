//! Decoders of files that a client keeps. Only fuzz targets use this module.
//!
//! Invariant: bad bytes result in the same errors here as in a client.
//! Absent: decoders that are public anyway.

/// Reads the list of members that a client saves. Returns how many there are.
///
/// # Errors
/// Why the list is refused.
pub fn members_file(bytes: &[u8]) -> std::io::Result<usize> {
    crate::client::members_in(bytes)
}
