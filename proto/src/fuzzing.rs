//! Decoders of files that a client keeps, and of errors that a member sends. Only fuzz targets use this module.
//!
//! Invariant: bad bytes result in the same errors here as in a client.
//! Absent: decoders that are public anyway.

use bytes::Bytes;
use tonic::{Code, Status};

use crate::client::ClientError;
use crate::endpoint::{Endpoint, HostPort};
use crate::error::RpcError;

/// Reads the list of members that a client saves. Returns how many there are.
///
/// # Errors
/// Why the list is refused.
pub fn members_file(bytes: &[u8]) -> std::io::Result<usize> {
    crate::client::members_in(bytes)
}

/// Reads the error of a status with this gRPC code, text and details as a client does, prints it, and follows its hint
/// of the leader. The list of members has no bound of its own: the HTTP/2 client accepts 16 KiB of headers.
/// Returns how many members the error lists.
///
/// # Panics
/// If the error differs after it was sent and read again, or lists more members than the details have room for: that
/// is a finding.
pub fn error(code: i32, text: &str, details: &[u8]) -> usize {
    let details = Bytes::copy_from_slice(details);
    let status = Status::with_details(Code::from_i32(code), text, details.clone());
    let error = RpcError::from_status(&status);
    let printed = format!("{error} {:?}", error.outcome);
    assert!(printed.starts_with(error.code.code()), "an error begins with its code: {printed}");
    let failed = ClientError::of_member(&status, &"c1");
    assert_eq!(failed.exit_code(), error.code.exit_code());
    assert_eq!(failed.may_pass(), error.retryable);
    if let Ok(leader) = Endpoint::with_name(&*error.leader_name, &error.leader_addr) {
        let printed = leader.addr.to_string();
        assert_eq!(printed.parse::<HostPort>(), Ok(leader.addr), "it is printed as {printed}");
    }
    let again = RpcError::from_status(&Status::from(error.clone()));
    assert_eq!(again, error);
    let listed = error.members.map_or(0, |list| list.members.len());
    // An entry has a tag and a length at least.
    assert!(listed <= details.len() / 2, "{listed} members in {} bytes", details.len());
    listed
}
