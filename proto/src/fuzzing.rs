//! Files that a client keeps, for fuzz targets alone.
//!
//! Invariant: bad bytes are an error here as they are in a client.
//! Absent: what is public anyway.

/// Reads the list of members that a client keeps, and says how many there are.
///
/// # Errors
/// Why it is refused.
pub fn members_file(bytes: &[u8]) -> std::io::Result<usize> {
    crate::client::members_in(bytes)
}
