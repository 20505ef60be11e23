//! `rolloutctl cert`: certificates of a private authority, without any other tool.
//!
//! Invariant: it works without a cluster, except for commands that use the network, and never prints a key.
//! Absent: trust in anything but the files named on the command line.

pub(super) mod enroll;
pub(super) mod init_ca;
pub(super) mod init_issuer;
pub(super) mod inspect;
mod instant;
pub(super) mod issue;
pub(super) mod renew;
pub(super) mod revocations;
pub(super) mod revoke;
pub(super) mod status;
pub(super) mod unrevoke;

use std::path::Path;

/// Whether a file exists, in words.
fn there(path: &Path) -> &'static str {
    if path.exists() { "exists" } else { "does not exist" }
}
